"""Reads the tables of `lexicon/`; README.md says what their columns mean."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

TABLES = Path(__file__).resolve().parent.parent / "lexicon"
LISTS = {"types": ",", "objects": ",", "places": ",", "groups": ",",
         "en_forms": "/", "haben": "/", "sein": "/"}  # fmt: skip


class Row:
    """A line of a table: its columns are attributes, a column of LISTS a tuple."""

    def __init__(self, **cells: str) -> None:
        split = {k: tuple(v.split(LISTS[k])) if k in LISTS else v for k, v in cells.items()}
        self.__dict__.update(split)

    def is_any(self, wanted: tuple[str, ...]) -> bool:
        """Whether a noun has one of these types; its lemma counts as a type."""
        return self.en in wanted or not set(wanted).isdisjoint(self.types)


class Phrase(NamedTuple):
    """Text that both languages fix."""

    en: str
    de: str


NOTHING = Phrase("", "")


def words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@cache
def table(name: str) -> list[Row]:
    """All rows; a row of another width than the head is an error that names its line."""
    path = TABLES / f"{name}.tsv"
    with path.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(head):
            raise ValueError(
                f"{path}, line {number}: {len(row)} columns where the first line has {len(head)}; "
                "separate the columns by single tabs"
            )
    return [Row(**dict(zip(head, row, strict=True))) for row in rows]


@cache
def indexed(name: str) -> dict[str, Row]:
    """The rows by their column `key`."""
    return {row.key: row for row in table(name)}
