"""Decoding and training keep to the device that they are given: run on one that is not the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fairseq_checkpoints
from tests.accelerator_runs import DECODINGS, OTHERS, TWO_DICTIONARIES

pytestmark = pytest.mark.fairseq

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    one = fairseq_checkpoints.translating_pair(tmp_path_factory.mktemp("one"))
    two = fairseq_checkpoints.translating_pair(tmp_path_factory.mktemp("two"), target_symbols=35)
    fairseq_checkpoints.assistant(two / "assistant", target_symbols=35)
    command = [sys.executable, "-m", "tests.accelerator_runs", str(one), str(two)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", [*DECODINGS, *TWO_DICTIONARIES, *OTHERS])
def test_run(name: str, failures: dict[str, str | None]) -> None:
    assert failures[name] is None, failures[name]
