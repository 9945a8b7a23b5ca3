"""Output paths: checked before the work begins, and written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec_plugins.errors import UserError, require


def check_output(
    path: str | Path, flag: str = "", *, replaced: bool = False, folder: bool = False
) -> None:
    """Raises UserError if an output cannot be written; every program checks this before its work.

    flag: what the user gave the path with, for the message. replaced: the file is written beside
    its place and renamed, as `save_checkpoint` does. folder: the output is a folder. In the last
    two cases missing folders are created; otherwise the file's folder must exist.
    """
    path, named = Path(path), f"{flag} {path}".lstrip()
    if folder:
        is_other = path.exists() and not path.is_dir()
        require(not is_other, f"{named}: is a file; give the name of a folder.")
    else:
        require(not path.is_dir(), f"{named}: is a folder; give the name of a file to write.")
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

    ``path`` is a file or a folder. On any error its old content is restored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part, old = temporary(path), path.with_name(f".{path.name}.old")
    remove(part)
    try:
        yield part
        if path.is_dir():  # a folder cannot be renamed over another
            remove(old)
            path.rename(old)
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
    check_output(folder, folder=True)
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found and not force:
        raise UserError(f"{folder}: already exists; give another folder, or add --force.")
    if found and (folder / marker not in found or any(path.is_dir() for path in found)):
        raise UserError(
            f"{folder}: lacks {marker} or holds other folders, so this program did not write it; "
            "give another folder."
        )
    try:
        with written_whole(folder) as made:
            made.mkdir()
            yield made
    except OSError as error:
        name = error.filename or folder
        raise UserError(f"{name}: {error.strerror or error}; nothing was written.") from error
