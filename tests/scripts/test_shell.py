"""What every shell script promises: help from any folder, a strict shell, an error status."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_plugins.corpus import averaging, distill, evaluate, prepare, wmt

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


@pytest.mark.parametrize("name", NAMES)
def test_each_script_is_executable_and_strict(name: str) -> None:
    path = SCRIPTS / name
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["evaluate.sh", "prepare-tsv.sh", "prepare-wmt16-en-ro.sh"])
def test_help_and_a_flag_that_does_not_exist(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    for flag, status in (("--help", 0), ("--no-such-flag", 2)):
        done = subprocess.run(
            [str(SCRIPTS / name), flag],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == status
        assert f"usage: {name.replace('16-en-ro', '*')}" in (done.stderr or done.stdout)


@pytest.mark.parametrize(
    "make", [prepare._parser, wmt._parser, distill._parser, averaging._parser, evaluate._parser]
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
