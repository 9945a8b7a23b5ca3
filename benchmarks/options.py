"""Flags of `python -m benchmarks`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatch

import torch

from benchmarks.rows import PRECISIONS, Choice, Row
from specdec_plugins.errors import Parser, UserError

DESCRIPTION = """\
Decode one test file with one set of verifier weights in every engine: fairseq's search,
transformers, CTranslate2 and this project's. Rows are interleaved and repeated on the same cores;
written are OUTPUT.json, OUTPUT.md and plots as OUTPUT.<plot>.png.
"""
DTYPES = sorted({dtype for dtypes in PRECISIONS.values() for dtype in dtypes})


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="python -m benchmarks", description=DESCRIPTION, allow_abbrev=False)
    _add_what(made)
    _add_rows(made)
    _add_how(made)
    return made


def _add_what(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("what is measured with").add_argument
    add("--pair", metavar="FOLDER", help="verifier, drafter, dictionaries and BPE codes")
    add(
        "--test",
        metavar="FILE",
        help="raw text: a TSV with source and target first, or SOURCE,TARGET",
    )
    add("--sentences", type=int, metavar="N", help="the first N of the test file (default: all)")
    add("--source-lang", "-s", metavar="LANG", help="default: from the names of the dictionaries")
    add("--target-lang", "-t", metavar="LANG", help="default: from the names of the dictionaries")
    add(
        "--random-weights",
        metavar="SHAPE",
        help="instead of a pair and a test file: random weights and sentences of this shape, "
        "LAYERSxDIMxTYPES[xDRAFTER_LAYERS], decoded to --length tokens each",
    )
    add("--length", type=int, default=30, metavar="N", help="of random outputs (default: 30)")
    add(
        "--grow",
        metavar="SHAPE",
        help="the pair made larger, LAYERSxWIDTHxTYPES: its words and its acceptance, at the cost "
        "of that shape (benchmarks/grow.py)",
    )


def _add_rows(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("rows").add_argument
    add(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        default=["float32", "int8"],
        help="precisions; each engine runs those that it has (default: float32 int8)",
    )
    add(
        "--relaxed",
        nargs="*",
        type=_relaxed,
        default=[(3, 1.0), (5, 3.0)],
        metavar="BETA:TAU",
        help="tolerances of relaxed decoding (default: 3:1 5:3)",
    )
    add(
        "--block-sizes",
        nargs="*",
        type=int,
        default=[],
        metavar="K",
        help="further block sizes of exact decoding",
    )
    add(
        "--scripted-acceptance",
        nargs="*",
        type=float,
        default=[],
        metavar="P",
        help="rows whose drafts are the greedy output, each token right with this probability",
    )
    add(
        "--rows",
        nargs="+",
        metavar="PATTERN",
        help="only rows whose name matches, such as 'ours *' (default: all)",
    )
    add(
        "--batch-rows",
        nargs="+",
        metavar="PATTERN",
        help="of these, the rows that are measured at batches above 1 (default: all that can)",
    )


def _add_how(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("how").add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add("--threads", nargs="+", type=int, default=[2], metavar="N", help="default: 2")
    add("--batches", nargs="+", type=int, default=[1], metavar="N", help="default: 1")
    add("--repeats", type=int, default=3, metavar="N", help="repetitions (default: 3)")
    add(
        "--turn",
        type=int,
        default=25,
        metavar="N",
        help="sentences that a row decodes before the next row's turn (default: 25)",
    )
    add("--work", default="runs/bench", metavar="FOLDER", help="default: runs/bench")
    add("--output", required=True, metavar="OUTPUT", help="beginning of the names of the results")


def _relaxed(text: str) -> tuple[int, float]:
    beta, _, tau = text.partition(":")
    try:
        return int(beta), float(tau)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected BETA:TAU such as 3:1.0, not {text!r}"
        ) from error


def check(args: argparse.Namespace) -> None:
    """Raises UserError where flags do not fit together."""
    if args.random_weights is None and (args.pair is None or args.test is None):
        raise UserError("give --pair and --test, or --random-weights.")
    if args.random_weights is not None and (args.pair or args.test):
        raise UserError("--random-weights makes its own pair and test; leave the others out.")
    if args.random_weights is not None and args.grow:
        raise UserError("--grow is about a trained pair; leave it out, or --random-weights.")
    for name in ("threads", "batches", "block_sizes"):
        if any(number < 1 for number in getattr(args, name)):
            raise UserError(f"--{name.replace('_', '-')}: every number must be 1 or more.")
    for name in ("repeats", "turn", "length", "sentences"):
        number = getattr(args, name)
        if number is not None and number < 1:
            raise UserError(f"--{name} must be 1 or more, not {number}.")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; leave the flag out.")
    if any(not 0 <= share <= 1 for share in args.scripted_acceptance):
        raise UserError("--scripted-acceptance is a probability, from 0 to 1.")


def choose(args: argparse.Namespace, drafter: str | None, assistant: bool) -> list[Row]:
    """The rows that the flags ask for, of a pair with this drafter, and with an assistant or not.

    Raises UserError where none is left.
    """
    choice = Choice(
        dtypes=args.dtypes,
        relaxed=args.relaxed,
        block_sizes=args.block_sizes,
        scripted=args.scripted_acceptance,
        drafter=drafter,
        assistant=assistant,
        threads=max(args.threads) if args.device == "cpu" else 1,
    )
    rows = choice.rows()
    chosen = [row for row in rows if args.rows is None or matches(row, args.rows)]
    if not chosen:
        names = ", ".join(sorted({row.name for row in rows}))
        raise UserError(f"--rows: none of the rows has such a name; there are: {names}.")
    return chosen


def matches(row: Row, patterns: Sequence[str]) -> bool:
    """True if the row's name is like one of the patterns."""
    return any(fnmatch(row.name, pattern) for pattern in patterns)
