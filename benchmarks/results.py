"""A finished run, as table, plots and bars ask about it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_plugins.errors import UserError

Figures = dict[str, Any]  # of one cell
Record = dict[str, Any]  # of one run
Setting = tuple[int, int]  # threads, batch


class Results:
    """A record as it is asked about by table, plots and bars."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cells: list[Figures] = record["cells"]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises UserError where the file is not what a run has written."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return cls(record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not a result of this harness ({type(error).__name__}: {error}); "
                "name the JSON file that python -m benchmarks has written."
            ) from error

    @property
    def settings(self) -> list[Setting]:
        """(threads, batch) in the order of the run."""
        return list(dict.fromkeys((cell["threads"], cell["batch"]) for cell in self.cells))

    @property
    def threads(self) -> int:
        """The largest number that was measured."""
        return max(threads for threads, _ in self.settings)

    def at(self, threads: int, batch: int) -> list[Figures]:
        """The cells of one setting, in the order of the rows."""
        return [c for c in self.cells if (c["threads"], c["batch"]) == (threads, batch)]

    def find(
        self,
        setting: Setting,
        engine: str,
        role: str,
        dtype: str,
        options: Mapping[str, Any] | None = None,
    ) -> Figures | None:
        """One cell of a setting, or None where it was not measured."""
        wanted = (engine, role, dtype, dict(options or {}))
        for cell in self.at(*setting):
            row = cell["row"]
            if (row["engine"], row["role"], row["dtype"], row["options"]) == wanted:
                return cell
        return None

    def fastest(self, setting: Setting, engine: str, role: str, dtype: str) -> Figures | None:
        """An engine's best cell, with whatever options, or None where it was not measured."""
        found = self.find_all(setting, engine, role, dtype)
        return min(found, key=lambda cell: statistics.median(cell["seconds"]), default=None)

    def find_all(self, setting: Setting, engine: str, role: str, dtype: str) -> list[Figures]:
        """The cells of a setting, whatever their options."""
        wanted = (engine, role, dtype)
        rows = [(cell, cell["row"]) for cell in self.at(*setting)]
        return [c for c, row in rows if (row["engine"], row["role"], row["dtype"]) == wanted]


def ratios(cell: Figures, baseline: Figures) -> list[float]:
    """How many times faster than the baseline, run by run."""
    pairs = zip(cell["seconds"], baseline["seconds"], strict=True)
    return [theirs / own for own, theirs in pairs]


def spread(values: Sequence[float], unit: str = "x", digits: int = 2) -> str:
    """The median, and from where to where."""
    middle = f"{statistics.median(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"
