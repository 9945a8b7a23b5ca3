"""scripts/setup.sh, with a scripted pip in place of the package registry."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import run

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent
KERNELS = "specdec_plugins/decoding/networks/cpu"
TOOLS = "bash cat dirname flock grep mkdir pwd rm sha256sum tail tee cp"

# Stands for the Python of the virtual environment: writes down what pip was asked for, and offers
# the build of torch that the file "offer" (or "offer.index", with an index named) says.
VENV_PYTHON = """#!{bash}
here="{folder}"
case "$*" in
  *"pip --version"*|*ensurepip*) exit 0 ;;
  *"import fairseq"*) [[ ! -f "$here/old.fairseq" ]]; exit ;;
  *"pip"*uninstall*) echo "removed $*" >> "$here/calls" ;;
  *"pip"*freeze*) echo numpy==1; cat "$here/has.torch" 2>/dev/null ;;
  *--report*)
    echo "asked $*" >> "$here/calls"
    offer="$here/offer"; [[ "$*" != *--index-url* ]] || offer="$here/offer.index"
    [[ -f "$offer" ]] || exit 1
    cp "$offer" .venv/torch.json ;;
  *"pip"*"install"*)
    echo "installed $*" >> "$here/calls"
    [[ ! -f "$here/broken" || "$*" != *$(<"$here/broken")* ]] || {{
      echo "no such package"; exit 1; }} ;;
  *) exec {python} "$@" ;;
esac
"""
BASE_PYTHON = """#!{bash}
if [[ "$1 $2" == "-m venv" ]]; then
  mkdir -p "$3/bin" && cp "{folder}/venv-python" "$3/bin/python"
elif [[ "$1" == --version ]]; then echo "Python of $0"
elif [[ "$1" == - ]]; then {{ echo '{pretence}'; cat; }} | {python} -
fi
"""
PRETENCE = """
import sys, sysconfig
sys.version_info = ({version}, 0)
sysconfig.get_path = lambda name: "{headers}"
if {no_venv}:
    sys.modules["ensurepip"] = None
