"""Lines of files: strict reading, resuming, and the options that name the files."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from select import select
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm

from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus import reading
from specdec_plugins.corpus.cli import check, option
from specdec_plugins.corpus.resume import as_json, first_difference, write_json
from specdec_plugins.errors import UserError, require, telling
from specdec_plugins.formats.output import (
    STANDARD,
    check_output,
    check_unlocked,
    is_file,
    is_same_place,
)

T = TypeVar("T")

_LONGEST_LINE = 16 * 2**20  # bytes; the Bible has a third of that


class Arriving(Iterator[bytes]):
    """The lines of a descriptor, with their ends, as they arrive.

    Of one that is longer than any may be, the beginning comes at once, without an end.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._part: list[bytes] = []  # of a line whose end has not arrived
        self._num_bytes = 0  # of that
        self._is_open = True

    def __next__(self) -> bytes:
        while not self._lines and self._is_open:
            self._read()
        if not self._lines:
            raise StopIteration
        return self._lines.popleft()

    def is_awaited(self) -> bool:
        """Whether neither the next line nor the end of the input has arrived yet."""
        while not self._lines and self._is_open and select([self._fd], [], [], 0)[0]:
            self._read()
        return self._is_open and not self._lines

    def _read(self) -> None:
        data = os.read(self._fd, 1 << 16)
        *ended, part = data.split(b"\n")
        for line in ended:
            self._lines.append(b"".join([*self._part, line, b"\n"]))
            self._part, self._num_bytes = [], 0
        self._part.append(part)
        self._num_bytes += len(part)
        self._is_open = bool(data)
        if self._num_bytes > (_LONGEST_LINE if data else 0):  # the last line has no end
            self._lines.append(b"".join(self._part))


@contextmanager
def open_input(path: str) -> Iterator[Arriving]:
    """The lines of a file, or of standard input for '-'.

    Raises UserError if the file is missing or unreadable, or standard input is closed.
    """
    if path == STANDARD:
        require(sys.stdin is not None, "standard input is closed; name a file to read.")
        yield Arriving(sys.stdin.fileno())
        return
    with telling(path, "cannot be read", "; check the name."):
        file = open(path, "rb", 0)  # noqa: SIM115 - closed below, opened where errors are caught
    with file:
        yield Arriving(file.fileno())


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[Sentence]:
    """Decode line by line. Only a newline ends a line; a carriage return before it belongs to it.

    Raises UserError with the number of a line that is not UTF-8 text, or for a file of other kind.
    """
    for number, raw in enumerate(stream, 1):
        if number == 1:
            reading.check_beginning(raw, name)
        told = f"{name}, line {number}: longer than {_LONGEST_LINE >> 20} MiB, so it is not "
        require(len(raw) <= _LONGEST_LINE, f"{told}a line of text; divide it.")
        try:
            text = reading.decoded(raw)
        except ValueError as error:
            raise UserError(
                f"{name}, line {number}: {error}; convert the file, for example with iconv."
            ) from error
        if number == 1:
            text = text.removeprefix("\ufeff")  # byte order mark
        text = text.removesuffix("\n")
        end = "\r" if text.endswith("\r") else ""
        yield Sentence(number, text.removesuffix(end), where=f"{name}, line {number}", end=end)


def in_buffers(
    items: Iterable[T], size: int, is_awaited: Callable[[], bool] = lambda: False
) -> Iterator[list[T]]:
    """Consecutive lists of `size` items; shorter at the end, or if the next item `is_awaited`."""
    buffer = list[T]()
    for item in items:
        buffer.append(item)
        if len(buffer) == size or is_awaited():
            yield buffer
            buffer = []
    if buffer:
        yield buffer


def count_lines(path: str) -> int:
    """Number of complete lines of a file, which a resumed run may keep; 0 if it is missing."""
    return reading.count_lines(Path(path)) if os.path.exists(path) else 0


def is_typed(path: str) -> bool:
    """Whether an input is typed at a terminal."""
    return path == STANDARD and sys.stdin is not None and sys.stdin.isatty()


def progress_bar(path: str, shown: bool | None, done: int = 0, total: int | None = None) -> Any:
    """A bar over the lines of an input. shown: None = at a terminal, unless they are typed there.

    Without a total they are counted, if that does not consume them.
    """
    shown = False if shown is None and is_typed(path) else shown
    is_counted = shown is not False and path != STANDARD and os.path.isfile(path)
    return tqdm(
        total=count_lines(path) if is_counted and total is None else total,
        initial=done,
        unit="line",
        file=sys.stderr,
        disable=None if shown is None else not shown,
    )


