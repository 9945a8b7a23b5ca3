"""Averages checkpoints, and finds the one from which a training goes on.

``restored`` finds it: the last one, or the furthest that is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger, option
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.models import TrainingRecord
from specdec_plugins.formats.output import check_output, is_of_training, is_same_place

LAST = "checkpoint_last.pt"
REPLACED = "checkpoint_last.pt.replaced"  # a last checkpoint in whose place another one came
# A key of the optimizer's state in a checkpoint (training.trainer).
FLOAT32 = "float32"  # the weights that a model in 16 bits has rounded

# fairseq's file names.
_EPOCH = re.compile(r"checkpoint(\d+)\.pt")
_UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")


def last_checkpoints(folder: Path, number: int, by: str) -> list[Path]:
    """The ``number`` latest checkpoints, oldest first. ``by`` is "epoch" or "update"."""
    require(folder.is_dir(), f"{folder}: no such folder; give a folder of checkpoints")
    pattern = _EPOCH if by == "epoch" else _UPDATE
    flag = "--save-interval 1" if by == "epoch" else "--save-interval-updates"
    matches = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    found = sorted((int(match[1]), path) for match, path in matches if match)
    require(
        len(found) >= number,
        f"expected at least {number}, found {len(found)} {by} checkpoints in {folder} (fairseq "
        f"writes them with {flag})",
    )
    return [path for _, path in found[-number:]]


def average(paths: Sequence[Path]) -> dict[str, Any]:
    """The last checkpoint with averaged weights and without its optimizer state.

    Sums are kept in float64; each weight gets its own dtype back. Tensors that share memory (tied
    embeddings) still do. Integer buffers are those of the last checkpoint.
    """
    sums: dict[str, Tensor] = {}
    recorded: set[tuple[Any, ...]] = set()
    for path in tqdm(paths, desc="averaging", unit=" checkpoints"):
        checkpoint = load_checkpoint(path)
        weights: dict[str, Tensor] = checkpoint["model"]
        _check_alike(weights, sums, path, paths[0])
        if any(checkpoint.get(key) is not None for key in ("cfg", "args")):
            recorded.add(tuple(TrainingRecord(checkpoint, path).digests))
        require(
            len(recorded - {(None, None)}) < 2,
            f"{path} and a checkpoint before it were trained with different dictionaries, so their "
            "weights stand for different words; average those of one training.",
        )
        for name, weight in weights.items():
            if not weight.is_floating_point():
                continue
            wide = weight.to(torch.float64, copy=True)
            sums[name] = wide if name not in sums else sums[name].add_(wide)
    checkpoint["model"] = changed(
        weights, lambda name, weight: (sums[name] / len(paths)).to(weight.dtype)
    )
    checkpoint["last_optimizer_state"] = None
    return checkpoint


def _check_alike(
    weights: dict[str, Tensor], sums: dict[str, Tensor], path: Path, first: Path
) -> None:
    differ = f"{path} and {first} are different models"
    names = {name for name, weight in weights.items() if weight.is_floating_point()}
    odd = sorted(names ^ sums.keys()) if sums else []
    if odd:
        raise UserError(f"{differ}: {odd[0]} is in only one of them ({len(odd)} such weights)")
    for name in sorted(names & sums.keys()):
        mine, theirs = list(weights[name].shape), list(sums[name].shape)
        require(mine == theirs, f"{differ}: {name} has shapes {mine} and {theirs}")


def changed(
    weights: dict[str, Tensor], change: Callable[[str, Tensor], Tensor]
) -> dict[str, Tensor]:
    """The weights with floating-point ones changed; names that share memory, as tied embeddings
    do, still share it.
    """
    made: dict[tuple[Any, ...], Tensor] = {}
    found = dict(weights)
    for name, weight in weights.items():
        if weight.is_floating_point():
            place = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
            if place not in made:
                made[place] = change(name, weight)
            found[name] = made[place]
    return found


def _choose(args: AverageOptions) -> list[Path]:
    first, *more = paths = [Path(path) for path in args.inputs]
    if not args.last:
        is_file = not any(path.is_dir() for path in paths)
        require(is_file, f"{first}: a folder; choose checkpoints with --last N")
        same = [two for two in combinations(paths, 2) if is_same_place(*two)]
        require(not same, f"{paths[-1]}: given twice; name each checkpoint once")
        return paths
    require(not more, "--last takes one folder of checkpoints")
    return last_checkpoints(first, args.last, args.by)


def check_save_dir(folder: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raises UserError if a training there would overwrite a checkpoint that it reads."""
    for path in (Path(given) for given in inputs if given):
        require(
            not (is_of_training(path) and is_same_place(folder / path.name, path)),
            f"--save-dir {folder}: the training would overwrite {path}, from which it starts; give "
            "another folder.",
        )


