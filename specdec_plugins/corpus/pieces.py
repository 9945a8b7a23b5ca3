"""Training in pieces: what a piece may begin from, when it must end, and what travels to the next.

    open DIR --until T     before train.py: make ``checkpoint_last.pt`` if only weights are there,
                           and print the flags that end training at the Unix time T
    close DIR --updates N  after it: write ``weights.pt`` for the next piece, and record this one

``weights.pt`` is a checkpoint of float16 weights without Adam's moments, a sixth in size. Where
``checkpoint_last.pt`` is there too, training goes on from that as if it had never stopped. Where
the weights alone have travelled, the optimizer restarts, with the schedule and the epoch where
they were. ``pieces.json`` lists all pieces, and says which of them restarted the optimizer.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import UNFINISHED, logger
from specdec_plugins.corpus.resume import read_json, write_json
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint

LAST, WEIGHTS, RECORD = "checkpoint_last.pt", "weights.pt", "pieces.json"
SHORTEST = 5.0  # seconds; a piece that would be shorter is not begun
RESTARTED_AT = "restarted_at"  # read by the schedule inverse_sqrt_restarts


def num_updates(checkpoint: dict[str, Any]) -> int:
    history = checkpoint.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def portable(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The same training in float16 and without moments; training can go on from it."""
    optimizer = checkpoint.get("last_optimizer_state")
    history = [dict(entry) for entry in checkpoint.get("optimizer_history") or []]
    if history:
        state = history[-1].get("lr_scheduler_state") or {}
        history[-1]["lr_scheduler_state"] = {**state, RESTARTED_AT: num_updates(checkpoint)}
    return {
        **checkpoint,
        "model": half(checkpoint["model"]),
        "optimizer_history": history,
        # An Adam without state begins its moments anew; it wants to hear of its groups.
        "last_optimizer_state": optimizer and {**optimizer, "state": {}},
    }


def half(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights in float16; names that share memory, as tied embeddings do, still share it."""
    made: dict[tuple[int, torch.Size], torch.Tensor] = {}
    halves = {}
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            key = (tensor.data_ptr(), tensor.shape)
            halves[name] = made.setdefault(key, tensor.half())
        else:
            halves[name] = tensor
    return halves


def open_piece(folder: Path, until: float, now: float) -> list[str]:
    """Flags of train.py for this piece.

    Raises UserError where the weights cannot be read, and SystemExit where no time is left.
    """
    if until and until - now < SHORTEST:
        logger.info("%s: no time is left; the same command goes on", folder)
        raise SystemExit(UNFINISHED)
    start, checkpoint = _furthest(folder)
    pieces = read_pieces(folder)
    pieces.append({"start": start, "first_update": num_updates(checkpoint), "began": now})
    write_json(folder / RECORD, pieces)
    if not until:
        return []
    # fairseq counts the time of earlier runs, as the checkpoint tells it.
    before = float(checkpoint.get("extra_state", {}).get("previous_training_time", 0.0))
    return ["--stop-time-hours", f"{(before + until - now) / 3600:.6f}"]


def _furthest(folder: Path) -> tuple[str, dict[str, Any]]:
    """How this piece begins, and from what; weights that are further than the rest replace it."""
    last, weights = folder / LAST, folder / WEIGHTS
    here = load_checkpoint(last) if last.is_file() else None
    travelled = load_checkpoint(weights) if weights.is_file() else None
    if travelled and (here is None or num_updates(travelled) > num_updates(here)):
        save_checkpoint(travelled, last)
        return "optimizer restarted", travelled
    return ("fresh", {}) if here is None else ("continued", here)


def close_piece(folder: Path, updates: int, now: float) -> int:
    """Write what travels and record the piece; the exit status: 0, or UNFINISHED."""
    checkpoint = load_checkpoint(folder / LAST)
    done = num_updates(checkpoint)
    save_checkpoint(portable(checkpoint), folder / WEIGHTS)
    for path in sorted(folder.glob("checkpoint_*_*.pt")):
        _slim(path)
    pieces = read_pieces(folder)
    pieces[-1] |= {"last_update": done, "seconds": round(now - pieces[-1].pop("began"), 1)}
    write_json(folder / RECORD, pieces)
    logger.info("%s: update %d of %d, %d pieces", folder, done, updates, len(pieces))
    return 0 if done >= updates else UNFINISHED


def read_pieces(folder: Path) -> list[dict[str, Any]]:
    """The pieces so far; one that was killed has no last update."""
    path = folder / RECORD
    return list(read_json(path)) if path.is_file() else []


def _slim(path: Path) -> None:
    """Checkpoints kept for an average: weights alone, in float16."""
    checkpoint = load_checkpoint(path)
    if checkpoint.get("last_optimizer_state") is not None:
        plain = {**checkpoint, "model": half(checkpoint["model"]), "last_optimizer_state": None}
        save_checkpoint(plain, path)


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(
        "Begin and end a piece of training; scripts/train.sh calls this.", prog="pieces"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    opening = commands.add_parser("open", help="print flags for train.py")
    opening.add_argument("folder", type=Path, help="of the checkpoints")
    opening.add_argument("--until", type=float, default=0.0, help="Unix time; 0 = no end")
    closing = commands.add_parser("close", help="write weights.pt; exit status 75: not finished")
    closing.add_argument("folder", type=Path, help="of the checkpoints")
    closing.add_argument("--updates", type=cli.at_least(1), required=True, help="of all pieces")
    for command in (opening, closing):
        cli.add_debug(command)
    return parser


def main(args: argparse.Namespace) -> None:
    if args.command == "open":
        try:
            args.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{args.folder}: cannot be written ({error.strerror})") from error
        sys.stdout.write(" ".join(open_piece(args.folder, args.until, time.time())) + "\n")
        return
    status = close_piece(args.folder, args.updates, time.time())
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
