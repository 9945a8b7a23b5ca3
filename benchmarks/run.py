"""`python -m benchmarks`: one run from its flags to its files."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import torch

from benchmarks import bars, plots
from benchmarks.engines import ASSISTANT, CTRANSLATE2, MARIAN, Job, Lengths, convert
from benchmarks.figures import bleu_signature, figures, near_ties
from benchmarks.grow import grow, size_of
from benchmarks.machine import describe, shown
from benchmarks.measure import Cell, Plan, measure
from benchmarks.pair import Pair, TestSet, read_test_set
from benchmarks.random_pair import Shape, random_pair, random_sentences
from benchmarks.results import Record, Results, page
from benchmarks.systems import ASSISTED, PRECISIONS, Choice, System
from specdec_plugins.errors import Parser, UserError, refuse
from specdec_plugins.formats.output import check_output

DESCRIPTION = """\
Decode one test file with one set of verifier weights in every engine: fairseq's search,
transformers, CTranslate2 and this project's. Rows are interleaved and repeated on the same cores;
written are OUTPUT.json, OUTPUT.md and plots as OUTPUT.<plot>.png.
"""
DTYPES = sorted({dtype for dtypes in PRECISIONS.values() for dtype in dtypes})
_NUM_RANDOM = 20  # sentences


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 bad input or settings, 130 interrupted."""
    made = parser()
    args = made.parse_args(argv)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        check(args)
        check_output(f"{args.output}.json", "--output", replaced=True)
        results = Results(run(args))
        write(results, args.output)
    except UserError as error:
        return refuse(made.prog, error)
    except KeyboardInterrupt:
        sys.stderr.write(f"{made.prog}: interrupted; nothing was written.\n")
        return 130
    print(page(results))
    print(bars.table(results))
    return 0


def write(results: Results, output: str) -> None:
    """JSON, Markdown and plots."""
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.record, ensure_ascii=False, separators=(",", ":"))
    Path(f"{output}.json").write_text(text.replace('{"row":', '\n{"row":') + "\n", encoding="utf-8")
    drawn = plots.draw(results, output)
    pictures = [f"![{path.stem}]({path.name})" for path in drawn]
    whole = [page(results), "## Bars\n", bars.table(results), "", *pictures]
    Path(f"{output}.md").write_text("\n".join(whole) + "\n", encoding="utf-8")


def run(args: argparse.Namespace) -> Record:
    """Measure, and everything that is to be known of it."""
    pair, test, lengths = _subject(args)
    systems = choose(args, pair.drafter, pair.assistant is not None)
    work = Path(args.work) / f"converted.{pair.name}"
    convert(pair, _forms(systems), work)
    common = (pair, lengths, args.device, str(work), max(args.batches), test.sentences)
    names = {one.name for one in systems if args.batch_rows and matches(one, args.batch_rows)}
    plan = Plan(
        threads=args.threads,
        batches=args.batches,
        repeats=args.repeats,
        turn=args.turn,
        in_batches=frozenset(names) if args.batch_rows else None,
    )
    cells = measure([Job(system, *common) for system in systems], plan, test.sentences)
    return _record(args, pair, test, lengths, cells)


def _subject(args: argparse.Namespace) -> tuple[Pair, TestSet, Lengths]:
    """What is decoded with, what is decoded, and how long it may get."""
    if args.random_weights is None:
        pair = Pair.of(Path(args.pair), args.source_lang, args.target_lang)
        if args.grow is not None:
            pair = _grown(pair, args)
        return pair, read_test_set(args.test, pair, args.sentences), Lengths()
    shape = Shape.parse(args.random_weights)
    test = random_sentences(shape, args.sentences or _NUM_RANDOM)
    lengths = Lengths(min_len=args.length - 1, max_len=args.length)
    return random_pair(shape, Path(args.work)), test, lengths


def _grown(pair: Pair, args: argparse.Namespace) -> Pair:
    size = size_of(args.grow)
    folder = Path(args.work) / f"{pair.name}.grown.{args.grow}"
    grow(pair, size, folder, force=True)
    return Pair.of(folder, args.source_lang, args.target_lang)


def _forms(systems: Sequence[System]) -> set[str]:
    """What must be converted for these systems."""
    forms = {"ctranslate2": CTRANSLATE2, "transformers": MARIAN}
    wanted = {forms[one.engine] for one in systems if one.engine in forms}
    return wanted | {ASSISTANT for one in systems if one.role == ASSISTED}


def _record(
    args: argparse.Namespace, pair: Pair, test: TestSet, lengths: Lengths, cells: list[Cell]
) -> Record:
    models = pair.describe()
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *map(shown, sys.argv[1:])]),
        "machine": describe(args.device),
        "pair": {"name": pair.name, **models},
        "test": test.name,
        "num_sentences": len(test.sentences),
        "setting": {
            "device": args.device,
            "repeats": args.repeats,
            "min_len": lengths.min_len,
            "max_len": lengths.max_len,
        },
        "bleu_signature": bleu_signature(test),
        "near_ties": near_ties(cells, pair, test, lengths, args.device),
        "cells": [figures(cell, cells, test, lengths) for cell in cells],
    }


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
    for flag, about in (
        ("--rows", "only rows whose name matches, such as 'ours *' (default: all)"),
        ("--batch-rows", "of these, those measured at batches above 1 (default: all that can)"),
    ):
        add(flag, nargs="+", metavar="PATTERN", help=about)


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
        help="sentences that a row decodes before the next one does (default: 25)",
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


def choose(args: argparse.Namespace, drafter: str | None, assistant: bool) -> list[System]:
    """What the flags ask for, of a pair with this drafter, and with an assistant or not.

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
    systems = choice.systems()
    chosen = [one for one in systems if args.rows is None or matches(one, args.rows)]
    if not chosen:
        names = ", ".join(sorted({one.name for one in systems}))
        raise UserError(f"--rows: none of the rows has such a name; there are: {names}.")
    return chosen


def matches(system: System, patterns: Sequence[str]) -> bool:
    """True if its name is like one of the patterns."""
    return any(fnmatch(system.name, pattern) for pattern in patterns)
