"""Writing checkpoints so that no reader ever sees half a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.errors import UserError


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