def check_places(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raises UserError if an output cannot be written, or is an input as well, or is being
    written.
    """
    stdin, stdout = ("/dev/stdin", "/dev/stdout")  # which the shell may have led to files
    inputs = [stdin if path == STANDARD and os.path.isfile(stdin) else path for path in inputs]
    for output in outputs:
        if output == STANDARD:
            require(sys.stdout is not None, "standard output is closed; name a file to write.")
            is_input = os.path.isfile(stdout) and any(is_same_place(stdout, p) for p in inputs)
            told = "standard output goes to an input, which would grow as it is read; write to "
            require(not is_input, f"{told}another file.")
            continue
        check_output(output, inputs=inputs)
        check_unlocked(output)


_beside = partial(option, group="forced beginnings, and long lines")
_file = partial(option, group="files")
_report = partial(option, group="reports (standard error)")


@dataclass(frozen=True)
class FileOptions:
    """Input and output files, and reports about them."""

    # fmt: off
    REMOVED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--hint-file", "--hint-column"),
            "--drafter block drafts faster than hints did; omit it"),
        "--diagnose": "the summary has acceptance by position and time by part; omit it",
        "--diagnose-targets": "targets of specdec distill and specdec drafter are the verifier's",
        "--prefix-column": "give the prefixes in a file of their own, with --prefix-file",
    }

    prefix_file: str | None = _beside(None, "line n is what the translation of line n must begin "
        "with, in the form of the input", "FILE")
    input_path: str = _file(STANDARD, "UTF-8 lines; '-', the default: standard input", "FILE",
        flags=("--input-path", "--input"))
    output_path: str = _file(STANDARD, "'-', the default: standard output", "FILE",
        flags=("--output-path", "--output", "-o"))
    json_path: str | None = _file(None, "a JSON line for each line: id, text, tokens and score "
        "(not through a server), rounds, drafted, accepted and emitted tokens a round, finish "
        "reason, milliseconds; of a beam search n_best, with the log-probability of each token",
        "FILE")
    buffer_size: int = _file(1000, "lines that are read, sorted by length, decoded and written "
        "together (default: 1000); fewer if no more have arrived, from a pipe or a terminal",
        "LINES", least=1)
    resume: bool = _file(False, "continue an interrupted output: keep its complete lines and skip "
        "as many lines of the input. OUTPUT.resume, beside an unfinished output, records the input "
        "and settings and is checked; without it only the lines are counted")
    progress: bool | None = _report(None, "show a progress bar (default: at a terminal)")
    quiet: bool = _report(False, "print no summary")
    debug: bool = _report(False, "show where an error was raised")
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        for flag, path in (("--output-path", self.output_path), ("--json-path", self.json_path)):
            require(
                not (self.resume and path == STANDARD),
                f"--resume continues a file; give {flag} a file name, not {STANDARD!r}.",
            )
        require(
            self.json_path is None or not is_same_place(self.json_path, self.output_path),
            "--json-path and --output-path name the same place; give two different ones.",
        )
        require(
            self.json_path is None
            or not is_same_place(self.json_path, record_of(self.output_path)),
            "--json-path: a run keeps its own record in OUTPUT.resume; give another name.",
        )
        require(
            self.inputs.count(STANDARD) <= 1,
            "Only one of --input-path and --prefix-file can be standard input.",
        )

    @property
    def outputs(self) -> list[str]:
        """Files to write line by line, the translations first."""
        return [path for path in (self.output_path, self.json_path) if path is not None]

    @property
    def inputs(self) -> list[str]:
        """Files to read in parallel, the sentences first."""
        return [path for path in (self.input_path, self.prefix_file) if path is not None]


def record_of(output: str) -> str:
    """Where an output's unfinished run is recorded."""
    return f"{output}.resume"


def name_of(path: str) -> str:
    return "standard input" if path == STANDARD else path


class Sentences(Iterator[Sentence]):
    """The input's lines, joined with those of the parallel files and read lazily."""

    def __init__(self, joined: Iterator[Sentence], streams: Sequence[Arriving]) -> None:
        self._joined = joined
        self._streams = streams

    def __next__(self) -> Sentence:
        return next(self._joined)

    def is_awaited(self) -> bool:
        """Whether some line of the next sentence has not arrived yet."""
        return any(stream.is_awaited() for stream in self._streams)


@contextmanager
def open_sentences(files: FileOptions) -> Iterator[Sentences]:
    """Raises UserError if a file is missing; the sentences if a line is not UTF-8, or the files
    differ in length.
    """
    with ExitStack() as stack:
        names = [name_of(path) for path in files.inputs]
        streams = [stack.enter_context(open_input(path)) for path in files.inputs]
        lines = [read_lines(*pair) for pair in zip(streams, names, strict=True)]
        joined = (
            replace(line, prefix=(beside[0].text if beside else "") or None)
            for line, *beside in _in_step(names, lines)
        )
        yield Sentences(joined, streams)


def _in_step(
    names: Sequence[str], streams: Sequence[Iterator[Sentence]]
) -> Iterator[Sequence[Sentence]]:
    """One line of each file at a time. Raises UserError if one file ends before another."""
    for number, lines in enumerate(zip_longest(*streams)):
        if None in lines:
            short = names[lines.index(None)]
            longer = next(name for name, line in zip(names, lines, strict=True) if line)
            raise UserError(
                f"{short}: has {number} lines, fewer than {longer}; "
                "each file must have one line for every sentence."
            )
        yield lines


class Journal:
    """`OUTPUT.resume`: an output's progress and origin; removed when the output is complete.

    It is written after the lines that it counts, so the output holds at least as many. An output
    that is not a regular file, such as a pipe or a device, has no journal.
    """

    def __init__(
        self, output_path: str, origin: Mapping[str, Mapping[str, Any]], advice: str = ""
    ) -> None:
        """origin: of `loading.origin`; advice: as of `LineWriter`."""
        self.output_path = output_path
        self._advice = advice
        self.lines = 0  # of the input, read so far
        self._hash = hashlib.sha256()  # of these lines
        self._path = Path(record_of(output_path)) if is_file(output_path) else None
        self._origin = as_json(origin)
        self._recorded: dict[str, Any] | None = None

    @property
    def exists(self) -> bool:
        """Whether a run on this output has not finished.

        Raises UserError if another file has the record's place, which may even be an input.
        """
        return self._load() is not None

    def _load(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            found["origin"] = {name: dict(found["origin"][name]) for name in ("values", "contents")}
            int(found["lines"]), str(found["input"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._path}: is damaged, or not the record of a run; move it away (--resume "
                "then goes by the number of lines alone), or name another output."
            ) from error
        return found

    def read(self, complete_lines: int) -> bool:
        """Check the journal against an output of so many lines; False if there is no journal.

        Raises UserError if the output cannot be continued with these settings.
        """
        recorded = self._load()
        if recorded is None:
            return False
        values, contents = recorded["origin"]["values"], recorded["origin"]["contents"]
        now = self._origin["values"]
        if (flag := first_difference(values, now)) is not None:
            was, given = (_told(flag, found.get(flag)) for found in (values, now))
            raise UserError(
                f"{self.output_path}: was started with {was}, not {given}; use the same settings, "
                "or start without --resume."
            )
        if (role := first_difference(contents, self._origin["contents"])) is not None:
            raise UserError(
                f"{self.output_path}: was started with other contents of the {role}; give the same "
                "model, or start without --resume."
            )
        if complete_lines < (lines := int(recorded["lines"])):
            raise UserError(
                f"{self.output_path}: holds {complete_lines} complete lines (its JSON lines "
                f"counted as well), but {lines} were written; start without --resume."
            )
        self._recorded = recorded
        return True

    def skip(self, sentences: Iterator[Sentence], num_lines: int) -> None:
        """Skip the sentences whose translations the output holds already.

        Raises UserError if there are fewer of them, or if they differ from those recorded.
        """
        self._count(islice(sentences, num_lines))
        require(
            self.lines == num_lines,
            f"The output holds {num_lines} lines and the input only {self.lines}, so the output "
            "is from another input; start without --resume.",
        )

    def record(self, sentences: Iterable[Sentence]) -> None:
        """Record atomically that the output now holds these, too.

        Raises UserError if the record cannot be written; an earlier one is left as it was.
        """
        self._count(sentences)
        if self._path is None:
            return
        lines = {"lines": self.lines, "input": self._hash.hexdigest()}
        holds = f"; {self.output_path} holds {self.lines} complete lines{self._advice}."
        with telling(self._path, "cannot be written", holds):
            write_json(self._path, {**lines, "origin": self._origin})

    def _count(self, sentences: Iterable[Sentence]) -> None:
        """Raises UserError if the lines recorded came from another input."""
        for sentence in sentences:
            self.lines += 1
            self._hash.update(json.dumps([sentence.text, sentence.prefix]).encode())
            recorded = self._recorded
            require(
                not recorded
                or self.lines != recorded["lines"]
                or self._hash.hexdigest() == recorded["input"],
                f"{self.output_path}: its first {self.lines} lines came from another input; "
                "give the same input, or start without --resume.",
            )

    def remove(self) -> None:
        """Remove the journal of a complete output."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _told(flag: str, value: Any) -> str:
    """What a user has to type for this value."""
    if value is None or value is False or value == {}:
        return f"no {flag}"
    typed = value if isinstance(value, str) else json.dumps(value)
    return flag if value is True else f"{flag} {typed}"
