"""Every program asks whether it can write its output before it begins to work."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import encoder_initial
from benchmarks import bars
from benchmarks.serving import load
from specdec_plugins.corpus import binarising, checkpoints, scoring
from specdec_plugins.errors import UserError
from specdec_plugins.formats.output import check_output
from tests.refusals import refused

Run = Callable[[Sequence[str]], int]
PAIR = str(Path(__file__).resolve().parent.parent / "data" / "models" / "en-de")


def module(name: str) -> Run:
    def run(arguments: Sequence[str]) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [name, *arguments])
            status: int = importlib.import_module(name).main()
            return status

    return run


# Each program: how it is called, what comes before its output, its flag, the function that does
# its work (which must not be reached), and the kind of its output.
FILE, REPLACED, FOLDER = "file", "replaced", "folder"
INTO = ["--AR-path", "none.pt", "--output"]
TRAIN = [PAIR, "--arch", "block", "--task", "translation_lev_modified", "--cpu"]
TRAIN += ["--criterion", "glat_loss", "--save-dir"]
PROGRAMS = {
    "inference.py": (
        module("specdec_plugins.app.main"),
        ["--input-path", os.devnull, "--output-path"],
        "specdec_plugins.app.main.load_translator",
        FILE,
    ),
    "specdec-translate": (
        module("specdec_plugins.serving.translate_cli"),
        ["--input", os.devnull, "--output"],
        "specdec_plugins.serving.translate_cli._translator",
        FILE,
    ),
    "count-bigrams.sh": (
        binarising.COMMAND.run,
        [PAIR, "--output"],
        "specdec_plugins.corpus.binarising.count_bigrams",
        FILE,
    ),
    "compare_ways.py": (
        module("scripts.compare_ways"),
        ["--ways", os.devnull, "--no-picture", "--report"],
        "benchmarks.compare.run",
        FILE,
    ),
    "python -m benchmarks": (
        module("benchmarks.run"),
        ["--pair", PAIR, "--test", "lines.tsv", "--output"],
        "benchmarks.run.run",
        REPLACED,
    ),
    "python -m benchmarks.bars": (bars.COMMAND.run, ["--output"], "benchmarks.bars.run", REPLACED),
    "python -m benchmarks.serving.load": (
        load.COMMAND.run,
        ["--texts", os.devnull, "--output"],
        "benchmarks.serving.load.load_model",
        FILE,
    ),
    "average-checkpoints": (
        checkpoints.COMMAND.run,
        ["none.pt", "--output"],
        "specdec_plugins.corpus.checkpoints.average",
        REPLACED,
    ),
    "evaluate.sh": (
        scoring.COMMANDS["evaluate"].run,
        ["out", "ref", "--src", "en", "--tgt", "de", "--json"],
        "specdec_plugins.corpus.scoring.read_lines",
        REPLACED,
    ),
    "encoder_initial.py": (
        encoder_initial.COMMAND.run,
        ["--verifier", "none.pt", "--output"],
        "specdec_plugins.training.initialise.initialise_drafter",
        REPLACED,
    ),
    "train.py": (module("train"), TRAIN, "train._run", FOLDER),
    "convert.sh": (
        module("specdec_plugins.app.convert"),
        ["bundle", PAIR, *INTO],
        "specdec_plugins.app.convert._to_bundle",
        FOLDER,
    ),
}


@pytest.mark.fairseq
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_asks_before_its_work(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main, arguments, work, kind = PROGRAMS[program]
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("began to work"))
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "out")
    assert main([*arguments, output]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"{program}: error: ")
    assert output in said
    assert ("no folder" if kind == FILE else "cannot be written") in said


def test_a_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--output .*: is a folder; give the name of a file"):
        check_output(tmp_path, "--output")
    refused(r"file: is a file; give the name of a folder", check_output, file, folder=True)
    check_output(file)
    check_output(tmp_path, folder=True)


def test_missing_folders_are_made_only_where_the_program_does(tmp_path: Path) -> None:
    lost = tmp_path / "a" / "b"
    check_output(lost, replaced=True)
    check_output(lost, folder=True)
    refused(r"there is no folder .*a; create it first", check_output, lost)
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_asked_of_what_will_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is replaced needs its folder's permission, one that is written its own."""
    (file := tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    check_output(file)
    check_output("/dev/null")
    for output, made in ((file, {"replaced": True}), (tmp_path, {"folder": True})):
        refused("cannot be written", check_output, output, **made)
    refused("cannot be written", check_output, tmp_path / "new")
