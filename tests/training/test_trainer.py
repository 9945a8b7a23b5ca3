"""Checkpoints and faults of a training: killed, diverged, or of another model."""

from __future__ import annotations

import os
import random
import re
import select
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specdec_plugins.corpus.checkpoints import LAST, num_updates
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.training import fairseq_train
from specdec_plugins.training.trainer import Trainer
from tests.refusals import refused, told
from tests.training.conftest import SIZES, STOCK, call_train, run_train, start_train

NUM_KILLS = int(os.environ.get("KILLS", "5"))  # CONTRIBUTING.md


def started(data: Path, verifier: Path, folder: Path) -> list[object]:
    """The command that goes on with a copy of the verifier's training."""
    folder.mkdir()
    shutil.copy(verifier, folder / LAST)
    return [data, *STOCK, *SIZES, "--save-dir", folder, "--disable-validation"]


@pytest.mark.integration
def test_a_training_that_diverges_stops_and_can_be_resumed(
    data: Path, verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    command = [*started(data, verifier, folder), "--save-interval", "9"]
    said = told(capsys, call_train, *command, "--lr", "1e30", "--max-update", "9")
    assert re.search(r"update 4: the gradient is NaN.*lower --lr.* goes on from .*_last\.pt", said)
    assert num_updates(load_checkpoint(folder / LAST)) == 2
    assert {path.name for path in folder.glob("*.pt")} == {LAST}
    run_train(*command, "--lr", "1e-3", "--max-update", "3")
    assert num_updates(load_checkpoint(folder / LAST)) == 3


@pytest.mark.parametrize(
    ("weight", "loss", "what"), [(nan, 1.0, "w is NaN"), (1.0, nan, "the validation's bleu is NaN")]
)
def test_what_is_not_a_number_is_never_saved(
    weight: float, loss: float, what: str, tmp_path: Path
) -> None:
    trainer = Trainer.__new__(Trainer)
    checkpoint = SimpleNamespace(save_dir=str(tmp_path), best_checkpoint_metric="bleu")
    trainer.cfg, trainer.tpu = SimpleNamespace(checkpoint=checkpoint), False
    trainer._num_updates = 7
    trainer.state_dict = lambda: {"model": {"w": torch.tensor(weight)}, "extra_state": {}}
    extra = {"val_loss": loss}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "should_save_checkpoint_on_current_rank", True)
        path = str(tmp_path / "checkpoint_best.pt")
        refused(f"update 7: {what}.*from the start", trainer.save_checkpoint, path, extra)
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_a_checkpoint_that_does_not_fit_is_refused_in_a_sentence(
    data: Path, verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = started(data, verifier, tmp_path / "run")
    for flags, message in (
        (["--encoder-layers", "1"], r"other sizes.*\(Unexpected key.*encoder.layers.1"),
        (["--encoder-ffn-embed-dim", "8"], r"other sizes.*\(size mismatch for encoder.layers"),
        (["--criterion", "cross_entropy"], "Criterion does not match"),
    ):
        said = told(capsys, call_train, *command, *flags, "--max-update", "3")
        assert re.search(f"train.py: error: .*checkpoint_last.pt: .*{message}", said)


SAVING = shlex.split(
    "--encoder-embed-dim 128 --decoder-embed-dim 128 --lr 1e-5 --disable-validation "
    "--save-interval-updates 1 --keep-interval-updates 2 --keep-last-epochs 2"
)


def wait_for(found: Callable[[], object]) -> None:
    limit = time.monotonic() + 60
    while not found() and time.monotonic() < limit:
        time.sleep(0.01)


@pytest.mark.integration
def test_a_training_that_is_killed_while_it_saves_goes_on(data: Path, tmp_path: Path) -> None:
    """Saving after each update, it mostly is; KILLS=100 in the environment kills more often."""
    command = [data, *STOCK, *SIZES, *SAVING, "--save-dir", tmp_path / "run"]
    saved, log = 0, tmp_path / "log"
    chance = random.Random(NUM_KILLS)
    for _ in range(NUM_KILLS + 1):
        process = start_train(log, *command)
        wait_for(lambda: log.exists() and "Saved checkpoint" in log.read_text())
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, log.read_text()
        text = log.read_text()
        begun = re.findall(r"Loaded checkpoint .*checkpoint_last.pt \(epoch \d+ @ (\d+) upd", text)
        assert [int(number) >= saved for number in begun] == ([True] if saved else [])
        saved = max(map(int, re.findall(r"Saved checkpoint .* @ (\d+) updates", text)))
        log.unlink()


def test_what_loads_data_ends_with_a_training_that_is_killed() -> None:
    """At once, too: torch looks for its parent later on only, and whoever is left has its locks."""
    reading, writing = os.pipe()
    if (training := os.fork()) == 0:
        with fairseq_train._saving():
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
            os._exit(0)
    os.close(writing)
    os.waitpid(training, 0)
    is_closed, _, _ = select.select([reading], [], [], 20)
    os.close(reading)
    assert is_closed
