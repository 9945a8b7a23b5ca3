"""Checkpoints and outputs of the published implementation: they load, and decode to the letter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.types import DecodeParams, Drafter, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import load_network

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Path(os.environ.get("SPECDEC_REFERENCE") or ROOT.parent / "shared" / "reference")


@dataclass(frozen=True)
class Published:
    verifier: TransformerVerifier
    drafter: Drafter
    source: Dictionary
    target: Dictionary
    lines: list[str]

    def decode(self, batch: int, beta: int, tau: float) -> tuple[list[str], float]:
        """Sentences with BPE removed, and mean accepted tokens."""
        method = Method(self.drafter, TopBeta(), Constant(Constant.Config()))
        decoder = SpeculativeDecoder(self.verifier, method, EngineConfig(max_rows=batch))
        params = DecodeParams(block_size=8, beta=beta, tau=tau)
        results = decoder.decode(
            [
                Request(str(number), self.source.encode_line(line), params)
                for number, line in enumerate(self.lines)
            ]
        )
        texts = [self.target.string(result.token_ids) for result in results]
        num_tokens = sum(len(text.split()) for text in texts)
        num_rounds = sum(result.rounds for result in results)
        return [f"{text} ".replace("@@ ", "").rstrip() for text in texts], num_tokens / num_rounds


@pytest.fixture(scope="module")
def published() -> Published:
    if not REFERENCE.is_dir():
        message = f"no published checkpoints in {REFERENCE}; SPECDEC_REFERENCE can name a folder"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    pytest.importorskip("omegaconf", reason="the checkpoints hold settings of omegaconf")
    source, target = (Dictionary.load(REFERENCE / f"dict.{side}.txt") for side in ("en", "de"))
    network = load_network(Transformer, REFERENCE / "verifier.pt", source, target)
    verifier = TransformerVerifier(network, target.special)
    drafter = load_network(BlockDrafter, REFERENCE / "drafter.pt", source, target)
    lines = (REFERENCE / "input.bpe.en").read_text(encoding="utf-8").splitlines()
    context = DraftContext(verifier, drafter)
    return Published(verifier, DRAFTERS.build("block", context), source, target, lines)


@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize(
    ("beta", "tau", "accepted"), [(1, 0, "1.0570"), (3, 1.0, "1.0986"), (5, 3.0, "1.1567")]
)
def test_decodes_line_for_line(
    published: Published, batch: int, beta: int, tau: float, accepted: str
) -> None:
    path = REFERENCE / f"expected.beta{beta}.tau{tau}.de"
    expected = path.read_text(encoding="utf-8").splitlines()
    texts, mean_accepted = published.decode(batch, beta, tau)
    assert texts == expected
    assert f"{mean_accepted:.4f}" == accepted
