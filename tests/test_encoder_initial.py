"""encoder_initial.py: what it copies, what it says, what it refuses."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.training import initial
from specdec_plugins.training.initialise import initialise_drafter
from tests.fairseq_checkpoints import dictionaries
from tests.fairseq_models import build_drafter, build_verifier
from tests.refusals import refused, told

pytestmark = pytest.mark.fairseq


class Program:
    """encoder_initial.py on a small verifier's checkpoint."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.verifier, self.output, self.capsys = tmp_path / "v.pt", tmp_path / "o.pt", capsys

    def write(self, **changes: Any) -> Any:
        """The verifier, which is written first."""
        model, args = build_verifier(**changes)
        save_checkpoint({"model": model.state_dict(), "args": args, "cfg": None}, self.verifier)
        return model

    def command(self, *flags: str) -> list[str]:
        return ["--verifier", str(self.verifier), "--output", str(self.output), *flags]

    def run(self, *flags: str, **verifier: Any) -> tuple[Any, dict[str, Any]]:
        """The verifier, and the drafter's checkpoint made of it."""
        model = self.write(**verifier)
        initial.COMMAND(*self.command(*flags))
        return model, load_checkpoint(self.output)

    def refused(self, *flags: str) -> str:
        """The one line that is said instead."""
        error = told(self.capsys, initial.COMMAND.run, self.command(*flags))
        assert not self.output.exists()
        return error


@pytest.fixture
def program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(tmp_path, capsys)


def _drafter(checkpoint: dict[str, Any], **changes: Any) -> Any:
    """The model that a trainer would build with these flags, loaded strictly."""
    positions = {"max_source_positions": 1000, "max_target_positions": 1000}
    model = build_drafter(seed=9, **{**positions, **changes})
    model.load_state_dict(checkpoint["model"], strict=True)
    return model.eval()


def _same(checkpoint: dict[str, Any], verifier: Any, prefix: str) -> bool:
    theirs = verifier.state_dict()
    names = [n for n in theirs if n.startswith(prefix)]
    assert names
    return all(torch.equal(checkpoint["model"][n], theirs[n]) for n in names)


def test_encoder_and_shared_embeddings_are_copied_and_nothing_else(program: Program) -> None:
    verifier, checkpoint = program.run()
    _drafter(checkpoint)
    for prefix in (
        "encoder.layers.",
        "encoder.embed_tokens",
        "decoder.embed_tokens",
        "decoder.output_projection",
    ):
        assert _same(checkpoint, verifier, prefix)
    assert not _same(checkpoint, verifier, "decoder.layers.0.self_attn.q_proj.weight")
    said = program.capsys.readouterr().out
    for line in (
        "copied      encoder layers",
        "not copied  encoder positions",
        "not copied  decoder layers",
        "trained with relu",
    ):
        assert line in said


def test_the_weights_of_an_old_checkpoint_are_known_by_today_s_names(program: Program) -> None:
    verifier = program.write()
    checkpoint = load_checkpoint(program.verifier)
    for name in [n for n in checkpoint["model"] if n.endswith("q_proj.weight")]:
        parts = [name.replace("q_proj", f"{letter}_proj") for letter in "qkv"]
        fused = torch.cat([checkpoint["model"].pop(part) for part in parts])
        checkpoint["model"][name.replace("q_proj.", "in_proj_")] = fused
    save_checkpoint(checkpoint, program.verifier)
    initial.COMMAND(*program.command())
    assert _same(load_checkpoint(program.output), verifier, "encoder.layers.")


def test_what_is_fresh_depends_on_the_seed(program: Program) -> None:
    results = [program.run("--decoder-layers", "3", "--seed", seed) for seed in ("1", "1", "2")]
    _drafter(results[0][1], decoder_layers=3)
    first, again, other = (made["model"]["decoder.copy_attn.weight"] for _, made in results)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_separate_embeddings_stay_separate(program: Program) -> None:
    verifier, checkpoint = program.run(share_all_embeddings=False)
    _drafter(checkpoint, share_all_embeddings=False)
    assert _same(checkpoint, verifier, "encoder.embed_tokens")
    assert not _same(checkpoint, verifier, "decoder.embed_tokens")


@pytest.mark.parametrize(
    ("flags", "verifier", "message"),
    [
        ("--encoder-embed-dim 32", {}, "--encoder-embed-dim is 32.* 16 for the verifier"),
        ("--encoder-layers 3", {}, "--encoder-layers is 3.* 2 for the verifier"),
        ("", {"encoder_normalize_before": True}, "--encoder-normalize-before"),
        ("--copy-positions", {}, "--copy-positions was removed: .*the verifier's encoder alone"),
        ("--decoder-layers 0", {}, "--decoder-layers must be 1 or more, not 0"),
        ("--arch block_fast", {}, "--arch was removed: .*specdec drafter trains the faster"),
        ("--share-all-embeddings", {"share_all_embeddings": False}, "--share-all-embeddings"),
    ],
)
def test_different_sizes_are_refused_with_both_named(
    program: Program, flags: str, verifier: dict[str, Any], message: str
) -> None:
    program.write(**verifier)
    assert re.search(message, program.refused(*flags.split()))


def _write_data(folder: Path, num_types: int) -> Path:
    folder.mkdir()
    for language in ("en", "de"):
        (folder / f"train.en-de.{language}.idx").touch()
    return dictionaries(folder, num_types - 4, num_types - 4)


def test_dictionaries_of_the_data_must_fit(program: Program, tmp_path: Path) -> None:
    program.write()
    good, small = _write_data(tmp_path / "good", 30), _write_data(tmp_path / "small", 28)

    def run(*flags: object) -> None:
        initialise_drafter(initial.COMMAND.parse(*program.command(*map(str, flags))))

    run("--data", good)
    refused(r"v\.pt: .* has 30 source symbols .* dictionary 28", run, "--data", small)
    refused("holds no dict.<lang>.txt", run, "--data", tmp_path)


def test_a_verifier_must_be_a_transformer_and_no_drafter(program: Program) -> None:
    save_checkpoint({"model": {}, "args": Namespace()}, program.verifier)
    assert "v.pt: not a fairseq translation Transformer" in program.refused()
    _, drafter = program.run()
    program.output.unlink()
    drafter["args"].block_size = 3
    save_checkpoint(drafter, program.verifier)
    assert "v.pt: is no verifier but block; give" in program.refused()
