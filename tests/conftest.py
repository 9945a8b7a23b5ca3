"""What holds for every test."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.formats.pretrained.toys import small_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: at the end one process would wait for the other."""
    items.sort(key=lambda item: item.path.name not in ("test_wheel.py", "test_accelerator.py"))


def pytest_collection_finish() -> None:
    """Decoding makes many objects that stay; to look through them took up to half of the time."""
    gc.set_threshold(20_000, 50, 50)


@pytest.fixture(autouse=True)
def _loggers_stay_on() -> Iterator[None]:
    """Logging is the process's: who leaves it off silences the tests that come after."""
    before = logging.root.manager.disable
    yield
    assert logging.root.manager.disable == before, "this test left logging disabled"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small random models of transformers, by their names in `folders.SMALL`."""
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("small")
    return cache(lambda name: small_model(place / name, name))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For networks so small that threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
