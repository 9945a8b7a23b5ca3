"""Writing checkpoints so that no reader ever sees half a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.errors import UserError


def check_place(path: Path) -> None:
    """Raises ``UserError`` where no file can be written under that name; called before the work."""
    if path.is_dir():
        raise UserError(f"--output {path}: a folder; expected the name of a file")
    place = path.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise UserError(f"--output {path}: cannot be written; give another place")


def save_checkpoint(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Write a checkpoint beside its place and rename it; folders are made as needed.

    Raises ``UserError`` where the file cannot be written; an older file then stays as it was.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            torch.save(checkpoint, file)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