"""


class Machine:
    """A folder with a copy of the project's set-up and a PATH that holds what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.project / "scripts").mkdir(parents=True)
        for name in ("constraints.txt", "setup.py", "scripts/setup.sh"):
            shutil.copy(ROOT / name, self.project / name)
        shutil.copytree(ROOT / KERNELS, self.project / KERNELS)
        for tool in TOOLS.split():
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.script("venv-python", VENV_PYTHON, folder)

    def script(self, name: str, text: str, folder: Path | None = None, **values: object) -> None:
        path = (folder or self.bin) / name
        values |= {"bash": shutil.which("bash"), "folder": self.folder, "python": sys.executable}
        path.write_text(text.format(**values))
        path.chmod(0o755)

    def add_python(
        self, name: str, version: str, no_venv: bool = False, headers: bool = True
    ) -> None:
        (self.folder / "Python.h").touch()
        place = self.folder if headers else self.folder / "none"
        version = version.replace(".", ", ")
        pretence = PRETENCE.format(version=version, no_venv=no_venv, headers=place)
        self.script(name, BASE_PYTHON, pretence=pretence)

    def add_compiler(self) -> None:
        self.script("c++", "#!{bash}\n")

    def offer(self, *needs: str, index: bool = False) -> None:
        """Let pip offer a torch with these requirements; ``index``: on PyTorch's own index."""
        report = {"install": [{"metadata": {"requires_dist": list(needs)}}]}
        (self.folder / ("offer.index" if index else "offer")).write_text(json.dumps(report))

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "calls").write_text("")
        return subprocess.run(
            [str(self.project / "scripts/setup.sh")],
            env={"PATH": str(self.bin), "HOME": str(self.folder), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def passes(self, **environment: str) -> str:
        """What a set-up prints that succeeds."""
        result = self.setup(**environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def fails(self, **environment: str) -> str:
        """What a set-up says that fails."""
        result = self.setup(**environment)
        assert result.returncode == 1
        return result.stderr

    def calls(self, kind: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(kind)]

    def torch_install(self) -> str:
        (call,) = [c for c in self.calls("installed") if re.search(r"torch={2,3}\d", c)]
        return call


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """A machine on which a set-up passes, taking torch from pip's own configuration."""
    machine.add_python("python3.12", "3.12")
    machine.offer("filelock")
    return machine


def refusal(machine: Machine, **environment: str) -> str:
    (sentence,) = machine.fails(**environment).splitlines()
    assert not machine.calls("installed")
    return sentence


def test_every_unfit_python_is_named_with_its_fault(machine: Machine) -> None:
    assert "no python at all" in refusal(machine)
    machine.add_python("python3", "3.10")
    machine.script("python3.12", "#!{bash}\nexit 127\n")
    machine.add_python("python3.11", "3.11", no_venv=True)
    sentence = refusal(machine)
    assert "python3 is Python 3.10" in sentence
    assert "python3.12 does not run" in sentence
    assert "apt-get install python3.11-venv" in sentence


BOTH = {"python3": "3.13", "python3.12": "3.12"}


@pytest.mark.parametrize(
    ("versions", "without_headers", "chosen"),
    [
        (BOTH, "", "python3.12"),
        (BOTH, "python3.12", "python3"),
        (BOTH, "python3 python3.12", "python3.12"),
        ({"python3.11": "3.11", "python": "3.12"}, "", "python"),
        ({"python3": "3.12"}, "python3", "python3"),
        ({"python3.11": "3.11", "python3.14": "3.14"}, "", "python3.14"),
    ],
)
def test_312_is_taken_where_it_has_its_headers_and_another_else(
    machine: Machine, versions: dict[str, str], without_headers: str, chosen: str
) -> None:
    machine.offer("filelock")
    for name, version in versions.items():
        machine.add_python(name, version, headers=name not in without_headers.split())
    assert f"making .venv with Python of {machine.bin / chosen}\n" in machine.passes()


@pytest.mark.parametrize("given", ["/no/such/python", "python3"])
def test_unfit_python_given(ready: Machine, given: str) -> None:
    ready.add_python("python3", "3.15")
    assert f"PYTHON={given} " in refusal(ready, PYTHON=given)


@pytest.mark.parametrize(("fault", "text"), [("broken", "fairseq-fixed"), ("old.fairseq", "")])
def test_without_fairseq_the_rest_is_installed(ready: Machine, fault: str, text: str) -> None:
    """Where it does not build, and where it cannot be imported."""
    (ready.folder / fault).write_text(text)
    said = ready.passes()
    assert "fairseq could not be installed" in said
    assert "setup: .venv is ready" in said
    (call,) = [c for c in ready.calls("installed") if "--editable" in c]
    assert ".[prepare,serve,ray,bench,dev]" in call
    assert ready.calls("removed")
    ready.add_compiler()  # another reason to try
    (ready.folder / fault).unlink()
    assert "could not" not in ready.passes()
    (call,) = [c for c in ready.calls("installed") if "--editable" in c]
    assert ".[train,serve,ray,bench,dev]" in call


def test_an_environment_of_the_user_is_left_alone(ready: Machine) -> None:
    mine = ready.project / ".venv/mine"
    mine.parent.mkdir()
    mine.touch()
    assert "was not made by this script" in refusal(ready)
    assert mine.exists()


def test_second_run_has_nothing_to_do(ready: Machine) -> None:
    ready.passes()
    assert ready.calls("installed")
    assert ready.passes() == ""
    assert not ready.calls("")


def test_kernels_that_were_not_compiled_are_built_once_there_is_a_compiler(ready: Machine) -> None:
    for built in (ready.project / KERNELS).glob("_kernels.*"):
        built.unlink()
    said = ready.passes()
    assert "kernels for CPUs were not compiled" in said
    assert "apt-get install g++" in said
    assert not ready.passes()
    ready.add_compiler()
    (ready.project / KERNELS / "_kernels.so").touch()
    assert "not compiled" not in ready.passes()
    assert any("--editable" in call for call in ready.calls("installed"))


def test_changed_versions_are_installed_and_a_moved_project_is_set_up_anew(ready: Machine) -> None:
    ready.passes()
    with (ready.project / "constraints.txt").open("a") as file:
        file.write("six==1.17.0\n")
    assert "making .venv" not in ready.passes()
    assert any("--editable" in call for call in ready.calls("installed"))
    ready.project = ready.project.rename(ready.folder / "elsewhere")
    assert "making .venv" in ready.passes()


def test_failed_step_shows_its_end_and_is_continued(ready: Machine) -> None:
    (ready.folder / "broken").write_text("--editable")
    said = ready.fails()
    assert "no such package" in said
    assert "setup.log" in said
    packages = ready.project / ".venv/lib/python3.12/site-packages"
    for name in ("half-1.dist-info", "whole-1.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.dist-info/RECORD").touch()
    (ready.folder / "broken").unlink()
    assert "making .venv" not in ready.passes()
    # What was installed by half is forgotten.
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


PYTORCH, MIRROR = "https://download.pytorch.org/whl/cpu", "https://mirror.example/cpu"
GPU = "nvidia-cudnn-cu13==9"


@pytest.mark.parametrize(
    ("offered", "is_indexed", "environment", "index", "num_asked"),
    [
        (["filelock"], False, {}, None, 1),
        (["filelock", GPU], True, {}, PYTORCH, 2),
        (["filelock", "cuda-toolkit==13"], True, {}, PYTORCH, 2),
        ([GPU], False, {}, None, 2),  # a GPU build, since nothing else is in reach
        (["filelock"], False, {"TORCH_INDEX_URL": MIRROR}, MIRROR, 0),
    ],
)
def test_torch_comes_from_where_a_cpu_build_is(
    ready: Machine,
    offered: list[str],
    is_indexed: bool,
    environment: dict[str, str],
    index: str | None,
    num_asked: int,
) -> None:
    """is_indexed: PyTorch's index is in reach."""
    ready.offer(*offered)
    if is_indexed:
        ready.offer("filelock", index=True)
    assert ("several GB" in ready.passes(**environment)) == (offered == [GPU])
    assert re.findall(r"--index-url (\S+)", ready.torch_install()) == ([index] if index else [])
    assert len(ready.calls("asked")) == num_asked


def test_torch_that_is_there_is_kept_whatever_its_build(ready: Machine) -> None:
    pin = re.search(r"^torch==.*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin
    (ready.folder / "has.torch").write_text(pin[0] + "+cpu\n")
    ready.passes()
    assert not ready.calls("asked")
    (ready.folder / "has.torch").write_text(pin[0] + "1+cpu\n")
    (ready.project / ".venv/setup.stamp").unlink()
    ready.passes()
    assert ready.torch_install()


def test_a_gpu_gets_the_build_without_suffix_and_fairseq_no_cuda_home(ready: Machine) -> None:
    ready.script("nvidia-smi", "#!{bash}\necho GPU 0: some GPU\n")
    stub = ready.folder / "venv-python"
    text = stub.read_text().replace('"installed $*"', '"installed $* home=${CUDA_HOME:-none}"')
    stub.write_text(text)
    ready.passes(CUDA_HOME="/usr/local/cuda")
    assert re.search(r"torch===\d", ready.torch_install())
    (call,) = [c for c in ready.calls("installed") if "fairseq-fixed" in c]
    assert "--no-build-isolation" in call
    assert call.endswith("home=none")


def test_every_requirement_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    text = (ROOT / "setup.py").read_text()
    required = {name.lower() for name in re.findall(r'"([A-Za-z][\w-]*)[>=]=', text)}
    assert len(required) > 10
    assert required <= pinned


def test_make_without_a_target_says_what_there_is() -> None:
    said = run("make", "-C", ROOT).stdout
    for target in ("demo", "test", "check", "format"):
        assert f"make {target} " in said
