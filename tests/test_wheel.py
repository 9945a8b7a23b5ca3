"""scripts/wheel.sh: a wheel translates where there is nothing else; the rest of it on scripts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import wheels
from scripts.wheels import COMMAND, Steps
from specdec_plugins.errors import BAD_INPUT, UserError
from tests.bundles import ROOT, WITHOUT_FAIRSEQ, captions
from tests.programs import run
from tests.refusals import told

BASH = shutil.which("bash")
TRY = ("-I", ROOT / "scripts" / "try_wheel.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the tests' own Python."""
    folder = tmp_path_factory.mktemp("wheel")
    source = wheels.copy_sources(folder / "source")
    if not (source / "data" / "models" / "en-de").exists():
        captions(source / "data" / "models" / "en-de")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*build, "--wheel-dir", folder, source)
    shutil.rmtree(source)
    (found,) = folder.glob("*.whl")
    return found


def environment(folder: Path, wheel: Path) -> tuple[Path, Path]:
    """With that wheel, and the packages of the tests in place of downloads; its own packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    run(*pip, "--no-deps", "--ignore-installed", wheel)
    return python, packages


@pytest.mark.integration
def test_a_wheel_is_whole(wheel: Path, tmp_path: Path) -> None:
    assert wheels.strange_instructions(wheel, tmp_path / "kernels") == []
    python, packages = environment(tmp_path / "environment", wheel)
    bare = wheels.bare(tmp_path / "environment")
    (packages / "sitecustomize.py").write_text(WITHOUT_FAIRSEQ)
    done = run(python, *TRY, cwd=tmp_path, **bare)
    first, kernels, decoded, served = done.stdout.splitlines()
    assert first == "no compiler, no fairseq"
    assert kernels.endswith("plain")
    assert "Klicken Sie auf die Schaltfläche" in decoded
    assert served.startswith("served 2 requests with native kernels")

    with_compiler = {**bare, "PATH": os.environ["PATH"]}
    assert "is on the PATH" in run(python, *TRY, cwd=tmp_path, expect=1, **with_compiler).stderr
    (kernels_file,) = packages.glob(f"{wheels.KERNELS}/_kernels.*")
    kernels_file.unlink()
    said = run(python, *TRY, cwd=tmp_path, expect=1, **bare).stderr
    assert said == "try_wheel.py: the kernels are not in the wheel.\n"
    (packages / "sitecustomize.py").unlink()
    assert "fairseq is importable" in run(python, *TRY, cwd=tmp_path, expect=1, **bare).stderr


DISASSEMBLED = """
0000000000001000 <specdec::avx2::multiply(float const*)>:
    1000:\tvmulps %ymm0,%ymm1,%ymm2
0000000000001010 <specdec::plain::multiply(float const*)>:
    1010:\tmulps  %xmm0,%xmm1
    1014:\tcall   1000 <vtable>
0000000000001020 <std::vector<int>::push_back(int const&)>:
    1020:\tvmovdqu (%rsi),%xmm0
    1024:\tvmovdqu %xmm0,(%rdi)
0000000000001030 <specdec::ranked(int)>:
    1030:\tvzeroupper
