"""A deeper verifier with other types that starts from a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugins.formats.bundle import read_weights
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.models import read_model
from specdec_plugins.formats.text import load_codes
from specdec_plugins.training import growing, run
from specdec_plugins.training.growing import grown_verifier, spread_layers
from tests.bundles import BUNDLED
from tests.decoding.networks import toys
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

SIZES = {"encoder_layers": 7, "decoder_layers": 8, "width": 256, "ffn": 1024, "heads": 4}


@pytest.fixture
def reordered(tmp_path: Path) -> Path:
    """The bundle's types in another order, two of them missing, and one that is new."""
    symbols = (BUNDLED / "dict.en.txt").read_text(encoding="utf-8").splitlines()
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
    bundle = BUNDLED
    checkpoint, told = grown_verifier(bundle, reordered, SIZES, seed=1)
    given, state = read_weights(bundle / "verifier.safetensors").state, checkpoint["model"]
    number = len(given["decoder.embed_tokens.weight"])
    assert told.startswith(f"{number - 2} of {number - 1} types")
    table = state["decoder.embed_tokens.weight"]
    assert torch.equal(table[:4], given["decoder.embed_tokens.weight"][:4].float())
    assert torch.equal(table[5:].flip(0), given["decoder.embed_tokens.weight"][6:].float())
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


def test_a_wider_verifier_computes_the_same(
    reordered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, where no noise in the embeddings changes it; positions are learned from there."""
    monkeypatch.setattr(growing, "_EMBEDDING_NOISE", 0)
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "width": 512, "ffn": 2048, "heads": 8}
    checkpoint, _ = grown_verifier(BUNDLED, reordered, sizes, seed=1)
    same = {**sizes, "width": 256, "ffn": 1024, "heads": 4}
    small, _ = grown_verifier(BUNDLED, reordered, same, seed=1)
    logits, num_copies = [], []
    for made in (small, checkpoint):
        path = reordered / f"{len(logits)}.pt"
        torch.save(made, path)
        network = read_model(path).network(torch.float64, torch.device("cpu"))
        source, target = torch.tensor([[7, 30, 55, 2]]), torch.tensor([[2, 9, 40]])
        logits.append(toys.full_logits(network, source, target))
        heads = made["model"]["encoder.layers.0.fc1.weight"]
        num_copies.append(len(heads.unique(dim=0)) / 1024)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)  # float32 weights
    assert num_copies == [1, 2]  # no two units are the same: they can learn apart


def test_a_new_type_is_the_mean_of_its_pieces(reordered: Path) -> None:
    checkpoint, _ = grown_verifier(BUNDLED, reordered, SIZES, seed=1)
    table = checkpoint["model"]["decoder.embed_tokens.weight"]
    bundle = BUNDLED
    given = read_weights(bundle / "verifier.safetensors").state["decoder.embed_tokens.weight"]
    old = load_dictionaries(bundle, "en", "de").target
    pieces = load_codes(bundle / "bpe.codes").segment("brandneu").split()
    assert len(pieces) > 1
    expected = given[[old.symbols.index(piece) for piece in pieces]].float().mean(0)
    torch.testing.assert_close(table[4], expected)


def test_other_shapes_are_refused(reordered: Path) -> None:
    for sizes, say in (
        ({"width": 384}, r"--width is 256 there and 384 here.*give --width 256"),
        ({"width": 512}, r"--ffn is 1024 there and 1024 here.*give --ffn 2048"),
        ({"width": 128}, r"give --width 256"),
    ):
        refused(say, grown_verifier, BUNDLED, reordered, {**SIZES, **sizes}, seed=1)


@pytest.mark.integration
def test_train_verifier_starts_from_a_bundle(
    data: Path, tmp_path: Path, logs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    command = [
        "--data", data, "--save-dir", tmp_path, "--from", BUNDLED,
        *("--encoder-layers", 1, "--decoder-layers", 2, "--width", 256, "--ffn", 1024),
        *("--heads", 4, "--precision", "bf16", "--cpu", "--lr", "1e-9", "--warmup", 1),
        *("--batch-tokens", 100, "--max-tokens", 100, "--updates", 1),
    ]  # fmt: skip
    assert run.VERIFIER.run(list(map(str, command))) == 0
    assert len(logs) == 1
    assert "starting from 6 of 16 types and the layers of" in caplog.text
    first, last = (
        load_checkpoint(tmp_path / name)["model"] for name in ("initial.pt", "checkpoint_last.pt")
    )
    name = "decoder.layers.1.fc1.weight"
    torch.testing.assert_close(last[name], first[name], rtol=1e-2, atol=1e-3)
