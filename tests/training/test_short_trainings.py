"""Trainings of a few updates: of exits, heads and an assistant."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from specdec_plugins.decoding.networks import MedusaHeads, Transformer
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from tests.decoding.networks.toys import load_network
from tests.refusals import told
from tests.training.conftest import SIZES, STOCK, call_train, decoded, run_train

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

COMMON = shlex.split(
    "--task translation --optimizer adam --lr 1e-3 --max-tokens 100 --log-interval 1 "
    "--log-format simple --num-workers 0 --cpu"
)
EARLY = shlex.split(
    "--arch early_exit_transformer --max-layer-skip 0.2 --criterion early_exit_loss "
    "--label-smoothing 0.1"
)
HEADS = shlex.split("--arch medusa_heads --num-heads 3 --criterion medusa_loss")
ASSISTANT = shlex.split(
    "--arch assistant_transformer --decoder-layers 1 --decoder-embed-dim 16 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2 --share-decoder-input-output-embed "
    "--criterion label_smoothed_cross_entropy --dropout 0.3"
)


def test_a_verifier_trained_for_early_exits(tmp_path: Path, data: Path) -> None:
    common = [*SIZES, *COMMON, "--max-update", "2", "--save-dir", tmp_path]
    log = run_train(data, *EARLY, *common)
    assert "nll_exit_1" in log
    assert "valid on 'valid' subset" in log
    path = tmp_path / "checkpoint_last.pt"
    symbols = Dictionary.load(data / "dict.en.txt")
    assert load_network(Transformer, path, symbols, symbols).config.decoder.num_layers == 2
    plain = decoded(data, tmp_path, "--AR-path", path, "--strategy", "AR")
    speculative = decoded(data, tmp_path, "--AR-path", path, "--drafter", "early_exit")
    assert speculative == plain


def test_heads_on_a_frozen_verifier(tmp_path: Path, data: Path, verifier: Path) -> None:
    command = [data, *HEADS, *COMMON, "--verifier-path", verifier, "--save-dir", tmp_path]
    assert "right_3" in run_train(*command, "--max-update", "2")
    path = tmp_path / "checkpoint_last.pt"
    state = load_checkpoint(path)["model"]
    assert state.keys() == {"blocks.weight", "blocks.bias"}
    symbols = Dictionary.load(data / "dict.en.txt")
    heads = load_network(MedusaHeads, path, symbols, symbols)
    assert (heads.num_heads, heads.dim, heads.blocks.weight.dtype) == (3, 16, torch.float64)
    assert heads.blocks.weight.abs().sum() > 0
    log = run_train(*command, "--max-update", "3", "--disable-validation")
    assert "num_updates=3" in log
    assert "num_updates=2," not in log
    plain = decoded(data, tmp_path, "--AR-path", verifier, "--strategy", "AR")
    drafter = ["--drafter", "medusa", "--path", path]
    assert decoded(data, tmp_path, "--AR-path", verifier, *drafter) == plain
    with pytest.raises(UserError, match="arch transformer.*where a set of heads is needed"):
        load_network(MedusaHeads, verifier, symbols, symbols)


def test_an_assistant_on_the_verifiers_encoder(tmp_path: Path, data: Path, verifier: Path) -> None:
    command = [data, *ASSISTANT, *COMMON, "--verifier-path", verifier]
    command += ["--save-dir", tmp_path, "--disable-validation"]
    run_train(*command, "--max-update", "2")
    path = tmp_path / "checkpoint_last.pt"
    trained, given = load_checkpoint(path)["model"], load_checkpoint(verifier)["model"]
    encoder = {name for name in given if name.startswith("encoder.")}
    assert encoder == {name for name in trained if name.startswith("encoder.")}
    assert all(torch.equal(trained[name], given[name]) for name in encoder)
    assert not any(name.startswith("decoder.layers.1.") for name in trained)
    last = 1 + max(int(name.split(".")[2]) for name in given if name.startswith("decoder.layers."))
    assert last > 1
    begun, ended = "decoder.layers.0.fc1.weight", f"decoder.layers.{last - 1}.fc1.weight"
    assert 0 < (trained[begun] - given[ended]).abs().max() < 0.1
    assert "num_updates=3" in run_train(*command, "--max-update", "3")
    plain = decoded(data, tmp_path, "--AR-path", verifier, "--strategy", "AR")
    drafter = ["--AR-path", verifier, "--drafter", "assistant", "--path", path]
    reading = ["--drafter-options", '{"encoder": "verifier"}']
    assert decoded(data, tmp_path, *drafter, *reading) == plain


def test_sentences_longer_than_a_batch_are_said(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [data, *SIZES, *STOCK, "--save-dir", tmp_path, "--max-tokens"]
    assert "max_tokens=5; give more --max-tokens" in told(capsys, call_train, *command, 5)
    assert "larger dataset; give more --max-tokens" in told(capsys, call_train, *command, 1)


def test_heads_without_a_verifier_are_refused(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [data, *HEADS, *COMMON, "--save-dir", tmp_path, "--max-update", "2"]
    assert "--verifier-path is None" in told(capsys, call_train, *command)
