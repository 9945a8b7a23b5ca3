"""Output of every comparison: Markdown tables, a JSON record, the command and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "fairseq-fixed", "ctranslate2", "transformers", "numpy", "sacrebleu")

Record = dict[str, Any]  # as JSON holds it: of one system, or of a whole comparison
Columns = Mapping[str, Callable[[Any], str]]  # by title, the cell of a row


def table(columns: Columns, rows: Iterable[Any]) -> str:
    """Markdown with aligned columns: names to the left, figures to the right."""
    lines = [list(columns), *([say(row) for say in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    padded = [
        [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]  # one per column
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def number(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.2f}"


def spread(values: Sequence[float], unit: str = "x", digits: int = 2) -> str:
    """The median, and the range in brackets."""
    middle = f"{statistics.median(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def write(output: str, record: Record, page: str) -> None:
    """OUTPUT.json and OUTPUT.md."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(f"{output}.json").write_text(text + "\n", encoding="utf-8")
    Path(f"{output}.md").write_text(page + "\n", encoding="utf-8")


def command() -> str:
    """This process's command line, as a reader can type it."""
    words = list(map(shown, sys.argv[1:]))
    program = ["specdec"] if words[:1] == ["bench"] else ["python", "-m", "benchmarks"]
    return shlex.join([*program, *words])


def shown(argument: str) -> str:
    """An argument for a report: a path from the working directory, or its name if outside.

    An argument may be two paths separated by a comma.
    """
    return ",".join(_relative(part) for part in argument.split(","))


def _relative(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    relative = os.path.relpath(path)
    return path.name if relative.startswith(os.pardir) else relative


def describe(device: str) -> dict[str, str | int]:
    """Machine, versions and commit of this run."""
    processor = field_of(Path("/proc/cpuinfo"), "model name") or platform.processor()
    facts: dict[str, str | int] = {
        "processor": processor or platform.machine(),
        # It decides which library multiplies matrices in CTranslate2: MKL on Intel, else oneDNN.
        "vendor": field_of(Path("/proc/cpuinfo"), "vendor_id") or "unknown",
        "cores": os.cpu_count() or 0,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "commit": commit_of(ROOT),
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


def commit_of(checkout: str | Path) -> str:
    """The short commit, and whether there are changes; "unknown" where git does not know."""
    told = ("--always", "--exclude=*", "--abbrev=10", "--dirty=+changes")  # as short in any clone
    with suppress(OSError, subprocess.CalledProcessError):
        asked = ["git", "-C", str(checkout), "describe", *told]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


def place() -> str:
    """The machine in a few words, for people."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{len(os.sched_getaffinity(0))} CPU cores"


def field_of(path: Path, name: str) -> str | None:
    """The first value of that name in a file of /proc; None on systems without it."""
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
