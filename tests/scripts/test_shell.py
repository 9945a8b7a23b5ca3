"""What every shell script promises: help from any folder, a strict shell, an error status."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import benchmarks.options
import benchmarks.reproduce
import encoder_initial
from specdec_plugins.app import recipe
from specdec_plugins.corpus import (
    averaging,
    bigrams,
    decontaminate,
    distill,
    evaluate,
    pieces,
    prepare,
    wmt,
)
from specdec_plugins.errors import BAD_INPUT

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
    *(module._parser for module in (averaging, bigrams, decontaminate, distill, pieces, prepare)),
    wmt._parser,
    evaluate.evaluate_parser,
    evaluate.ref_parser,
    recipe.make_parser,
    benchmarks.options.parser,
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
        prepare._parser,
        wmt._parser,
        distill._parser,
        averaging._parser,
        evaluate.evaluate_parser,
        evaluate.ref_parser,
    ],
)
def test_every_flag_is_explained(make: Callable[[], argparse.ArgumentParser]) -> None:
    parser = make()
    assert all(action.help for action in parser._actions if action.option_strings)
    text = parser.format_help()
    assert "None" not in text
    assert "default: False" not in text
    assert "data_set" not in text


@pytest.mark.parametrize(
    ("flags", "made"),
    [(["--help"], []), (["--output-path", "elsewhere.de"], []), (["--beta", "3"], ["output"])],
)
def test_inference_makes_its_folder_where_it_writes_there(
    flags: list[str], made: list[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHON": "true"}  # nothing but the shell script is run
    command = [str(SCRIPTS / "inference.sh"), *flags]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    assert [path.name for path in tmp_path.iterdir()] == made
