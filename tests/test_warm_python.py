"""The interpreter that starts warm does what Python does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm_python import warm_python

PROGRAM = """\
import atexit, os, signal, sys, tool
print(sys.argv[1:], os.getcwd(), os.environ["WORD"], input(), tool.__file__, __name__, flush=True)
atexit.register(print, "last")
end = sys.argv[1]
if end == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
elif end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(end) if end.isdecimal() else end)
"""


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    """Also where the tests were started in the background, whose processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("end", ["0", "3", "a message", "interrupt", "kill"])
@pytest.mark.parametrize("way", [["program.py"], ["-m", "program"]])
def test_it_is_python(way: list[str], end: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "tool.py").touch()
    told = []
    for python in (sys.executable, warm_python()):
        done = subprocess.run(
            [python, *way, end, "-x"],
            cwd=tmp_path,
            env={"WORD": "so", "PYTHONPATH": str(tmp_path / "beside")},
            input="a line\n",
            capture_output=True,
            text=True,
            check=False,
        )
        told.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert told[0] == told[1]
    assert told[0][0] == {"0": 0, "3": 3, "a message": 1, "interrupt": -2, "kill": -9}[end]
    assert told[0][1].startswith(f"{[end, '-x']} {tmp_path} so a line")


def test_what_it_was_not_made_for_goes_to_python_itself() -> None:
    words = [warm_python(), "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


def test_ctrl_c_reaches_the_fork(tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    words, pipe = [warm_python(), str(tmp_path / "sleep.py")], subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        subprocess.run(["kill", "-INT", "--", f"-{process.pid}"], check=True)
        _, told = process.communicate()
    assert b"KeyboardInterrupt" in told
    assert process.returncode == -signal.SIGINT
