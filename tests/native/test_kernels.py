"""The kernels without Python: kernels.cpp, compiled and run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from specdec_plugins.decoding.networks.cpu import ops

SOURCES = Path(ops.__file__).parent
FLAGS = ["-std=c++17", "-O1", "-fopenmp", "-ffp-contract=off", f"-I{SOURCES}"]
ARM = "aarch64-linux-gnu-g++"
# The second has only what its sets may use.
EMULATED = {"max": ["i8mm", "dotprod"], "cortex-a72": ["neon", "plain"]}


def compiled(compiler: str, folder: Path, *flags: str) -> Path:
    program, own = folder / compiler, Path(__file__).with_name("kernels.cpp")
    words = [compiler, *FLAGS, *flags, own, SOURCES / "sets.cpp", "-o", program]
    subprocess.run(words, check=True)
    return program


def digests_of(*words: object) -> dict[str, list[str]]:
    """By instruction set, best first: of products of floats, of those with weights stored in 8
    bits, and of all other results."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return {name: digests for name, *digests in map(str.split, done.stdout.splitlines())}


def require_same(found: dict[str, list[str]]) -> dict[str, str]:
    """The digests that all sets have to have; of weights stored in 8 bits, those that add up whole
    numbers, and those that have no products of bytes for it."""
    same = dict[str, set[str]]()
    for name, (floats, stored, rest) in found.items():
        same.setdefault("rest", set()).add(rest)
        if name != "plain":  # it rounds between a product of floats and its sum
            same.setdefault("floats", set()).add(floats)
            added = "floats" if name in ("avx2", "neon") else "whole numbers"
            same.setdefault(f"stored, {added}", set()).add(stored)
    assert all(len(digests) == 1 for digests in same.values()), found
    return {kind: digest for kind, (digest,) in same.items()}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("g++", tmp_path_factory.mktemp("native"))


def test_each_kernel_of_each_instruction_set(native: Path) -> None:
    found = digests_of(native)
    assert list(found) == ops.instruction_sets()
    require_same(found)


@pytest.mark.skipif(
    not (shutil.which(ARM) and shutil.which("qemu-aarch64-static")),
    reason="needs a cross compiler and an emulator: g++-aarch64-linux-gnu, qemu-user-static",
)
def test_each_kernel_of_emulated_arm_processors(native: Path, tmp_path: Path) -> None:
    expected = require_same(digests_of(native, 9))
    program = compiled(ARM, tmp_path, "-static")
    for processor, sets in EMULATED.items():
        found = digests_of("qemu-aarch64-static", "-cpu", processor, program, len(sets))
        assert list(found) == sets
        for kind, digest in require_same(found).items():  # this processor may have no such set
            assert expected.setdefault(kind, digest) == digest, kind