def main(args: AverageOptions) -> None:
    paths = _choose(args)
    check_output(args.output, "--output", inputs=paths, replaced=True)
    logger.info("averaging %s", ", ".join(path.name for path in paths))
    checkpoint = average(paths)
    save_checkpoint(checkpoint, args.output)
    logger.info("wrote %s", args.output)


def num_updates(checkpoint: dict[str, Any]) -> int:
    history = checkpoint.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def kept_precision(folder: Path, wanted: str | None) -> str | None:
    """The precision in which the training in a folder was started, or else the one wanted.

    Raises UserError if they differ: so do the states of their optimizers.
    """
    checkpoint = restored(folder, may_write=False)
    if checkpoint is None:
        return wanted
    common = checkpoint["cfg"]["common"]
    begun = next((name for name in ("bf16", "fp16") if common[name]), "fp32")
    require(
        wanted in (None, begun),
        f"{folder}: training was started in {begun}; omit --precision {wanted}, or give another "
        "folder.",
    )
    return begun


def restored(folder: Path, may_write: bool = True) -> dict[str, Any] | None:
    """The checkpoint from which the training in ``folder`` goes on; None if there is none.

    That is ``checkpoint_last.pt`` unless it is missing or cannot be used: then the one with the
    most updates takes its place, if this process ``may_write``. Raises UserError if there are
    checkpoints to go on from, but none that can be used.
    """
    last = folder / LAST
    faults: list[UserError] = []
    path, checkpoint = last, _usable(last, faults)
    others = sorted({*folder.glob("checkpoint*.pt")} - {last}) if checkpoint is None else []
    for other in others:
        found = _usable(other, faults)
        if found is None or found.get("last_optimizer_state") is None:
            continue  # averages cannot be resumed
        if checkpoint is None or num_updates(found) > num_updates(checkpoint):
            path, checkpoint = other, found
    if checkpoint is None and faults:
        raise UserError(
            f"{faults[0]}; no other checkpoint of {folder} can take its place, so give another "
            "--save-dir to start anew"
        )
    if checkpoint is not None and may_write:
        for fault in faults:
            logger.warning("%s", fault)
        if path != last:
            logger.info("going on from %s, update %d", path, num_updates(checkpoint))
            if last.is_file():
                last.replace(folder / REPLACED)
            save_checkpoint(checkpoint, last)
    return checkpoint


def _usable(path: Path, faults: list[UserError]) -> dict[str, Any] | None:
    """The checkpoint, or None if it is missing or, with an entry in ``faults``, cannot be used."""
    try:
        return load_checkpoint(path) if path.is_file() else None
    except UserError as error:
        faults.append(error)
        return None


@dataclass(kw_only=True)
class AverageOptions:
    """Average checkpoints of one training run."""

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("--best", "--metric"),
        "name the files of the best checkpoints, whose names have the values",
    )

    # fmt: off
    inputs: Sequence[str] = option(MISSING, "a folder, or the files to average", "PATH",
        positional=True)
    last: int | None = option(None, "average this many of the folder's last checkpoints", least=1)
    by: str = option("epoch", "kind of checkpoint that --last takes", choices=("epoch", "update"))
    output: Path = option(MISSING, "checkpoint to write")
    # fmt: on


COMMAND = cli.CommandLine("specdec train average", main, AverageOptions)
