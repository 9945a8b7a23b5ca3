"""train.py: what it adds for fairseq, and what it refuses before anything is built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import train
from tests.refusals import told

PLUGIN = str(Path(train.__file__).parent / "specdec_plugins")
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
        ("--eval-block-decoding --verifier-path none.pt", "--verifier-path none.pt: no such file"),
        ("--eval-block-decoding --verifier-path tests", "--verifier-path tests: a folder"),
        ("--arch transformer", "--arch transformer cannot fill masked blocks; give --arch block"),
        ("--restore-file train.py", "train.py: damaged or not a checkpoint"),
        ("--finetune-from-model none.pt", "none.pt: no such checkpoint"),
        ("", "nowhere: no such folder"),
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
