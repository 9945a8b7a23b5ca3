"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _loggers_stay_on() -> Iterator[None]:
    """Logging is the process's: who leaves it off silences the tests that come after."""
    before = logging.root.manager.disable
    yield
    assert logging.root.manager.disable == before, "this test left logging disabled"
