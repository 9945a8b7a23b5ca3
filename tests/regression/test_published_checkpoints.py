"""Checkpoints and outputs of the published implementation: they load, and decode to the letter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.networks import KERNELS

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Path(os.environ.get("SPECDEC_REFERENCE") or ROOT.parent / "shared" / "reference")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    if not REFERENCE.is_dir():
        message = f"no published checkpoints in {REFERENCE}; SPECDEC_REFERENCE can name a folder"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    pytest.importorskip("omegaconf", reason="the checkpoints hold settings of omegaconf")
    return (REFERENCE / "input.bpe.en").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize(
    ("beta", "tau", "accepted"), [(1, 0, "1.0570"), (3, 1.0, "1.0986"), (5, 3.0, "1.1567")]
)
def test_decodes_line_for_line(
    lines: list[str], batch: int, beta: int, tau: float, accepted: str, kernels: str
) -> None:
    """With the flags of the published command, and the defaults of all others."""
    path = REFERENCE / f"expected.beta{beta}.tau{tau}.de"
    expected = path.read_text(encoding="utf-8").splitlines()
    translator = SpeculativeTranslator.from_pretrained(
        str(REFERENCE),
        source_lang="en",
        target_lang="de",
        verifier=str(REFERENCE / "verifier.pt"),
        drafter_checkpoint=str(REFERENCE / "drafter.pt"),
        device="cpu",
        kernels=kernels,
        block_size=8,
        batch=batch,
        beta=beta,
        tau=tau,
    )
    found = translator.translate(lines)
    num_tokens = sum(len(translation.tokens) for translation in found)
    num_rounds = sum(translation.rounds for translation in found)
    assert [translation.text for translation in found] == expected
    assert f"{num_tokens / num_rounds:.4f}" == accepted
