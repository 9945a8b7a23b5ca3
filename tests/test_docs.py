"""The program in the documentation runs, and says what the documentation says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_python_example() -> None:
    done = subprocess.run(
        [sys.executable, "docs/example.py"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "Zwei Hunde spielen im Schnee."
    assert lines[1].startswith("  tokens Zwei Hunde ")
    assert sum(line.startswith("  so far: Ein Mann") for line in lines) == 2
    assert lines[-2] == "['Zwei', 'Hunde', 'laufen', '.']"
    assert lines[-1].endswith("tokens a round")
