"""What every shell script promises: help from any folder, a strict shell, an error status."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import benchmarks.compare
import benchmarks.reproduce
import benchmarks.run
import encoder_initial
from specdec_plugins.corpus import (
    binarising,
    checkpoints,
    decontaminate,
    distill,
    prepare,
    scoring,
    wmt,
)
from specdec_plugins.errors import BAD_INPUT
from specdec_plugins.training import recipe, run

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = [
    "average-checkpoints",
    "distill.sh",
    "evaluate.sh",
    "prepare-tsv.sh",
    "prepare-wmt14-en-de.sh",
    "prepare-wmt16-en-ro.sh",
    "ref.sh",
]
PARSERS = [
    *(module._parser for module in (binarising, decontaminate, distill, prepare, wmt)),
    checkpoints._parser,
    run.drafter_parser,
    run.verifier_parser,
    scoring.evaluate_parser,
    scoring.ref_parser,
    recipe.make_parser,
    benchmarks.run.parser,
    benchmarks.reproduce.make_parser,
    encoder_initial.build_parser,
]


@pytest.mark.parametrize("name", NAMES)
def test_each_script_is_executable_and_strict(name: str) -> None:
    path = SCRIPTS / name
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)


def run_script(name: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [str(SCRIPTS / name), *flags]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", ["evaluate.sh", "prepare-tsv.sh", "prepare-wmt16-en-ro.sh"])
def test_help_and_a_flag_that_does_not_exist(name: str, tmp_path: Path) -> None:
    shown = name.replace("16-en-ro", "*")
    helped = run_script(name, tmp_path, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith(f"usage: {shown}")
    refused = run_script(name, tmp_path, "--no-such-flag")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"{shown}: error: ")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("make", PARSERS)
def test_a_wrong_flag_is_refused_in_one_line(
    make: Callable[[], argparse.ArgumentParser], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = make()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--no-such-flag"])
    assert ended.value.code == BAD_INPUT
    told = capsys.readouterr().err
    assert told.startswith(f"{parser.prog}: error: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "make",
    [
        decontaminate._parser,
        prepare._parser,
        wmt._parser,
        distill._parser,
        recipe.make_parser,
        run.drafter_parser,
        run.verifier_parser,
        checkpoints._parser,
        scoring.evaluate_parser,
        scoring.ref_parser,
        benchmarks.compare.comparison_parser,
        benchmarks.reproduce.make_parser,
        benchmarks.run.parser,
    ],
)
def test_every_flag_is_explained(make: Callable[[], argparse.ArgumentParser]) -> None:
    parser = make()
    assert all(action.help for action in parser._actions if action.option_strings)
    text = parser.format_help()
    assert "None" not in text
    assert "default: False" not in text
    assert "data_set" not in text


PREPARED = ("data-bin/dict.en.txt", "data-bin/dict.de.txt", "bpe/test.en")
TRAINED = ("drafter/checkpoint_last.pt", "verifier/checkpoint_last.pt")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder as the scripts of preparation and training leave it, with empty files."""
    for name in (*(f"work/wmt14-en-de/{name}" for name in PREPARED), *TRAINED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def inference(
    folder: Path, *flags: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The script in that folder, and the arguments that it would give inference.py."""
    environment = {**os.environ, "PYTHON": "echo", **variables}
    command = [str(SCRIPTS / "inference.sh"), *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    return done, done.stdout.split()


@pytest.mark.parametrize(
    ("flags", "made"),
    [(["--help"], False), (["--output-path", "elsewhere.de"], False), (["--beta", "3"], True)],
)
def test_inference_makes_its_folder_where_it_writes_there(
    flags: list[str], made: bool, prepared: Path
) -> None:
    done, _ = inference(prepared, *flags)
    assert done.returncode == 0, done.stderr
    assert (prepared / "output").exists() == made


def test_inference_takes_what_the_other_scripts_write(prepared: Path) -> None:
    out = re.search(r'OUT="\$\{OUT:-(.*)\}"', (SCRIPTS / "prepare-wmt14-en-de.sh").read_text())
    assert out is not None
    done, arguments = inference(prepared)
    assert done.returncode == 0, done.stderr
    assert arguments[1] == f"{out[1]}/data-bin"
    assert arguments[arguments.index("--input-path") + 1] == f"{out[1]}/bpe/test.en"
    assert arguments[arguments.index("--output-path") + 1] == "output/test.de"


@pytest.mark.parametrize(
    ("flags", "variables", "told"),
    [
        ([], {"data_dir": "none"}, "none: no such folder; set data_dir=FOLDER"),
        ([], {"checkpoint_path": "none"}, "none: no such file; set checkpoint_path=FILE"),
        ([], {"AR_checkpoint_path": "work"}, "work: a folder; set AR_checkpoint_path=FILE"),
        ([], {"tgt": "en", "src": "de"}, "/bpe/test.de: no such file; set input_path=FILE"),
        (["--input-path", "-"], {"input_path": "none"}, ""),
        (["--path=mine.pt"], {"checkpoint_path": "none"}, ""),
        (["--strategy", "AR"], {"checkpoint_path": "none"}, ""),
        ([], {"input_path": "-", "strategy": "fairseq", "checkpoint_path": "none"}, ""),
    ],
)
def test_inference_names_the_variable_of_a_missing_file(
    flags: list[str], variables: dict[str, str], told: str, prepared: Path
) -> None:
    done, _ = inference(prepared, *flags, **variables)
    assert done.returncode == (BAD_INPUT if told else 0), done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == bool(told)
    assert done.stderr.startswith("inference.sh: error: " if told else "")


def test_inference_of_a_bundle_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").touch()
    done, arguments = inference(tmp_path, data_dir=".")
    assert done.returncode == 0, done.stderr
    assert not {"--path", "--AR-path", "--input-path", "--remove-bpe"} & set(arguments)
