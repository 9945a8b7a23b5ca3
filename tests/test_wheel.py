"""The built package translates with the bundled pair, wherever it is unpacked."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bundles import ROOT, WITHOUT_FAIRSEQ, captions
from tests.programs import run

PROGRAM = """
from specdec_plugins.formats.bundle import default_bundle
from specdec_plugins.app.translator import SpeculativeTranslator
print(default_bundle())
print(*SpeculativeTranslator.from_pretrained(device="cpu").translate(["Two dogs run."]))
"""


@pytest.mark.integration
def test_a_wheel_brings_its_models(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "specdec_plugins", source / "specdec_plugins")
    shutil.copytree(ROOT / "data" / "models", source / "data" / "models")
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    if not (source / "data" / "models" / "en-de").exists():
        captions(source / "data" / "models" / "en-de")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*build, "--wheel-dir", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    shutil.rmtree(source)
    program = WITHOUT_FAIRSEQ + PROGRAM
    path = str(tmp_path / "unpacked")
    done = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=path)
    place, translation = done.stdout.splitlines()
    assert place == str(tmp_path / "unpacked" / "specdec_plugins" / "bundles" / "en-de")
    assert "Hunde" in translation
