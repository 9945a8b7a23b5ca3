"""Lines in, lines out: strict reading, and writing that never leaves half a line behind."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from specdec_plugins.errors import UserError

STANDARD = "-"  # standard input or output, where a path is expected

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One line of a text file."""

    number: int  # from 1
    text: str  # without its line end
    file: str  # name of the file it stands in

    @property
    def where(self) -> str:
        return f"{self.file}, line {self.number}"


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file, or of standard input for '-'.

    Raises UserError where the file is missing, unreadable or empty; an empty pipe is no error.
    """
    if path == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, opened where its errors are caught
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the name.") from error
    with file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size == 0:
            raise UserError(f"{path}: is empty; expected one sentence a line.")
        yield file


def read_lines(stream: BinaryIO, name: str) -> Iterator[Line]:
    """Decode line by line; only a newline ends a line, a carriage return before it goes as well.

    Raises UserError naming the line that is not UTF-8 text.
    """
    for number, raw in enumerate(stream, 1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line is "
                f"0x{raw[error.start]:02x}); convert the file, for example with iconv."
            ) from error
        if "\0" in text:
            raise UserError(
                f"{name}, line {number}: holds a NUL character, so it is no text or UTF-16; "
                "convert the file to UTF-8, for example with iconv."
            )
        if number == 1:
            text = text.removeprefix("\ufeff")  # byte order mark
        yield Line(number, text.removesuffix("\n").removesuffix("\r"), name)


def in_buffers(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of `size` items, the last one shorter."""
    iterator = iter(items)
    while buffer := list(islice(iterator, size)):
        yield buffer


def count_lines(path: str) -> int:
    """Complete lines of a file, 0 where there is none: what a resumed run may keep."""
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def check_writable(path: str) -> None:
    """Raises UserError where an output could not be opened, before anything slow begins."""
    if path == STANDARD:
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise UserError(f"{path}: there is no folder {folder}; create it first.")
    target = Path(path) if os.path.exists(path) else folder
    if Path(path).is_dir():
        raise UserError(f"{path}: is a folder; give the name of a file to write.")
    if not os.access(target, os.W_OK):
        raise UserError(f"{path}: cannot be written; choose another place or change permissions.")


def refuse_same_file(input_path: str, output_path: str) -> None:
    """Raises UserError where writing would destroy what is being read."""
    if STANDARD in (input_path, output_path) or not os.path.exists(output_path):
        return
    if os.path.exists(input_path) and os.path.samefile(input_path, output_path):
        raise UserError(f"{output_path}: is an input as well; write to another file.")


class LineWriter:
    """Writes complete lines and hands them on at once.

    A write that fails or is interrupted is taken back as far as the last complete line, where the
    output is an ordinary file.
    """

    def __init__(self, path: str, keep: int = 0) -> None:
        """keep: lines of an existing file to leave as they are; what follows them is dropped."""
        self.path = path
        try:
            self._file = self._open(path, keep)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}).") from error
        self.is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    @staticmethod
    def _open(path: str, keep: int) -> BinaryIO:
        # Unbuffered: a second buffer could be flushed in the middle of a line.
        if path == STANDARD:
            return open(os.dup(sys.stdout.fileno()), "wb", buffering=0)  # type: ignore[return-value]
        if not keep:
            return open(path, "wb", buffering=0)  # type: ignore[return-value]
        with open(path, "rb") as kept:
            size = sum(len(line) for line in islice(kept, keep))
        file = open(path, "r+b", buffering=0)
        file.truncate(size)
        file.seek(size)
        return file  # type: ignore[return-value]

    def write(self, lines: Sequence[str]) -> None:
        """Append lines, each without its line end."""
        pending = memoryview("".join(f"{line}\n" for line in lines).encode("utf-8"))
        good = self._file.tell() if self.is_regular else 0
        done = 0
        try:
            while done < len(pending):
                done += self._file.write(pending[done:])
        except BrokenPipeError:
            raise
        except BaseException as error:
            if self.is_regular:
                self._take_back(good)
            if isinstance(error, OSError):
                raise UserError(
                    f"{self.path}: cannot be written ({error.strerror}); "
                    "what was written before is complete, --resume continues it."
                ) from error
            raise

    def _take_back(self, good: int) -> None:
        """Cut after the last complete line; `good` bytes are known to be complete lines."""
        end = os.fstat(self._file.fileno()).st_size
        with open(self.path, "rb") as written:
            written.seek(good)
            complete = written.read(end - good).rfind(b"\n") + 1
        self._file.truncate(good + complete)
        self._file.seek(good + complete)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
