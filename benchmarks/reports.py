"""What every comparison writes: tables in Markdown, a record in JSON, and how it was made."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import shown

Record = dict[str, Any]  # as JSON holds it: of one system, or of a whole comparison
Columns = Mapping[str, Callable[[Any], str]]  # by title, what stands there of a row


def table(columns: Columns, rows: Iterable[Any]) -> str:
    """Markdown with aligned columns: names to the left, figures to the right."""
    lines = [list(columns), *([say(row) for say in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    padded = [
        [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]  # one a column
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def number(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.2f}"


def spread(values: Sequence[float], unit: str = "x", digits: int = 2) -> str:
    """The median, and from where to where."""
    middle = f"{statistics.median(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(baseline: Sequence[float], own: Sequence[float]) -> list[float]:
    """How many times faster than the baseline, repetition by repetition."""
    return [theirs / mine for theirs, mine in zip(baseline, own, strict=True)]


def command(*program: str) -> str:
    """This process's command line, as a reader can type it."""
    return shlex.join([*program, *map(shown, sys.argv[1:])])


def write(output: str, record: Record, page: str) -> None:
    """OUTPUT.json and OUTPUT.md."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    Path(f"{output}.json").write_text(text + "\n", encoding="utf-8")
    Path(f"{output}.md").write_text(page + "\n", encoding="utf-8")
