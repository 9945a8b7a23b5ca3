"""What a figure depends on besides the code: machine, versions, commit; this process's memory."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from specdec_plugins.app import report

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "fairseq-fixed", "ctranslate2", "transformers", "numpy", "sacrebleu")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def describe(device: str) -> dict[str, str | int]:
    """Machine, versions and commit of this run."""
    facts: dict[str, str | int] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "commit": _commit(),
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def in_words(facts: Mapping[str, str | int]) -> str:
    """What `describe` found, in a line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _processor() -> str:
    return _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _field(path: Path, name: str) -> str | None:
    """The first value of that name in a file of /proc; None on systems without it."""
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = "+changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def place() -> str:
    """The machine in a few words, for people."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{len(os.sched_getaffinity(0))} CPU cores"


def shown(argument: str) -> str:
    """An argument as a reader can use it: paths relative to the checkout, or the name alone.

    The name where it lies outside. An argument may be two paths with a comma between them.
    """
    return ",".join(_relative(part) for part in argument.split(","))


def _relative(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    relative = os.path.relpath(path)
    return path.name if relative.startswith(os.pardir) else relative


def reset_peak_memory(device: str) -> None:
    """Count from now. Where the system cannot forget a peak, it goes on from the start."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")  # resets VmHWM, see proc(5)


def peak_memory(device: str) -> int:
    """Bytes since `reset_peak_memory`: of torch's tensors on a GPU, else of the whole process."""
    found = _status("VmHWM") if device == "cpu" else None
    return report.peak_memory(torch.device(device)) if found is None else found


def memory_now(device: str) -> int:
    """Bytes now, of the same kind; 0 where nobody can say."""
    return torch.cuda.memory_allocated() if device == "cuda" else _status("VmRSS") or 0


def _status(name: str) -> int | None:
    """Bytes, see proc(5); None on systems without it."""
    found = _field(_STATUS, name)
    return None if found is None else int(found.split()[0]) * 1024
