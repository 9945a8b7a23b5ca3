"""The device of these tests: a GPU, or what DEVICE names, a simulated accelerator or the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import pytest
import torch

from tests.bundles import ROOT

NAME = os.environ.get("DEVICE") or ("cuda" if torch.cuda.is_available() else "")
SIMULATED = NAME == "simulated"
DTYPES = ("float32",) if SIMULATED else ("float32", "float16", "bfloat16")


class Device(NamedTuple):
    name: str
    entered: Callable[[], AbstractContextManager[None]]  # in which its tensors can be made


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "gpu"):
            item.add_marker("gpu")
            if not NAME:
                item.add_marker(pytest.mark.skip("torch sees no GPU; DEVICE=simulated needs none"))


@pytest.fixture(scope="session")
def device() -> Device:
    if not SIMULATED:
        return Device(NAME, nullcontext)
    from tests.gpu.accelerator import KIND, accelerator

    return Device(KIND, accelerator)


@pytest.fixture(scope="session")
def lines() -> list[str]:
    """English sentences, short ones first."""
    samples = (ROOT / "data/samples/en-de.tsv").read_text(encoding="utf-8").splitlines()
    return sorted((line.split("\t")[0] for line in samples), key=len)
