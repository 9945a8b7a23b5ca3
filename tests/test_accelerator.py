"""Decoding and training keep to the device that they are given: run on one that is not the CPU."""

from __future__ import annotations

import json

import pytest

from tests import fairseq_checkpoints
from tests.accelerator_runs import DECODINGS, OTHERS, TWO_DICTIONARIES
from tests.programs import python

pytestmark = pytest.mark.fairseq


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    one = fairseq_checkpoints.translating_pair(tmp_path_factory.mktemp("one"))
    two = fairseq_checkpoints.translating_pair(tmp_path_factory.mktemp("two"), target_symbols=35)
    fairseq_checkpoints.assistant(two / "assistant", target_symbols=35)
    done = python("-m", "tests.accelerator_runs", one, two)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", [*DECODINGS, *TWO_DICTIONARIES, *OTHERS])
def test_run(name: str, failures: dict[str, str | None]) -> None:
    assert failures[name] is None, failures[name]
