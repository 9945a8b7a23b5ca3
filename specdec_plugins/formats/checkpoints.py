"""fairseq checkpoints: read without running code from the file, and written atomically.

``torch.load`` refuses every class that is not registered. The classes below are all that today's
and the published checkpoints need: settings, containers and numbers, all harmless to construct.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import shutil
import typing
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch

from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.output import written_whole


def _harmless_types() -> list[Any]:
    """What a fairseq checkpoint may hold: settings, containers, and the arrays of numbers that
    ``--eval-bleu`` leaves in the meters. omegaconf's classes only where it is installed.
    """
    types: list[Any] = [argparse.Namespace, collections.defaultdict, typing.Any, dict, list, int]
    types += [numpy.ndarray, numpy.dtype]
    types += [type(numpy.dtype(kind)) for kind in ("i4", "i8", "f4", "f8")]
    makers: list[Any] = [number.__reduce__()[0] for number in (numpy.array(0), numpy.int64(0))]
    for make in makers:  # under the names of numpy 1 and 2, whichever is installed
        types += [(make, f"numpy.{core}.multiarray.{make.__name__}") for core in ("core", "_core")]
    try:
        from omegaconf import DictConfig, ListConfig
        from omegaconf.base import ContainerMetadata, Metadata
        from omegaconf.nodes import AnyNode
    except ModuleNotFoundError:
        return types
    return [*types, DictConfig, ListConfig, AnyNode, Metadata, ContainerMetadata]


def allow_fairseq_checkpoints(between_workers: bool = False) -> None:
    """Let ``torch.load`` of this process read fairseq checkpoints in its safe mode.

    fairseq calls ``torch.load`` itself, so its command lines need the names registered for the
    whole process. Call this from an entry point, never at import; it is idempotent. With
    ``between_workers`` (imports fairseq) fairseq's workers can also pass each other a checkpoint
    that one of them has read, in which an index replaces each tensor.
    """
    torch.serialization.add_safe_globals(_harmless_types())
    if between_workers:
        from fairseq.distributed.utils import _TensorPlaceholder

        torch.serialization.add_safe_globals([_TensorPlaceholder])


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a fairseq checkpoint onto the CPU, in safe mode only.

    Returns the checkpoint's dictionary; ``"model"`` is its state dict. Raises ``UserError`` where
    the file is missing, damaged, written by something else, holds objects outside the list of
    harmless names (the file is then not executed), or weights that are not numbers.
    """
    path = Path(path)
    require(path.is_file(), f"{path}: no such checkpoint; give the path of a fairseq .pt file")
    checkpoint = load_safely(path)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise UserError(
            f"{path}: not a fairseq checkpoint (it has no 'model' entry with weights); "
            "give a file that fairseq-train or train.py wrote"
        )
    if (name := not_finite(checkpoint["model"])) is not None:
        raise UserError(
            f"{path}: {name} holds NaN or infinity, so its training had diverged; take an earlier "
            "checkpoint, or train again with a lower --lr"
        )
    return checkpoint


def not_finite(weights: Mapping[str, Any]) -> str | None:
    """The first of these tensors that holds NaN or infinity; None if there is none."""
    for name, weight in weights.items():
        if torch.is_tensor(weight) and weight.is_floating_point() and weight.numel():
            ends = torch.stack(torch.aminmax(weight))  # NaN where there is one; copies nothing
            if not bool(torch.isfinite(ends).all()):
                return name
    return None


def load_safely(path: Path, mmap: bool = False) -> Any:
    """What a file of torch holds, on the CPU, if all of it is harmless.

    mmap: map tensors instead of reading them. Raises ``UserError`` where the file is unreadable,
    damaged or refused.
    """
    try:
        # On exit the context forgets every type that it was given, even one that was allowed
        # before, so it gets only the others.
        allowed = torch.serialization.get_safe_globals()
        types = [t for t in _harmless_types() if t not in allowed]
        with torch.serialization.safe_globals(types), warnings.catch_warnings():
            # Faults of foreign pickles are reported below.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except pickle.UnpicklingError as error:
        raise UserError(_explain_refusal(path, str(error))) from error
    except Exception as error:
        # A damaged file can make the unpickler fail in any way; the cause stays in the chain.
        raise UserError(
            f"{path}: damaged or not a checkpoint ({type(error).__name__}); "
            "copy it again or train it again"
        ) from error


def _explain_refusal(path: Path, message: str) -> str:
    """One sentence on why torch refused the pickle: a foreign object, or plain damage."""
    marker = "GLOBAL "
    if marker not in message:
        return f"{path}: damaged or not a checkpoint; copy it again or train it again"
    name = message.split(marker, 1)[1].split()[0]
    if name.startswith("omegaconf."):
        return f"{path}: needs omegaconf, which is not installed; pip install omegaconf"
    return (
        f"{path}: refused, because it asks to load {name}, which a file of weights does not need "
        "and which could run code; use one from a source that you trust"
    )


def save_checkpoint(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Write a checkpoint beside its place and rename it; missing folders are created.

    When this returns, it is on disk. Raises ``UserError`` if the file cannot be written; an older
    file then stays as it was.
    """
    with _written(Path(path)) as part, part.open("wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())


def copy_checkpoint(source: str | Path, path: str | Path) -> None:
    """Copy a checkpoint beside its place and rename it; errors as of ``save_checkpoint``."""
    with _written(Path(path)) as part:
        shutil.copyfile(source, part)


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    try:
        with written_whole(path) as part:
            yield part
    except (OSError, RuntimeError) as error:
        # torch ends an archive that cannot be written with an error of its own.
        fault: BaseException | None = error
        while fault is not None and not isinstance(fault, OSError):
            fault = fault.__context__
        if fault is None:
            raise
        raise UserError(
            f"{path}: cannot be written ({fault.strerror or fault}); checkpoints that were written "
            "before are whole: make room or choose another place, and run the same command again"
        ) from error


def untrained(
    settings: argparse.Namespace, state: dict[str, Any], criterion: str = ""
) -> dict[str, Any]:
    """A checkpoint as fairseq's trainer reads it, before the first update."""
    history: dict[str, Any] = {"criterion_name": criterion, "optimizer_name": None}
    return {
        "args": settings,
        "cfg": None,
        "model": state,
        "criterion": None,
        "optimizer_history": [{**history, "lr_scheduler_state": {}, "num_updates": 0}],
        "task_state": {},
        # A running mean also starts from these tensors, which are written once.
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}, "ema": state},
        "last_optimizer_state": None,
    }
