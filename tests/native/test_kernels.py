"""The kernels without Python: kernels.cpp, compiled and run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from specdec_plugins.decoding.networks.cpu import ops

SOURCES = Path(ops.__file__).parent


FLAGS = ["-std=c++17", "-O1", "-fopenmp", "-ffp-contract=fast", f"-I{SOURCES}"]
ARM = "aarch64-linux-gnu-g++"
EMULATED = {"max": ["i8mm", "dotprod", "neon", "plain"], "cortex-a72": ["neon", "plain"]}


def compiled(compiler: str, folder: Path, *flags: str) -> Path:
    program, own = folder / "kernels", Path(__file__).with_name("kernels.cpp")
    words = [compiler, *FLAGS, *flags, own, SOURCES / "sets.cpp", "-o", program]
    subprocess.run(words, check=True)
    return program


def sets_tested(*words: object) -> list[str]:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout.split()


def test_each_kernel_of_each_instruction_set(tmp_path: Path) -> None:
    assert sets_tested(compiled("g++", tmp_path)) == ops.instruction_sets()


@pytest.mark.skipif(
    not (shutil.which(ARM) and shutil.which("qemu-aarch64-static")),
    reason="needs a cross compiler and an emulator: g++-aarch64-linux-gnu, qemu-user-static",
)
def test_each_kernel_of_emulated_arm_processors(tmp_path: Path) -> None:
    program = compiled(ARM, tmp_path, "-static")
    for processor, sets in EMULATED.items():
        assert sets_tested("qemu-aarch64-static", "-cpu", processor, program, "some") == sets
