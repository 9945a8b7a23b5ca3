"""Interrupts and resumes long work, for every command of this project.

- ``write_json``, as ``written_whole`` of ``formats/output.py``: a file that exists is complete.
- ``Runner`` of ``steps.py``: steps that are done once, and never over what others have made.
- ``content``: what a file or folder holds, wherever it is.
- ``Log``: an append-only file of results, for work whose every part should be kept.
- ``locked``: one run at a time in a folder.
- ``Watch``: time, without that for which a process was stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from specdec_plugins.errors import UserError, require, telling
from specdec_plugins.formats.output import lock, lock_lines, written_whole


def write_json(path: Path, value: Any) -> None:
    with written_whole(path) as part:
        part.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged; remove it and run the command again") from error


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first name, in alphabetical order, under which two mappings differ; None: they agree."""
    return next((k for k in sorted({*before, *now}) if before.get(k) != now.get(k)), None)


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value after a round trip through JSON, so that a tuple equals its list."""
    return dict(json.loads(json.dumps(dict(value))))


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content. Raises UserError if it cannot be read."""
    with telling(path, "cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(path: Path, most: int = 64 << 20) -> str:
    """A hash of a file's size and content; of a file above `most` bytes, of 64 parts of it.

    They lie at even distances, the first and last bytes among them: weights that were trained
    further differ everywhere. Raises UserError if the file cannot be read.
    """
    size_of_part = most // 64
    with telling(path, "cannot be read"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = hashlib.sha256(str(size).encode())
        every: Sequence[int] = range(0, size, size_of_part)
        spread = [i * (size - size_of_part) // 63 for i in range(64)]
        for start in every if size <= most else spread:
            file.seek(start)
            found.update(file.read(size_of_part))
        return found.hexdigest()


def content(path: Path) -> str:
    """A hash of what a file holds, or a folder's files but hidden ones and Markdown."""
    if path.is_file():
        return content_hash(path)
    inner = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
    told = (
        f"{name} {content_hash(path / name)}\n"
        for name in inner
        if name.suffix != ".md" and not any(part.startswith(".") for part in name.parts)
    )
    return hashlib.sha256("".join(told).encode()).hexdigest()


@contextmanager
def written_together(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yields temporary names, all of which are renamed when the block ends without an error."""
    with leaving_nothing_empty(path.parent for path in paths), ExitStack() as stack:
        yield [stack.enter_context(written_whole(path)) for path in paths]


@contextmanager
def leaving_nothing_empty(folders: Iterable[Path]) -> Iterator[None]:
    """If the block fails, remove those folders and parents that it created and left empty.

    Folders that existed before the block stay, empty or not.
    """
    new = {path for folder in folders for path in (folder, *folder.parents) if not path.exists()}
    try:
        yield
    except BaseException:
        for path in sorted(new, reverse=True):  # inner ones first
            with suppress(OSError):  # not made, or not empty
                path.rmdir()
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second run out of ``folder``.

    The lock ends with this process and the programs to which it left it (``steps``).

    If the block fails before it has written anything, a new folder is removed again.
    """
    with leaving_nothing_empty([folder]), _lock_file(folder) as path:
        try:
            yield
        except BaseException:
            if list(folder.iterdir()) == [path]:
                path.unlink()
            raise


@contextmanager
def _lock_file(folder: Path) -> Iterator[Path]:
    path = folder / ".lock"
    while True:
        with telling(folder, "cannot be written", "; give another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            require(
                lock(file.fileno()),
                f"{folder}: another run is writing here; wait for it, or give another folder",
            )
            # Programs that this one starts may keep the lock, so that it outlasts a killed process.
            os.set_inheritable(file.fileno(), True)
            # A run that failed may have removed the file between open and lock.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield path
                return


class Watch:
    """The time since it was made, but at most ten times what the processor worked for this process:
    more passes only while ctrl-Z or SIGSTOP stop it.
    """

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        began, used = self._began
        return min(time.monotonic() - began, 10 * (time.process_time() - used))


class Log:
    """Append-only log, so that long measurements resume: JSON lines, the first of which holds the
    settings that all entries depend on.

    An incomplete last line, of a run that was killed while writing, is dropped.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """about: settings that a resuming run must share, JSON-serialisable.

        Raises UserError if the file is of a run with other settings, or cannot be read or written.
        """
        self.path = path
        self.entries: list[Any] = []
        about = as_json(about)
        with telling(path, "cannot be written"):
            if path.exists():
                self._read(about)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(about) + "\n", encoding="utf-8")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs from adding to it. Raises UserError where one does."""
        with self.path.open("rb") as file:
            lock_lines(file.fileno(), self.path)
            yield

    def add(self, entry: Any) -> None:
        """Append an entry; it is in the file when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.entries.append(entry)

    def remove(self) -> None:
        """Delete the log, once all is done and the result is written."""
        self.path.unlink(missing_ok=True)

    def _read(self, about: Mapping[str, Any]) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            begun, *self.entries = map(json.loads, whole.splitlines())
            unlike = first_difference(begun, about)
        except (ValueError, TypeError) as error:
            raise UserError(f"{self.path}: damaged; delete it to start over") from error
        if unlike is not None:
            raise UserError(
                f"{self.path}: was started with a different value of {unlike}; use the same value, "
                "or delete the file to start over"
            )
        if len(whole) < len(data):
            self.path.write_bytes(whole)
