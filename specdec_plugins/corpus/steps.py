"""Steps that run once: each writes under a temporary name, renames, and leaves a stamp.

A stamp is a small JSON file that holds the step's settings and a fingerprint of what it read and
wrote. A step whose stamp still tells the truth is skipped; any other is done (again), and the
reason is said. An interruption therefore costs the step that was running, never a finished one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specdec_plugins.corpus.cli import logger
from specdec_plugins.errors import UserError


def temporary(path: Path) -> Path:
    """The name under which ``path`` is written until it is whole (in the same file system)."""
    return path.with_name(f".{path.name}.part")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary name; renames it to ``path`` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary(path)
    remove(part)
    try:
        yield part
        if path.is_dir():  # a folder cannot be renamed over another
            shutil.rmtree(path)
        os.replace(part, path)
    finally:
        remove(part)


def write_json(path: Path, value: Any) -> None:
    with written_whole(path) as part:
        part.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged; remove it and run the command again") from error


def fingerprint(path: Path) -> str:
    """Size and time of change of a file, or of all files of a folder."""
    if path.is_dir():
        inner = [f"{p.relative_to(path)}:{fingerprint(p)}" for p in sorted(path.iterdir())]
        return ";".join(inner)
    state = path.stat()
    return f"{state.st_size}@{state.st_mtime_ns}"


@contextmanager
def leaving_nothing_empty(folders: Iterable[Path]) -> Iterator[None]:
    """Where the block fails, remove those of the folders, and of their parents, that it left empty.

    What was there before the block stays, empty or not.
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
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep a second run out of ``folder``, or let it ``wait``; the lock ends with the process.

    Where the block fails before it has written anything, the folder goes again.
    """
    with leaving_nothing_empty([folder]), _lock_file(folder, wait) as path:
        try:
            yield
        except BaseException:
            if list(folder.iterdir()) == [path]:
                path.unlink()
            raise


@contextmanager
def _lock_file(folder: Path, wait: bool) -> Iterator[Path]:
    path = folder / ".lock"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}); give another folder"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise UserError(
                    f"{folder}: another run is writing here; wait for it, or give another folder"
                ) from None
            # A run that failed may have removed the file between the opening and the lock.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield path
                return


class Steps:
    """The steps of one output folder; stamps lie in ``folder/.stamps``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(
        self,
        name: str,
        action: Callable[[Sequence[Path]], object],
        *,
        inputs: Sequence[Path],
        outputs: Sequence[Path],
        settings: Mapping[str, Any],
    ) -> bool:
        """Do the step unless it is done; returns whether it was done now.

        ``action`` gets temporary names, one for each of ``outputs``, and must write all of them.
        They are renamed together once it returns; only then is the stamp written.
        """
        stamp_path = self._folder / ".stamps" / f"{name}.json"
        # As JSON would give them back, so that a tuple equals its list.
        wanted = json.loads(json.dumps(dict(settings)))
        wanted["inputs"] = self._fingerprints(inputs)
        reason = self._why(stamp_path, wanted, outputs)
        if reason is None:
            logger.info("%s: done already", name)
            return False
        logger.info("%s: %s", name, reason)
        with leaving_nothing_empty(path.parent for path in outputs):
            self._act(action, outputs)
        write_json(stamp_path, {"wanted": wanted, "outputs": self._fingerprints(outputs)})
        return True

    def _act(self, action: Callable[[Sequence[Path]], object], outputs: Sequence[Path]) -> None:
        parts = [temporary(path) for path in outputs]
        try:
            for path, part in zip(outputs, parts, strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                remove(part)
            action(parts)
            for path, part in zip(outputs, parts, strict=True):
                remove(path)
                os.replace(part, path)
        finally:
            for part in parts:
                remove(part)

    def _fingerprints(self, paths: Sequence[Path]) -> dict[str, str]:
        # Relative names, so that a folder that was moved as a whole is not prepared again.
        return {
            os.path.relpath(path, self._folder): fingerprint(path)
            for path in paths
            if path.exists()
        }

    def _why(
        self, stamp_path: Path, wanted: Mapping[str, Any], outputs: Sequence[Path]
    ) -> str | None:
        """Why the step must run, or None where its stamp still tells the truth."""
        if not stamp_path.is_file():
            return "starting"
        stamp = read_json(stamp_path)
        before = stamp["wanted"]
        changed = [key for key in {**before, **wanted} if before.get(key) != wanted.get(key)]
        if "inputs" in changed:
            return "what it reads has changed, doing it again"
        if changed:
            key = sorted(changed)[0]
            return f"{key} was {before.get(key)!r} and is {wanted.get(key)!r}, doing it again"
        if stamp["outputs"] != self._fingerprints(outputs):
            return "what it wrote is missing or was changed, doing it again"
        return None
