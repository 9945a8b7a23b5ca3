"""Output paths: checked before the work begins, and written atomically or by complete lines."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from pathlib import Path

from specdec_plugins.errors import UserError, require, telling

_OF_TRAINING = re.compile(r"checkpoint(\d+|_\d+_\d+|_last|_best|\.best_.+)\.pt")
STANDARD = "-"  # standard input or output, where a path is expected
_ADDED = ".lines.resume.1234567.part"  # as long as what programs add to the name of an output


def is_file(output: str) -> bool:
    """Whether an output is a regular file, or will be one; not a pipe, a device or '-'."""
    return output != STANDARD and (os.path.isfile(output) or not os.path.exists(output))


def is_same_place(path: str | Path, other: str | Path) -> bool:
    """Whether two paths name one file or folder, existing or not; links are followed."""
    if STANDARD in (path, other):
        return path == other
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def check_output(
    path: str | Path,
    flag: str = "",
    *,
    inputs: Iterable[str | Path | None],
    replaced: bool = False,
    folder: bool = False,
) -> None:
    """Raises UserError if an output cannot be written, or if writing it would destroy an input.

    Every program checks this before its work. flag: what the user gave the path with, for the
    message. inputs: what the program reads, wherever it is; None = not given. replaced: the file is
    written beside its place and renamed, as `save_checkpoint` does. folder: the output is a folder,
    all of which is written. In the last two cases missing folders are created; otherwise the file's
    folder must exist.
    """
    named = f"{flag} {path}".lstrip()
    try:
        os.stat(f"{path}{_ADDED}")
    except OSError as error:
        told = f"{named}: its name is too long; give a shorter one."
        require(error.errno != errno.ENAMETOOLONG, told)
    for given in inputs:
        if given is not None:
            _check_apart(path, named, given, folder)
    path = Path(path)
    _check_kind(path, named, folder)
    place = path if folder else path.parent
    if folder or replaced:
        place = next(p for p in (place.absolute(), *place.absolute().parents) if p.exists())
        is_possible = place.is_dir()
    else:
        require(place.is_dir(), f"{named}: there is no folder {place}; create it first.")
        is_possible = True
        place = path if path.exists() else place
    require(
        is_possible and os.access(place, os.W_OK),
        f"{named}: cannot be written; choose another place or change permissions.",
    )


def _check_kind(path: Path, named: str, folder: bool) -> None:
    """Raises UserError if something of another kind is there, or a checkpoint of a training."""
    if folder:
        is_other = path.exists() and not path.is_dir()
        require(not is_other, f"{named}: is a file; give the name of a folder.")
        return
    require(not path.is_dir(), f"{named}: is a folder; give the name of a file to write.")
    require(
        not (path.exists() and is_of_training(path)),
        f"{named}: belongs to the training in that folder, which would resume from it; choose "
        "another name.",
    )


def is_of_training(path: str | Path) -> bool:
    """Whether a file has the name of a checkpoint that fairseq writes while it trains."""
    return _OF_TRAINING.fullmatch(Path(path).name) is not None


def _check_apart(path: str | Path, named: str, given: str | Path, folder: bool) -> None:
    """Raises UserError if the output is this input, or the folder that it is in."""
    require(
        not is_same_place(given, path),
        f"{named}: is an input as well; write to another {'folder' if folder else 'file'}.",
    )
    above = (*Path(given).absolute().parents, *Path(os.path.realpath(given)).parents)
    require(
        not (folder and any(is_same_place(parent, path) for parent in above)),
        f"{named}: the input {given} is in this folder; write to another one.",
    )


def is_file_name(name: object) -> bool:
    """True for the name of a file in the folder of the file that mentions it."""
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..")


def temporary(path: Path) -> Path:
    """The name of ``path`` while it is being written (in the same file system)."""
    return path.with_name(f".{path.name}.part")


def remove(path: Path) -> None:
    """Remove a file, a folder or a link, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary name; renames it to ``path`` when the block ends without an error.

    ``path`` is a file, which keeps its permissions, or a folder. On any error its old content is
    restored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part, old = temporary(path), path.with_name(f".{path.name}.old")
    remove(part)
    try:
        yield part
        if path.is_dir():  # a folder cannot be renamed over another
            remove(old)
            path.rename(old)
        elif path.is_file():  # what others must not read stays so
            shutil.copymode(path, part)
        part.rename(path)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(path):
            old.rename(path)
        raise
    finally:
        remove(part)
    remove(old)


