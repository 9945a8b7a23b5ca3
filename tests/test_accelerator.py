"""What runs on a GPU runs on a device that is not the CPU, where there is no GPU either."""

from __future__ import annotations

import sys

from tests.programs import run


def test_the_tests_for_gpus_pass_on_a_simulated_one() -> None:
    """In a process of its own: a device is registered with torch for good."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/gpu", "-m", "gpu and not integration"]
    done = run(*command, DEVICE="simulated")
    assert " passed" in done.stdout
