"""The mean of several checkpoints of one run: the last N, the best N, or those that are named."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.output import check_output

# The names that fairseq gives. Behind a best checkpoint's three decimals stands a random number
# that tells equal values apart; read as further decimals, it changes no order but theirs.
_EPOCH = re.compile(r"checkpoint(\d+)\.pt")
_UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
_BEST = re.compile(r"checkpoint\.best_(?P<metric>.+)_(?P<value>-?\d+\.\d+)\.pt")
_LOWER_IS_BETTER = re.compile(r"loss|ppl|perplexity|wer", re.IGNORECASE)


def last_checkpoints(folder: Path, number: int, by: str) -> list[Path]:
    """The ``number`` latest, oldest first. ``by`` is "epoch" or "update"."""
    pattern = _EPOCH if by == "epoch" else _UPDATE
    found = [(int(m[1]), path) for path in _files(folder) if (m := pattern.fullmatch(path.name))]
    flag = "--save-interval 1" if by == "epoch" else "--save-interval-updates"
    return _enough(
        [path for _, path in sorted(found)][-number:],
        number,
        f"checkpoints of an {by} in {folder} (fairseq writes them with {flag})",
    )


def best_checkpoints(folder: Path, number: int, metric: str | None) -> list[Path]:
    """The ``number`` best by the value in their names, the best one last."""
    found = [(m, path) for path in _files(folder) if (m := _BEST.fullmatch(path.name))]
    metrics = sorted({match["metric"] for match, _ in found})
    if metric is None and len(metrics) > 1:
        raise UserError(f"{folder} has checkpoints by {', '.join(metrics)}; choose with --metric")
    chosen = metric or (metrics[0] if metrics else "METRIC")
    sign = -1 if _LOWER_IS_BETTER.search(chosen) else 1
    ranked = sorted(
        (sign * float(match["value"]), path) for match, path in found if match["metric"] == chosen
    )
    return _enough(
        [path for _, path in ranked][-number:],
        number,
        f"files checkpoint.best_{chosen}_VALUE.pt in {folder} (fairseq writes them with "
        "--keep-best-checkpoints)",
    )


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of checkpoints")
    return sorted(folder.iterdir())


def _enough(paths: list[Path], number: int, what: str) -> list[Path]:
    if len(paths) < number:
        raise UserError(f"wanted {number}, found {len(paths)} {what}")
    return paths


def average(paths: Sequence[Path]) -> dict[str, Any]:
    """The last checkpoint with averaged weights and without its optimizer state.

    Sums are kept in float64; each weight gets its own dtype back. Tensors that share memory (tied
    embeddings) still do. Integer buffers are those of the last checkpoint.
    """
    sums: dict[str, Tensor] = {}
    for path in tqdm(paths, desc="averaging", unit=" checkpoints"):
        checkpoint = load_checkpoint(path)
        weights: dict[str, Tensor] = checkpoint["model"]
        _check_alike(weights, sums, path, paths[0])
        for name, weight in weights.items():
            if not weight.is_floating_point():
                continue
            if not bool(torch.isfinite(weight).all()):
                raise UserError(f"{path}: {name} holds NaN or infinity; leave this one out")
            wide = weight.double()
            sums[name] = wide if name not in sums else sums[name].add_(wide)
    checkpoint["model"] = _means(weights, sums, len(paths))
    checkpoint["last_optimizer_state"] = None
    return checkpoint


def _check_alike(
    weights: dict[str, Tensor], sums: dict[str, Tensor], path: Path, first: Path
) -> None:
    if not sums:
        return
    names = {name for name, weight in weights.items() if weight.is_floating_point()}
    odd = sorted(names ^ sums.keys())
    if odd:
        raise UserError(
            f"{path} and {first} are different models: {odd[0]} is in one of them only "
            f"({len(odd)} such weights)"
        )
    for name in sorted(names):
        if weights[name].shape != sums[name].shape:
            raise UserError(
                f"{path} and {first} are different models: {name} is "
                f"{list(weights[name].shape)} and {list(sums[name].shape)}"
            )


def _means(weights: dict[str, Tensor], sums: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    shared: dict[tuple[Any, ...], Tensor] = {}
    means: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name not in sums:
            means[name] = weight
            continue
        place = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
        if place not in shared or weight.numel() == 0:
            shared[place] = (sums[name] / number).to(weight.dtype)
        means[name] = shared[place]
    return means


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("Average checkpoints of one training run.", prog="average-checkpoints")
    parser.add_argument("inputs", nargs="+", type=Path, help="a folder, or the files to average")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=cli.at_least(1), metavar="N", help="the last N of a folder")
    which.add_argument("--best", type=cli.at_least(1), metavar="N", help="the best N of a folder")
    parser.add_argument("--by", choices=["epoch", "update"], default="epoch", help="for --last")
    parser.add_argument("--metric", help="for --best, where the folder has several")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint to write")
    return parser


def _choose(args: argparse.Namespace) -> list[Path]:
    if args.last is None and args.best is None:
        if any(path.is_dir() for path in args.inputs):
            raise UserError(f"{args.inputs[0]}: a folder; say which with --last N or --best N")
        return list(args.inputs)
    if len(args.inputs) != 1:
        raise UserError("--last and --best take one folder of checkpoints")
    if args.last is not None:
        return last_checkpoints(args.inputs[0], args.last, args.by)
    return best_checkpoints(args.inputs[0], args.best, args.metric)


def main(args: argparse.Namespace) -> None:
    check_output(args.output, "--output", replaced=True)
    paths = _choose(args)
    logger.info("averaging %s", ", ".join(path.name for path in paths))
    checkpoint = average(paths)
    save_checkpoint(checkpoint, args.output)
    logger.info("wrote %s", args.output)


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