"""


def test_instructions_of_one_processor_are_found() -> None:
    sets = wheels.own_sets()
    assert {"avx2", "avx512", "amx"} <= set(sets)
    assert "plain" not in sets
    found = list(wheels.beyond_every_processor(DISASSEMBLED.splitlines(), sets))
    assert found == ["std::vector<int>::push_back(int const&)", "specdec::ranked(int)"]


def program(path: Path, *answer: object) -> str:
    """A Python that says this of itself."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{BASH}\necho '{json.dumps(answer)}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_that_will_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Python.h").touch()
    header, none = str(tmp_path / "Python.h"), str(tmp_path / "include" / "Python.h")
    first, second = tmp_path / "first", tmp_path / "second"
    program(first / "python3.12", "3.12", "base", none, True)
    program(second / "python3", "3.11", "base3.11", header, True)
    monkeypatch.setenv("PATH", f"{first}:{second}")
    found, left_out = wheels.find_pythons(None)
    assert found == {"3.11": "base3.11"}
    (fault,) = left_out
    assert f"{first}/python3.12: has no headers, as {none} is missing" in fault
    program(second / "python3.12", "3.12", "base3.12", header, True)
    assert wheels.find_pythons(None) == ({"3.11": "base3.11", "3.12": "base3.12"}, [])
    (second / "python3.12").unlink()
    (first / "python3.12").write_text("#!/none\n")
    assert wheels.find_pythons(None)[1] == [f"{first}/python3.12: does not run"]
    (first / "python3.12").unlink()
    assert wheels.find_pythons(None)[1] == ["Python 3.12: none is on the PATH"]
    given = [program(second / "a", "3.9", "a", header, True), str(second / "nowhere")]
    given += [program(second / "b", "3.11", "b", header, False)]
    found, left_out = wheels.find_pythons(given)
    assert found == {}
    assert [fault.partition(": ")[2].partition(" (")[0] for fault in left_out] == [
        "has no venv module", "is Python 3.9, not 3.11 or 3.12", "does not run",
    ]  # fmt: skip


class Scripted(Steps):
    """Notes commands in place of running them; each succeeds as `answers` says in turn."""

    def __init__(self, folder: Path, *answers: bool) -> None:
        super().__init__("Python 3.12", folder)
        self.asked: list[str] = []
        self.answers = list(answers)

    def succeed(self, title: str, command: Sequence[Any], env: Any = None) -> bool:
        self.asked.append(" ".join(map(str, command)))
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [((False,), "auditwheel cannot be installed"), ((True, False), "auditwheel failed")],
)
def test_a_wheel_that_cannot_be_tagged_keeps_its_tag(
    answers: tuple[bool, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "specdec-linux_x86_64.whl"
    assert wheels.tagged(Scripted(tmp_path, *answers), wheel) == wheel
    assert f"{reason}, so specdec-linux_x86_64.whl keeps its tag" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("needs", "looks"), [(["numpy"], [False]), (["nvidia-cublas==1", "numpy"], [False, True])]
)
def test_torch_is_built_for_the_cpu_where_it_can_be_had(
    needs: list[str], looks: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """looks: whether each question was about PyTorch's own index."""
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    report = {"install": [{"metadata": {"requires_dist": needs}}]}
    (tmp_path / "torch.json").write_text(json.dumps(report))
    steps = Scripted(tmp_path, True, False)
    assert wheels.torch_index(steps, ["pip", "install"]) == []
    assert [wheels.CPU_INDEX in words for words in steps.asked] == looks
    monkeypatch.setenv("TORCH_INDEX_URL", "file:///index")
    assert wheels.torch_index(steps, ["pip"]) == ["--index-url", "file:///index"]


def test_a_failed_step_says_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps("Python 3.12", tmp_path)
    assert (
        steps.run("speaking", ["bash", "-c", "echo $CXX; echo much"], {"CXX": "x"}) == "x\nmuch\n"
    )
    with pytest.raises(UserError, match=r"Python 3\.12: compiling failed"):
        steps.run("compiling", ["bash", "-c", "echo no such file; exit 3"])
    assert capsys.readouterr().err == "no such file\n"


def test_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(steps: Steps, python: str) -> Path:
        (steps.folder / "half").write_text("made")
        raise UserError("Python 3.12: trying it failed.")

    monkeypatch.setattr(wheels, "find_pythons", lambda given: ({"3.12": "python"}, []))
    monkeypatch.setattr(wheels, "make_wheel", fail)
    flags = ["--output", str(tmp_path / "wheels"), "--work", str(tmp_path / "work")]
    said = told(capsys, COMMAND.run, flags)
    assert said == "wheel.sh: error: Python 3.12: trying it failed.\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["work"]
    monkeypatch.setattr(wheels, "find_pythons", lambda given: ({}, ["python3.12: does not run"]))
    assert COMMAND.run(flags) == BAD_INPUT
    assert "no Python can build a wheel" in capsys.readouterr().err


def test_the_compiler_is_asked_for_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(UserError, match="objdump is not on the PATH"):
        COMMAND("--output", tmp_path / "wheels")
    assert not (tmp_path / "wheels").exists()
