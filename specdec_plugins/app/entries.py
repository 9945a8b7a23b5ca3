"""The files that belong to one run, read side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from specdec_plugins.app.files import STANDARD, FileOptions, Line, open_input, read_lines
from specdec_plugins.app.types import Sentence
from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Entry:
    """One line of the input and what stands beside it."""

    sentence: Sentence
    training_target: str | None = None  # for a diagnosis


@contextmanager
def open_entries(files: FileOptions) -> Iterator[Iterator[Entry]]:
    """The input's lines with their prefixes and training targets, read as they are asked for.

    Raises UserError where a file is missing or empty, and later where a line is no UTF-8 or the
    files differ in length.
    """
    with ExitStack() as stack:
        streams = [
            read_lines(stack.enter_context(open_input(path)), _name(path)) for path in files.inputs
        ]
        yield _entries(files, streams)


def _entries(files: FileOptions, streams: list[Iterator[Line]]) -> Iterator[Entry]:
    for lines in _in_step([_name(path) for path in files.inputs], streams):
        beside = dict(zip(files.inputs[1:], (line.text for line in lines[1:]), strict=True))
        text, prefix = lines[0].text, beside.get(files.prefix_file or "")
        if files.prefix_column:
            text, _, column = text.partition("\t")
            prefix = column or None
            if column and "\t" in column:
                raise UserError(
                    f"{lines[0].where}: has more than two columns; --prefix-column expects the "
                    "sentence, a tab, and its target prefix."
                )
        sentence = Sentence(lines[0].number, text, prefix or None, lines[0].where)
        yield Entry(sentence, beside.get(files.diagnose_targets or ""))


def _in_step(names: list[str], streams: list[Iterator[Line]]) -> Iterator[list[Line]]:
    """One line of each file at a time; raises UserError where one ends before another."""
    while True:
        lines = [next(stream, None) for stream in streams]
        present = [line for line in lines if line is not None]
        if not present:
            return
        if len(present) < len(lines):
            short = names[lines.index(None)]
            raise UserError(
                f"{short}: has {present[0].number - 1} lines, fewer than {present[0].file}; "
                "the files must have a line each for every sentence."
            )
        yield present


def _name(path: str) -> str:
    return "standard input" if path == STANDARD else path
