"""What `make wheel` builds passes `tests/wheel.py`, without the checkout and without fairseq."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from specdec_plugins.formats.bundle import DEFAULT
from tests.bundles import ROOT, WITHOUT_FAIRSEQ
from tests.programs import run

TRY = (
    "-I",
    "-m",
    "pytest",
    "-q",
    "--noconftest",
    "--import-mode=importlib",
    ROOT / "tests/wheel.py",
)


@pytest.mark.integration
def test_a_wheel_is_whole(tmp_path: Path) -> None:
    clutter = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build", ".*", "runs")
    for name in ("specdec_plugins", "data/models"):
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=clutter)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "Makefile"):
        shutil.copy(ROOT / name, tmp_path / "source")
    made = ["make", "-C", tmp_path / "source", "wheel", "--assume-old=setup"]
    run(*made, f"PY={sys.executable}")
    (wheel,) = (tmp_path / "source" / "wheels").glob("specdec-*-manylinux_*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[2] for name in names if "/bundles/" in name and name[-1] != "/"} == {
        DEFAULT
    }
    assert not any("libgomp" in name for name in names)  # torch has it

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    python = tmp_path / "environment" / "bin" / "python"
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    # The packages of the tests in place of downloads.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "sitecustomize.py").write_text(WITHOUT_FAIRSEQ)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    run(*pip, "--no-deps", "--ignore-installed", wheel)
    run(python, *TRY, cwd=tmp_path)
    (kernels,) = packages.glob("specdec_plugins/decoding/networks/cpu/_kernels.*")
    kernels.unlink()
    run(python, *TRY, "-k", "installed_with_its_kernels", cwd=tmp_path, expect=1)
