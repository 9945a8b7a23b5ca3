"""The kernels without Python: kernels.cpp, compiled and run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from specdec_plugins.decoding.networks.cpu import ops

SOURCES = Path(ops.__file__).parent


def test_each_kernel_of_each_instruction_set(tmp_path: Path) -> None:
    program, own = tmp_path / "kernels", Path(__file__).with_name("kernels.cpp")
    flags = ["-std=c++17", "-O1", "-fopenmp", "-ffp-contract=fast", f"-I{SOURCES}"]
    subprocess.run(["g++", *flags, own, SOURCES / "sets.cpp", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split() == ops.instruction_sets()
