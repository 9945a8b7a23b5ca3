"""The repository's programs, run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bundles import ROOT

Done = subprocess.CompletedProcess[str]


def run(*command: object, expect: int = 0, cwd: Path = ROOT, **variables: str) -> Done:
    """Wait for it; its status must be the expected one. Programs find the package by themselves."""
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def python(*command: object, expect: int = 0) -> Done:
    return run(sys.executable, *command, expect=expect)


def script(name: str, *arguments: object, cwd: Path, expect: int = 0, **variables: str) -> Done:
    """One of ``scripts/``, from another folder."""
    return run(ROOT / "scripts" / name, *arguments, cwd=cwd, expect=expect, **variables)
