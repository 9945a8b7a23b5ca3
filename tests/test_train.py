"""train.py: what it adds for fairseq, and what it refuses before anything is built."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from specdec_plugins.corpus.checkpoints import LAST
from specdec_plugins.corpus.resume import locked
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint, untrained
from specdec_plugins.training import fairseq_train as train
from tests import fairseq_checkpoints
from tests.bundles import ROOT
from tests.refusals import told

PLUGIN = str(ROOT / "specdec_plugins")
LAUNCHED = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}


def test_the_plugin_is_loaded_unless_one_is_named() -> None:
    assert train.command_line(["data"], {}) == ["data", "--user-dir", PLUGIN]
    for given in (["data", "--user-dir", "x"], ["data", "--user-dir=x"]):
        assert train.command_line(given, {}) == given


@pytest.mark.parametrize(
    ("flags", "has_gpus", "more"),
    [
        ("", True, "--device-id 1"),  # a process that sees one GPU, too
        ("", False, "--distributed-backend gloo --ddp-backend legacy_ddp"),
        ("--cpu", True, "--distributed-backend gloo --ddp-backend legacy_ddp"),
    ],
)
def test_launched_processes_train_together(
    flags: str, has_gpus: bool, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpus)
    given = ["data", "--user-dir", "x", *flags.split()]
    added = train.command_line(given, LAUNCHED)[len(given) :]
    assert added[:3] == ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    assert added[3:7] == ["--distributed-world-size", "4", "--distributed-rank", "3"]
    assert added[7:] == more.split()


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        (["--cpu"], {}),
        (["--cpu"], {"WORLD_SIZE": "1", "RANK": "0"}),
        (["--cpu", "--distributed-init-method", "tcp://host:1"], LAUNCHED),
    ],
)
def test_nothing_is_added_where_nothing_is_missing(
    flags: list[str], environment: dict[str, str]
) -> None:
    given = ["data", "--user-dir", "x", *flags]
    assert train.command_line(given, environment) == given


@pytest.mark.fairseq
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--block-size 0", "--block-size is 0"),
        ("--start-p 0.1", "--start-p 0.1 is below --minus-p"),
        ("--restore-file none.pt", "--restore-file none.pt: no such file"),
        ("--restore-file tests", "--restore-file tests: a folder; expected a checkpoint"),
        ("--eval-block-decoding", "--eval-block-decoding: was removed; the log says"),
        ("--arch transformer", "--arch transformer cannot fill masked blocks; give --arch block"),
        ("--finetune-from-model none.pt", "--finetune-from-model none.pt: no such file"),
        ("", "nowhere: no such folder"),
        ("--min-lr 1e-9", "--min-lr: fairseq calls this flag --stop-min-lr now"),
        ("--noise random_delete", "'random_delete' (choose from 'block_mask')"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(
    flags: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = "train.py nowhere --arch block --task translation_lev_modified --criterion glat_loss"
    monkeypatch.setattr(sys, "argv", [*common.split(), "--cpu", *flags.split()])
    error = told(capsys, train.main)
    assert not Path("checkpoints").exists()
    assert error.startswith("train.py: error: ")
    assert message in error


TRAIN = "--arch block --task translation_lev_modified --criterion glat_loss --cpu -s en -t de"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """--save-dir of a training whose settings can work, and which ends when it would begin."""
    data, save = fairseq_checkpoints.dictionaries(tmp_path), tmp_path / "save"
    monkeypatch.setattr(
        sys, "argv", ["train.py", str(data), *TRAIN.split(), "--save-dir", str(save)]
    )
    monkeypatch.setattr(train, "_run", lambda cfg: None)
    return save


@pytest.mark.fairseq
def test_float16_without_a_gpu_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--fp16"])
    assert train.main() == 0  # on a CPU because it is asked for
    sys.argv.remove("--cpu")
    assert "--fp16 needs a GPU, and torch finds none; omit it" in told(capsys, train.main)


@pytest.mark.fairseq
@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_a_file_that_is_no_checkpoint_is_refused(
    flag: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, flag, "train.py"])
    assert "train.py: damaged or not a checkpoint" in told(capsys, train.main)
    assert not folder.exists()


@pytest.mark.fairseq
def test_a_second_training_in_a_folder_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(folder):
        assert "another run is writing here" in told(capsys, train.main)
        monkeypatch.setenv("RANK", "1")  # a process of the training that holds the lock
        assert train.main() == 0
    monkeypatch.setenv("RANK", "0")
    assert train.main() == 0


@pytest.mark.fairseq
def test_the_first_process_alone_replaces_a_damaged_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {**untrained(Namespace(arch="block"), {}), "last_optimizer_state": {}}
    save_checkpoint(whole, folder / "checkpoint1.pt")
    (folder / LAST).write_bytes(b"cut")
    monkeypatch.setenv("RANK", "1")
    assert train.main() == 0
    assert (folder / LAST).read_bytes() == b"cut"
    monkeypatch.setenv("RANK", "0")
    assert train.main() == 0
    assert load_checkpoint(folder / LAST)["args"].arch == "block"


def test_what_a_program_starts_after_its_training_heeds_signals() -> None:
    """A test runner, for instance, whose next processes are no part of the training."""
    with train._saving():
        pass
    tell = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    words = [sys.executable, "-c", tell]
    masked = subprocess.run(words, preexec_fn=int, stdout=subprocess.PIPE, check=True).stdout
    assert b"SIGTERM" not in masked
