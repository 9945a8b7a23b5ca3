"""Commands while they start: ctrl-C, and standard streams that somebody has closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_plugins.errors import BAD_INPUT, INTERRUPTED, TERMINATED
from tests.bundles import ROOT
from tests.programs import python, talking_to

# An import that is slow, and that swallows an interrupt as some of torch's do.
SLOW_TORCH = """\
import sys, time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException:
    sys.exit("swallowed")
"""
# Runs `main` of work.py.
WORK = "import sys; from specdec_plugins.errors import run_program; sys.exit(run_program('work'))"


def _calling(module: str, function: str, *words: str) -> str:
    return (
        f"import sys; from {module} import {function}; sys.argv[1:1] = {list(words)}; "
        f"sys.exit({function}())"
    )


COMMANDS: dict[str, list[object]] = {
    "inference.py": [ROOT / "inference.py"],
    "specdec serve": ["-c", _calling("specdec_plugins.cli", "main", "serve")],
    "specdec translate": ["-c", _calling("specdec_plugins.cli", "main", "translate")],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_during_a_slow_import_ends_without_a_word(command: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    paths = f"{tmp_path}:{ROOT}"
    with talking_to(sys.executable, *COMMANDS[command], PYTHONPATH=paths) as (process, _, out):
        assert out.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (INTERRUPTED, b"")


def work(
    folder: Path, program: str, prepare: Callable[[], object] = lambda: None
) -> tuple[int, bytes, bytes]:
    """Status, output and messages of a program `work`. prepare: is called in its process."""
    (folder / "work.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        env={"PYTHONPATH": f"{folder}:{ROOT}"},
        preexec_fn=prepare,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def heed() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_stays_ignored_in_a_background_job(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    program = "import torch\ndef main(): return 7\n"
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    assert work(tmp_path, program, ignore)[0] == 7


@pytest.mark.parametrize("when", ["before", "behind"])
def test_ctrl_c_outside_of_a_commands_own_guard(when: str, tmp_path: Path) -> None:
    """At the end of the interpreter a Python handler would print a traceback."""
    ended = {"before": "ctrl_c()", "behind": "atexit.register(ctrl_c) and 3"}[when]
    program = (
        "import atexit, os, signal\n"
        "def ctrl_c(): os.kill(os.getpid(), signal.SIGINT)\n"
        f"def main(): return {ended}\n"
    )
    assert work(tmp_path, program, heed) == (INTERRUPTED if when == "before" else 3, b"", b"")


@pytest.mark.parametrize(
    "turned",
    [
        "",
        *(
            f"    except BaseException: raise {error}('damaged') from None\n"
            for error in ("ValueError", "UserError")
        ),
    ],
)
@pytest.mark.parametrize(("first", "status"), [("SIGINT", INTERRUPTED), ("SIGTERM", TERMINATED)])
def test_a_second_ctrl_c_does_not_cut_off_what_the_first_ends(
    first: str, status: int, turned: str, tmp_path: Path
) -> None:
    """Nor does code in C that turns the first into an error of its own hide it."""
    program = (
        "import atexit, os, signal\n"
        "from specdec_plugins.errors import UserError, run_command\n"
        "def stop(name): os.kill(os.getpid(), getattr(signal, name))\n"
        "def work():\n"
        f"    try: stop('{first}')\n{turned}"
        "    finally: stop('SIGINT'); print('closed', flush=True)\n"
        "def main():\n"
        "    atexit.register(stop, 'SIGINT')\n"
        "    return run_command('work', work, False, 'interrupted.')\n"
    )
    assert work(tmp_path, program, heed) == (status, b"closed\n", b"work: interrupted.\n")


def test_a_closed_standard_error_costs_the_messages_alone(tmp_path: Path) -> None:
    program = "from specdec_plugins.errors import refuse\n"
    program += "def main(): return refuse('work', 'bad')\n"
    assert work(tmp_path, program, lambda: os.close(2))[0] == BAD_INPUT


# The packages of the extra `serve` but for one, by which lines are split into sentences.
WEB = ["fastapi", "fastapi_offline", "prometheus_client", "pydantic", "starlette", "uvicorn"]


def run_without(packages: list[str], command: str, *flags: object, expect: int) -> str:
    """What a command says that cannot import these packages, nor, unless it succeeds, a model."""
    lines = [
        "import sys",
        "class Absent:",
        "    def find_spec(name, *_):",
        f"        if name in {packages}: raise ModuleNotFoundError('absent', name=name)",
        "sys.meta_path.insert(0, Absent)",
    ]
    if expect:
        lines.append("import specdec_plugins.serving.model as model")
        lines.append("model.load_parts = lambda *_: sys.exit('loaded')")
    words = [*lines, COMMANDS[command][1]]
    return python("-c", "\n".join(map(str, words)), *flags, expect=expect).stderr


def test_files_are_translated_without_the_packages_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("Two dogs run. A girl eats.\n")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    run_without(WEB, "specdec translate", *files, expect=0)
    assert (tmp_path / "out").read_text().count(".") == 2


@pytest.mark.parametrize(
    ("command", "package"), [("specdec translate", "sentencex"), ("specdec serve", "uvicorn")]
)
def test_a_missing_extra_is_named_before_a_model_is_loaded(command: str, package: str) -> None:
    told = run_without([package], command, expect=BAD_INPUT)
    assert told.startswith(f"{command}: error: {package} is not installed; it comes with the extra")
    assert told.count("\n") == 1
    extra = "text" if package == "sentencex" else "serve"
    assert f"pip install '.[{extra}]'" in told
