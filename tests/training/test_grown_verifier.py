"""A deeper verifier with other types that starts from a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugins.errors import UserError
from specdec_plugins.formats.bundle import default_bundle, read_weights
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.models import read_model
from specdec_plugins.training.initialise import grown_verifier, spread_layers
from tests.programs import run

pytestmark = pytest.mark.fairseq

SIZES = {"encoder_layers": 7, "decoder_layers": 8, "width": 256, "ffn": 1024, "heads": 4}


@pytest.fixture
def reordered(tmp_path: Path) -> Path:
    """The bundle's types in another order, two of them missing, and one that is new."""
    symbols = (default_bundle() / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    mine = ["brandneu 9", *reversed(symbols[2:])]
    for language in ("en", "de"):
        text = "".join(f"{line}\n" for line in mine)
        (tmp_path / f"dict.{language}.txt").write_text(text, encoding="utf-8")
        (tmp_path / f"train.en-de.{language}.idx").touch()  # what names the direction
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "given", "layers"),
    [(6, 4, [0, 1, 1, 2, 2, 3]), (6, 3, [0, 0, 1, 1, 2, 2]), (2, 6, [0, 5]), (1, 3, [0])],
)
def test_layers_are_spread_evenly(wanted: int, given: int, layers: list[int]) -> None:
    assert spread_layers(wanted, given) == layers


def test_types_come_by_name_and_layers_as_often_as_needed(reordered: Path, tmp_path: Path) -> None:
    bundle = default_bundle()
    checkpoint, told = grown_verifier(bundle, reordered, SIZES, seed=1)
    given, state = read_weights(bundle / "verifier.safetensors").state, checkpoint["model"]
    number = len(given["decoder.embed_tokens.weight"])
    assert told.startswith(f"{number - 2} of {number - 1} types")
    table = state["decoder.embed_tokens.weight"]
    assert torch.equal(table[:4], given["decoder.embed_tokens.weight"][:4].float())
    assert torch.equal(table[5:].flip(0), given["decoder.embed_tokens.weight"][6:].float())
    assert 0.5 < table[4].norm() < 1.5  # as fairseq's fresh ones
    for side, depth, layers in (
        ("encoder", 7, [0, 1, 2, 2, 3, 4, 5]),
        ("decoder", 8, [0, 1, 1, 2, 3, 4, 4, 5]),
    ):
        assert checkpoint["args"].__dict__[f"{side}_layers"] == depth
        for mine, theirs in enumerate(layers):
            name = f"{side}.layers.{{}}.fc1.weight"
            assert torch.equal(state[name.format(mine)], given[name.format(theirs)].float())
    path = tmp_path / "grown.pt"
    torch.save(checkpoint, path)
    read_model(path)  # every weight is there, and of the right shape


def test_other_widths_are_refused(reordered: Path) -> None:
    with pytest.raises(UserError, match=r"--width is 256 there and 512 here.*give --width 256"):
        grown_verifier(default_bundle(), reordered, {**SIZES, "width": 512}, seed=1)


@pytest.mark.integration
def test_train_verifier_starts_from_a_bundle(data: Path, tmp_path: Path) -> None:
    command = [
        "scripts/train-verifier.sh", "--data", data, "--save-dir", tmp_path, "--from",
        default_bundle(), "--encoder-layers", "4", "--decoder-layers", "5", "--width", "256",
        "--ffn", "1024", "--heads", "4", "--precision", "bf16", "--cpu", "--lr", "1e-9",
        "--warmup", "1", "--batch-tokens", "100", "--max-tokens", "100", "--updates", "1",
    ]  # fmt: skip
    done = run(*command)
    assert "starting from 6 of 16 types and the layers of" in done.stderr
    first, last = (
        load_checkpoint(tmp_path / name)["model"] for name in ("initial.pt", "checkpoint_last.pt")
    )
    name = "decoder.layers.4.fc1.weight"
    torch.testing.assert_close(last[name], first[name], rtol=1e-2, atol=1e-3)
