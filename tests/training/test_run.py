"""The commands that train: what the environment and their scripts give them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from specdec_plugins.training import run

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_the_environment_gives_defaults_and_flags_go_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"LR": "2e-3", "BATCH_TOKENS": "64", "WORKERS": "", "CPU": "1"}.items():
        monkeypatch.setenv(name, value)
    args = run.drafter_parser().parse_args(["--batch-tokens", "32"])
    assert (args.lr, args.batch_tokens, args.workers, args.cpu) == (2e-3, 32, None, True)


@pytest.mark.parametrize(
    ("script", "name"), [("train.sh", "drafter"), ("train-verifier.sh", "verifier")]
)
def test_the_interpreter_that_is_named_runs_it(script: str, name: str) -> None:
    flags = ["--lr", "1", "--python", "echo", "--", "--python", "other"]
    environment = {**os.environ, "PYTHON": "false"}
    done = subprocess.run([SCRIPTS / script, *flags], capture_output=True, text=True,
                          check=True, env=environment)  # fmt: skip
    assert done.stdout.split() == ["-m", "specdec_plugins.training.run", name, *flags]