@contextmanager
def new_folder(folder: str | Path, marker: str, force: bool = False) -> Iterator[Path]:
    """Yields a temporary folder; renames it to ``folder`` when the block ends without an error.

    marker: a file that every folder of this kind holds. Raises UserError if the place is taken
    (unless, with `force`, by a folder of this kind) or cannot be written to.
    """
    folder = Path(folder)
    check_output(folder, inputs=(), folder=True)
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found and not force:
        raise UserError(f"{folder}: already exists; give another folder, or add --force.")
    others = [path.name for path in found if path.is_dir() or is_of_training(path)]
    if found and (folder / marker not in found or others):
        reason = f"holds {others[0]}" if others else f"lacks {marker}"
        raise UserError(
            f"{folder}: {reason}, so this program did not write it; give another folder."
        )
    try:
        with written_whole(folder) as made:
            made.mkdir()
            yield made
    except OSError as error:
        name = error.filename or folder
        raise UserError(f"{name}: {error.strerror or error}; nothing was written.") from error


def lock(fd: int) -> bool:
    """Keep other processes from locking an open file; False: one of them has locked it.

    The lock ends with the descriptor and its copies, so with the process, however it ends.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        # A file system without locks, as some clusters have; it can be written all the same.
    return True


def check_unlocked(path: str) -> None:
    """Raises UserError if another process is writing these lines: at once, not at the first write.

    A file that is not there yet, or cannot be read, passes.
    """
    if Path(path).is_file():
        with suppress(OSError), open(path, "rb") as file:
            lock_lines(file.fileno(), path)


def lock_lines(fd: int, path: str | Path) -> None:
    """Raises UserError if another process is writing these lines."""
    told = f"{path}: another run is writing it; wait for its end, or name another file."
    require(lock(fd), told)


class LineWriter(AbstractContextManager["LineWriter"]):
    """Writes complete lines, unbuffered.

    The first write opens and truncates the file, even if it writes no lines; errors before that
    cost no earlier output. If a write fails or is interrupted, a regular file is cut back to its
    last complete line.
    """

    def __init__(self, path: str, keep: int = 0, advice: str = "") -> None:
        """keep: number of lines of an existing file to keep; the rest is dropped.

        advice: how to go on after a failed write; it ends the message.
        """
        self.path = path
        self._keep = keep
        self._advice = advice
        self._fd: int | None = None

    def write(self, lines: Sequence[str]) -> None:
        """Append lines, each without its line end.

        Raises UserError if the output cannot be opened, is full, or is written by another process,
        BrokenPipeError if its reader is gone.
        """
        if self._fd is None:
            with telling(self.path, "cannot be written", "."):
                self._fd = self._open()
        data = "".join(f"{line}\n" for line in lines).encode("utf-8")
        begin, pending = os.fstat(self._fd).st_size, memoryview(data)
        try:
            while pending:
                pending = pending[os.write(self._fd, pending) :]
        except BaseException as error:
            # Standard output may lead to a file with other writers, so it is never cut.
            if self.path != STANDARD and stat.S_ISREG(os.fstat(self._fd).st_mode):
                # By the file's size: an interrupt may have come between a write and its count.
                written = data[: os.fstat(self._fd).st_size - begin]
                os.ftruncate(self._fd, begin + written.rfind(b"\n") + 1)
            if isinstance(error, BrokenPipeError) or not isinstance(error, OSError):
                raise
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); "
                f"what was written before is complete{self._advice}."
            ) from error

    def _open(self) -> int:
        """A descriptor at the end of the kept lines.

        It bypasses Python's buffer, which could be flushed in the middle of a line.
        """
        if self.path == STANDARD:
            return os.dup(sys.stdout.fileno())
        size = 0
        if self._keep:
            with open(self.path, "rb") as kept:
                size = sum(len(line) for line in islice(kept, self._keep))
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            try:
                lock_lines(fd, self.path)
            except UserError:
                os.close(fd)
                raise
            os.ftruncate(fd, size)
        return fd

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
