"""The programs and commands of the documentation run, and say what the documentation says."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.bundles import CAPTIONS, ROOT, captions
from tests.corpus.test_wmt import archives
from tests.programs import convert_main, free_port, python, run
from tests.warm_python import warm_python

PROGRAMS = {
    "python": 'exec "$PYTHON" "$@"',
    "specdec": 'exec "$PYTHON" -m specdec_plugins.cli "$@"',
    # What reaches outside, or takes minutes and has tests of its own
    "git": "",
    "pip": "",
    "make": 'make() { command -p make -n -C "$ROOT" "$@"; }; make "$@" > /dev/null',
}
UNTIL_STOPPED = """{} &
until curl --silent --fail http://127.0.0.1:8080/health; do sleep 0.2; done
kill %1 && wait %1
"""
FOREGROUND = ("specdec serve --port 8080\n", "specdec serve opus-fast --port 8080\n")
# What makes the commands small. Their flags are read all the same.
SMALL = {command: UNTIL_STOPPED.format(command.strip()) for command in FOREGROUND} | {
    "specdec serve": "specdec serve --drain-timeout 0",
    "--hours 4": "--hours 0.001 --every 0.03 --dropout 0 --device cpu",
    "--batches 1 16 --turn 8": "--batches 1 --sentences 2 --turn 2 --repeats 1",
    "14-en-de.sh": "14-en-de.sh --archives archives --merges 20 --workers 1",
    "recipe.sh": "recipe.sh --list",
    "work/wmt14/bundle": "data/models/en-de-small --sentences 2 --block-sizes 5 --betas 1 --taus 1",
    "--block-size 25": "--block-size 10",
    "$data_dir": str(CAPTIONS),
    "$checkpoint_path": str(CAPTIONS / "drafter.pt"),
    "$AR_checkpoint_path": str(CAPTIONS / "verifier.pt"),
    "$input_path": "test.en",
}


def test_the_python_example() -> None:
    lines = python("docs/example.py").stdout.splitlines()
    assert lines[0] == "Zwei Hunde spielen im Schnee."
    assert lines[1].startswith("  tokens Zwei Hunde ")
    assert sum(line.startswith("  so far: Ein Mann") for line in lines) == 2
    assert lines[-2] == "['Zwei', 'Hunde', 'laufen', '.']"
    assert lines[-1].endswith("tokens a round")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs and a clone, with text and a small MarianMT model."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "programs").mkdir()
    for name, program in PROGRAMS.items():
        (folder / "programs" / name).write_text(f"#!/bin/bash -eu\n{program}\n")
        (folder / "programs" / name).chmod(0o700)
    clone = folder / "specdec"
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "activate").touch()
    for name in ("scripts", "specdec_plugins"):  # a recipe wants to be where they are
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("data", "benchmarks", "inference.py"):
        (clone / name).symlink_to(ROOT / name)
    for name, lines in (("train.en", 300), ("test.en", 9), ("test.de", 9)):
        text = (ROOT / "data" / "sample" / name).read_text(encoding="utf-8").splitlines(True)
        (clone / name).write_text("".join(text[:lines]), encoding="utf-8")
    archives(clone / "archives", "wmt14-en-de")
    model = str(captions(folder / "captions"))
    assert (
        convert_main(["marian", model, "--output", str(clone / "Helsinki-NLP" / "opus-mt-en-de")])
        == 0
    )
    return folder


def blocks(page: str, kinds: str) -> list[tuple[str, str]]:
    """The fenced blocks of these kinds, with their kinds."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```({kinds})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.integration
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/translate.md",
        "docs/serve.md",
        "docs/speed-up.md",
        pytest.param("docs/wmt14.md", marks=pytest.mark.fairseq),
    ],
)
def test_every_command_of_a_page(page: str, place: Path) -> None:
    script = "".join(
        code if kind == "sh" else f"python - <<'PYTHON'\n{code}PYTHON\n"
        for kind, code in blocks(page, "sh|python")
    )
    if "git clone" not in script:
        script = f"cd specdec\n{script}"
    for large, small in {**SMALL, "8080": str(free_port()), "8081": str(free_port())}.items():
        script = script.replace(large, small)
    path = f"{place / 'programs'}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "-eu", "-o", "pipefail", "-c", script]
    told = run(*words, cwd=place, PATH=path, PYTHON=warm_python(), ROOT=str(ROOT)).stdout
    for _, lines in blocks(page, "text"):
        assert lines.strip() in told
