"""Reads parallel text: TSV or two files; plain, .gz or .xz. Errors name file and line."""

from __future__ import annotations

import gzip
import lzma
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product, zip_longest
from pathlib import Path
from typing import BinaryIO, cast

from specdec_plugins.corpus.cli import logger
from specdec_plugins.errors import UserError, require, telling
from specdec_plugins.formats.text import fault_of

Pair = tuple[str, str]

# A part of a file, counted in lines from 1: FILE:100-200, FILE:-200, FILE:100-
_SPAN = re.compile(r"(?P<files>.+)(?P<span>:\d*-\d*)")

_UTF8_MARK = b"\xef\xbb\xbf"
# How files begin that are not plain UTF-8: what they are, and what makes text of them.
_OTHER_KINDS = (
    (rb"\xff\xfe|\xfe\xff", "UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    (rb"\x1f\x8b", "compressed by gzip; decompress it, for example with zcat"),
    (rb"\xfd7zXZ\0", "compressed by xz; decompress it, for example with xzcat"),
    (rb"BZh[1-9]1AY&SY", "compressed by bzip2; decompress it, for example with bzcat"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd; decompress it, for example with zstdcat"),
)


def split_item(item: str) -> tuple[list[str], str]:
    """The files that a user names as one corpus, existing or not, and the ``:FROM-TO`` or nothing
    behind them.
    """
    found = None if Path(item).is_file() else _SPAN.fullmatch(item)
    files = found["files"] if found else item
    return [files] if Path(files).is_file() else files.split(","), found["span"] if found else ""


@dataclass(frozen=True)
class ParallelFile:
    """One corpus, or some lines of it: a TSV (``target`` None), or two files of equal length.

    ``columns`` are the TSV's source and target column, counted from 1. None: the file has exactly
    two, source first. With columns given, a file may have more, the same number in each line.
    """

    source: Path
    target: Path | None = None
    columns: tuple[int, int] | None = None
    first: int = 1  # line
    last: int | None = None  # None: to the end
    given: str = ""  # as the user named it

    @classmethod
    def parse(cls, item: str, columns: tuple[int, int] | None = None) -> ParallelFile:
        """Parses ``FILE`` or ``SOURCE,TARGET``, with ``:FROM-TO`` at the end for a part.

        Raises UserError if a file does not exist or the part is empty.
        """
        sides, span = split_item(item)
        require(len(sides) < 3, f"{item}: expected one TSV file, or SOURCE_FILE,TARGET_FILE")
        for side in sides:
            what = "one side of a corpus" if sides[1:] else "a TSV, or two files with a comma"
            check_file(Path(side), f"a text file: {what}")
        paths = [Path(side).resolve() for side in sides]
        bounds = span[1:].split("-") if span else ("", "")
        first, last = int(bounds[0] or 1), int(bounds[1]) if bounds[1] else None
        if first < 1 or (last is not None and last < first):
            raise UserError(f"{item}: empty line range; lines count from 1, as in FILE:1-200")
        if len(paths) == 2:
            return cls(paths[0], paths[1], None, first, last, item)
        return cls(paths[0], None, columns, first, last, item)

    @property
    def paths(self) -> list[Path]:
        return [self.source] if self.target is None else [self.source, self.target]


def warn_of_repeats(train: Sequence[ParallelFile], held_out: Sequence[ParallelFile] = ()) -> None:
    """Say which lines are given twice for training, or also to be held out of it."""

    def same_lines(one: ParallelFile, other: ParallelFile) -> bool:
        firsts, lasts = (one.first, other.first), (one.last or math.inf, other.last or math.inf)
        return one.paths == other.paths and max(firsts) <= min(lasts)

    for one, other in combinations(train, 2):
        if same_lines(one, other):
            logger.warning("%s: given twice, so each of its pairs counts twice", other.given)
    for one, other in product(train, held_out):
        if same_lines(one, other):
            logger.warning(
                "%s: is both trained on and a dev or test set, whose scores then say nothing",
                other.given,
            )


@dataclass
class BadLines:
    """How bad lines are handled: refused (``skip`` False), or skipped with their pair and counted.

    ``can_skip``: whether the command has a flag for it, which the error message then names.
    """

    skip: bool = False
    can_skip: bool = False
    skipped: int = 0
    first: str = ""

    def report(self, sentence: str) -> None:
        if not self.skip:
            way_out = ", or skip such lines with --bad-lines skip" if self.can_skip else ""
            raise UserError(sentence + way_out)
        self.first = self.first or sentence
        self.skipped += 1

    def warn(self) -> None:
        """Say how many lines were skipped, if any."""
        if self.skipped:
            logger.warning("%d bad lines skipped; the first: %s", self.skipped, self.first)


def check_file(path: str | Path, expected: str, flag: str = "") -> None:
    """Raises UserError if there is no such file, or it is a folder."""
    found = "a folder" if Path(path).is_dir() else "no such file"
    require(Path(path).is_file(), f"{flag} {path}: {found}; expected {expected}".lstrip())


def open_bytes(path: Path) -> BinaryIO:
    """Open a plain, .gz or .xz file for reading bytes. Raises ``UserError`` if that fails."""
    with telling(path, "cannot be read"):
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        if path.suffix == ".xz":
            return cast(BinaryIO, lzma.open(path, "rb"))
        return path.open("rb")


def read_lines(path: Path, bad: BadLines) -> Iterator[str | None]:
    """The lines of a file without their ends; None for a bad line that ``bad`` skips.

    Only LF ends a line: other characters that Python treats as line ends occur inside sentences of
    web corpora, and would misalign the two sides. A byte-order mark and CRLF are repaired with a
    warning; NUL and broken UTF-8 make a bad line.
    """
    said: set[str] = set()  # repairs, each reported once per file
    number = 0
    with open_bytes(path) as file:
        try:
            for number, raw in enumerate(file, 1):  # noqa: B007 - used after the loop
                if number == 1:
                    check_beginning(raw, str(path))
                yield _decode(raw, f"{path}, line {number}", number == 1, said, bad)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, OSError) as error:
            raise UserError(
                f"{path}, after line {number}: damaged or not what its name says ({error}); "
                "download or compress it again"
            ) from error
    require(number > 0, f"{path}: empty; give a file with at least one line")


def check_beginning(raw: bytes, name: str) -> None:
    """Raises UserError if a file that begins so is compressed, or UTF-16."""
    for beginning, told in _OTHER_KINDS:
        require(re.match(beginning, raw) is None, f"{name}: {told}")


def _decode(raw: bytes, where: str, first: bool, said: set[str], bad: BadLines) -> str | None:
    repairs = []
    if first and raw.startswith(_UTF8_MARK):
        raw = raw[len(_UTF8_MARK) :]
        repairs.append("a byte-order mark is")
    raw = raw.removesuffix(b"\n")
    if raw.endswith(b"\r"):
        raw = raw.removesuffix(b"\r")
        repairs.append("line ends are CRLF; every CR is")
    for kind in repairs:
        if kind not in said:
            logger.warning("%s: %s removed", where, kind)
    said.update(repairs)
    try:
        return decoded(raw)
    except ValueError as error:
        bad.report(f"{where}: {error}; convert the file with iconv")
        return None


def decoded(raw: bytes) -> str:
    """The text of a line. Raises ValueError if it is not UTF-8 or holds NUL."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        raise ValueError(f"not UTF-8 (byte {at + 1} of the line is 0x{raw[at]:02x})") from error
    if fault := fault_of(text):
        raise ValueError(fault)
    return text


def read_pairs(corpus: ParallelFile, bad: BadLines) -> Iterator[Pair]:
    """The sentence pairs of one corpus, in order; an empty TSV line is a pair of empty strings."""
    pairs = (
        _read_tsv(corpus.source, corpus.columns, bad)
        if corpus.target is None
        else _read_two_sides(corpus.source, corpus.target, bad)
    )
    found = 0
    for found, pair in enumerate(islice(pairs, corpus.first - 1, corpus.last), 1):  # noqa: B007
        yield pair
    told = f"{corpus.given or corpus.source}: empty line range; the file has fewer lines"
    require(found > 0, told)


def _read_tsv(path: Path, columns: tuple[int, int] | None, bad: BadLines) -> Iterator[Pair]:
    source_at, target_at = (column - 1 for column in columns or (1, 2))
    expected = None if columns else 2
    for number, line in enumerate(read_lines(path, bad), 1):
        if line is None:
            continue
        if not line:
            yield "", ""
            continue
        cells = line.split("\t")
        if expected is None:
            expected = max(len(cells), source_at + 1, target_at + 1)
        if len(cells) != expected:
            bad.report(
                f"{path}, line {number}: expected {expected} columns separated by tabs, found "
                f"{len(cells)}; correct the line, or have specdec prepare read two columns of the "
                "file (--columns 1,2)"
            )
            continue
        yield cells[source_at], cells[target_at]


def _read_two_sides(source: Path, target: Path, bad: BadLines) -> Iterator[Pair]:
    # A bad line drops the line of the other side too, so both sides are read together.
    end = object()
    sides = zip_longest(read_lines(source, bad), read_lines(target, bad), fillvalue=end)
    for number, (left, right) in enumerate(sides):
        if left is end or right is end:
            shorter, longer = (source, target) if left is end else (target, source)
            raise UserError(
                f"{shorter} ends after line {number}, but {longer} continues; the two sides of a "
                "corpus must have the same number of lines"
            )
        if isinstance(left, str) and isinstance(right, str):
            yield left, right


def count_lines(path: Path) -> int:
    """The number of complete lines of a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
