"""Trainings of a few updates: in two pieces, and of exits, heads and an assistant."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specdec_plugins.corpus.checkpoints import average, last_checkpoints
from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.decoding.networks import MedusaHeads, Transformer
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import load_network
from tests.programs import SPECDEC, python, run
from tests.training.conftest import SIZES, decoded
from tests.warm_python import warm_python

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

SMALL = shlex.split("--encoder-layers 1 --decoder-layers 1 --width 16 --ffn 16 --heads 2")
SAVING = shlex.split(
    "--save-interval-updates 1 --keep-interval-updates 3 --no-epoch-checkpoints "
    "--disable-validation --log-format simple --log-interval 1"
)


@pytest.mark.parametrize("schedule", [[], ["--end-lr", "1e-5"]])
def test_a_training_goes_on_elsewhere_from_weights_alone(
    data: Path, tmp_path: Path, schedule: list[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    common = ["--data", data, *SMALL, "--warmup", 4, "--batch-tokens", 64, "--max-tokens", 32]
    common += schedule

    def train(folder: Path, updates: int, *more: str, expect: int = 0) -> str:
        command = [*SPECDEC, "train", "verifier", "--save-dir", folder, "--updates", updates]
        command += [*common, "--until", round(time.time()) + 3600, "--workers", 2, "--cpu"]
        command += ["--", *SAVING, *more]
        return run(*command, expect=expect, PYTHON=warm_python()).stdout

    # The flag that --until becomes, with an hour that is over behind the first update.
    train(here, 10**6, "--stop-time-hours", "1e-9", expect=UNFINISHED)
    (first,) = json.loads((here / "pieces.json").read_text())
    done = first["last_update"]
    assert (first["start"], first["first_update"], done) == ("fresh", 0, 1)

    there.mkdir()
    for name in ("weights.pt", "pieces.json", *(p.name for p in here.glob("checkpoint_*_*.pt"))):
        (there / name).write_bytes((here / name).read_bytes())
    log = train(there, done + 3)
    _, second = json.loads((there / "pieces.json").read_text())
    assert (second["start"], second["first_update"]) == ("optimizer restarted", done)
    assert second["last_update"] == done + 3
    # The schedule went on where it was, and rises again from there.
    rates = [float(rate) for rate in re.findall(r"train_inner .*?\blr=([\d.e-]+)", log)]
    assert len(rates) >= 2
    assert rates == sorted(rates)
    assert 0 < rates[-1] < 0.1 * 7e-4
    # The average takes checkpoints of both pieces.
    kept = last_checkpoints(there, 2, "update")
    assert average(kept)["model"]["encoder.embed_tokens.weight"].isfinite().all()


@pytest.mark.parametrize("name", ["InverseSqrtRestarts", "PolynomialDecayRestarts"])
def test_the_rate_rises_again_behind_a_restart(name: str) -> None:
    from fairseq.optim.sgd import SGD

    from specdec_plugins.training import trainer

    falling = {"end_learning_rate": 0.1, "total_num_update": 50, "power": 1.0}
    values = {"warmup_updates": 10, "warmup_init_lr": 0.0, "lr": [1.0], **falling}
    values |= {"momentum": 0.0, "weight_decay": 0.0}
    cfg = SimpleNamespace(**values, force_anneal=None, restart_warmup_updates=4)
    restarting = getattr(trainer, name)
    _, of_fairseq = restarting.__bases__
    weight = torch.nn.Parameter(torch.zeros(1))
    with_restart, stock = (
        schedule(cfg, SGD(cfg, [weight])) for schedule in (restarting, of_fairseq)
    )
    assert with_restart.step_update(40) == stock.step_update(40)
    with_restart.load_state_dict({**stock.state_dict(), "restarted_at": 40})
    shares = [with_restart.step_update(n) / stock.step_update(n) for n in range(40, 46)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert with_restart.optimizer.get_lr() == stock.optimizer.get_lr()
    assert with_restart.state_dict()["restarted_at"] == 40


COMMON = shlex.split(
    "--task translation --optimizer adam --lr 1e-3 --max-tokens 100 --log-interval 1 "
    "--log-format simple --cpu"
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


def said(data: Path, folder: Path, *flags: str | Path) -> str:
    return decoded(data, folder, *flags, "--dtype", "float64", "--quiet").stdout


def test_a_verifier_trained_for_early_exits(tmp_path: Path, data: Path) -> None:
    common = [*SIZES, *COMMON, "--max-update", "2", "--save-dir", tmp_path]
    done = python("train.py", data, *EARLY, *common)
    assert "nll_exit_1" in done.stdout
    assert "valid on 'valid' subset" in done.stdout
    path = tmp_path / "checkpoint_last.pt"
    symbols = Dictionary.load(data / "dict.en.txt")
    assert load_network(Transformer, path, symbols, symbols).config.decoder.num_layers == 2
    plain = said(data, tmp_path, "--AR-path", path, "--strategy", "AR")
    speculative = said(data, tmp_path, "--AR-path", path, "--drafter", "early_exit")
    assert speculative == plain


def test_heads_on_a_frozen_verifier(tmp_path: Path, data: Path, verifier: Path) -> None:
    command = ["train.py", data, *HEADS, *COMMON, "--verifier-path", verifier]
    command += ["--save-dir", tmp_path]
    done = python(*command, "--max-update", "2")
    assert "right_3" in done.stdout
    path = tmp_path / "checkpoint_last.pt"
    state = load_checkpoint(path)["model"]
    assert state.keys() == {"blocks.weight", "blocks.bias"}
    symbols = Dictionary.load(data / "dict.en.txt")
    heads = load_network(MedusaHeads, path, symbols, symbols, dtype=torch.float64)
    assert (heads.num_heads, heads.dim, heads.blocks.weight.dtype) == (3, 16, torch.float64)
    assert heads.blocks.weight.abs().sum() > 0
    again = python(*command, "--max-update", "3", "--disable-validation")
    assert "num_updates=3" in again.stdout
    assert "num_updates=2," not in again.stdout
    plain = said(data, tmp_path, "--AR-path", verifier, "--strategy", "AR")
    drafter = ["--drafter", "medusa", "--path", path]
    assert said(data, tmp_path, "--AR-path", verifier, *drafter) == plain
    with pytest.raises(UserError, match="arch transformer.*where a set of heads is needed"):
        load_network(MedusaHeads, verifier, symbols, symbols)


def test_an_assistant_on_the_verifiers_encoder(tmp_path: Path, data: Path, verifier: Path) -> None:
    command = ["train.py", data, *ASSISTANT, *COMMON, "--verifier-path", verifier]
    command += ["--save-dir", tmp_path, "--disable-validation"]
    python(*command, "--max-update", "2")
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
    again = python(*command, "--max-update", "3")
    assert "num_updates=3" in again.stdout
    plain = said(data, tmp_path, "--AR-path", verifier, "--strategy", "AR")
    drafter = ["--AR-path", verifier, "--drafter", "assistant", "--path", path]
    reading = ["--drafter-options", '{"encoder": "verifier"}']
    assert said(data, tmp_path, *drafter, *reading) == plain


def test_heads_without_a_verifier_are_refused(tmp_path: Path, data: Path) -> None:
    command = ["train.py", data, *HEADS, *COMMON, "--save-dir", tmp_path]
    done = python(*command, "--max-update", "2", expect=2)
    assert "--verifier-path is None" in done.stderr
    assert "Traceback" not in done.stderr
