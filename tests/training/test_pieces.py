"""A training in two pieces, on two processes, of which only half-precision weights travel."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specdec_plugins.corpus.checkpoints import average, last_checkpoints
from specdec_plugins.corpus.cli import UNFINISHED
from tests.training.conftest import Run

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

SIZES = shlex.split("--encoder-layers 1 --decoder-layers 1 --width 16 --ffn 16 --heads 2")
SAVING = shlex.split(
    "--save-interval-updates 1 --keep-interval-updates 3 --no-epoch-checkpoints "
    "--disable-validation --log-format simple --log-interval 1"
)


def test_a_training_goes_on_elsewhere_from_weights_alone(
    data: Path, tmp_path: Path, run: Run
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    common = ["--data", data, *SIZES, "--warmup", 4, "--batch-tokens", 64, "--max-tokens", 32]

    def train(folder: Path, updates: int, *more: str, expect: int = 0) -> str:
        command = ["scripts/train-verifier.sh", "--save-dir", folder, "--updates", updates]
        command += [*common, "--until", round(time.time()) + 3600, "--workers", 2, "--cpu"]
        command += ["--python", sys.executable, "--", *SAVING, *more]
        return run(*map(str, command), expect=expect).stdout

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


def test_the_rate_rises_again_behind_a_restart() -> None:
    from fairseq.optim.lr_scheduler.inverse_square_root_schedule import InverseSquareRootSchedule

    from specdec_plugins.optim.inverse_sqrt_restarts import InverseSqrtRestarts

    values = {"warmup_updates": 10, "warmup_init_lr": 0.0, "lr": [1.0]}
    cfg = SimpleNamespace(**values, restart_warmup_updates=4)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = SimpleNamespace(set_lr=lambda rate: None, get_lr=lambda: 0.0, params=[weight])
    with_restart, stock = (
        cls.__new__(cls) for cls in (InverseSqrtRestarts, InverseSquareRootSchedule)
    )
    for schedule in (with_restart, stock):
        schedule.cfg, schedule.optimizer, schedule.best = cfg, optimizer, None
        schedule.lr_step, schedule.decay_factor, schedule.lr = 0.1, 10**0.5, 0.0
    with_restart.restarted_at = None
    assert with_restart.step_update(40) == stock.step_update(40)
    with_restart.load_state_dict({**stock.state_dict(), "restarted_at": 40})
    shares = [with_restart.step_update(n) / stock.step_update(n) for n in range(40, 46)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert with_restart.state_dict()["restarted_at"] == 40
