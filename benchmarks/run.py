"""One run from its flags to its files."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import bars, plots, table
from benchmarks.engines.base import Job, Lengths
from benchmarks.engines.converted import ASSISTANT, CTRANSLATE2, MARIAN, convert
from benchmarks.figures import bleu_signature, figures
from benchmarks.grow import grow, size_of
from benchmarks.machine import describe
from benchmarks.measure import Cell, Plan, measure
from benchmarks.near_ties import explain
from benchmarks.options import check, choose, matches, parser
from benchmarks.pair import Pair, TestSet, read_test_set
from benchmarks.random_pair import Shape, random_pair, random_sentences
from benchmarks.results import Record, Results
from benchmarks.rows import ASSISTED, Row
from specdec_plugins.errors import UserError, refuse

_NUM_RANDOM = 20  # sentences


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 bad input or settings, 130 interrupted."""
    made = parser()
    args = made.parse_args(argv)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        check(args)
        results = Results(run(args))
        write(results, args.output)
    except UserError as error:
        return refuse(made.prog, error)
    except KeyboardInterrupt:
        sys.stderr.write(f"{made.prog}: interrupted; nothing was written.\n")
        return 130
    print(table.report(results))
    print(bars.table(results))
    return 0


def write(results: Results, output: str) -> None:
    """JSON, Markdown and plots."""
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.record, ensure_ascii=False, separators=(",", ":"))
    Path(f"{output}.json").write_text(text.replace('{"row":', '\n{"row":') + "\n", encoding="utf-8")
    drawn = plots.draw(results, output)
    pictures = [f"![{path.stem}]({path.name})" for path in drawn]
    whole = [table.report(results), "## Bars\n", bars.table(results), "", *pictures]
    Path(f"{output}.md").write_text("\n".join(whole) + "\n", encoding="utf-8")


def run(args: argparse.Namespace) -> Record:
    """Measure, and everything that is to be known of it."""
    pair, test, lengths = _subject(args)
    rows = choose(args, pair.drafter, pair.assistant is not None)
    work = Path(args.work) / f"converted.{pair.name}"
    convert(pair, _forms(rows), work)
    common = (pair, lengths, args.device, str(work), max(args.batches), test.sentences)
    names = {row.name for row in rows if args.batch_rows and matches(row, args.batch_rows)}
    plan = Plan(
        threads=args.threads,
        batches=args.batches,
        repeats=args.repeats,
        turn=args.turn,
        in_batches=frozenset(names) if args.batch_rows else None,
    )
    cells = measure([Job(row, *common) for row in rows], plan, test.sentences)
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


def _forms(rows: Sequence[Row]) -> set[str]:
    """What must be converted for these rows."""
    forms = {"ctranslate2": CTRANSLATE2, "transformers": MARIAN}
    wanted = {forms[row.engine] for row in rows if row.engine in forms}
    return wanted | {ASSISTANT for row in rows if row.role == ASSISTED}


def _record(
    args: argparse.Namespace, pair: Pair, test: TestSet, lengths: Lengths, cells: list[Cell]
) -> Record:
    models = pair.describe()
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *map(_shown, sys.argv[1:])]),
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
        "near_ties": explain(cells, pair, test, lengths, args.device),
        "cells": [figures(cell, cells, test, lengths) for cell in cells],
    }


def _shown(argument: str) -> str:
    """Paths as a reader can use them: relative to the checkout, or the name where they lie outside.

    An argument may be two paths with a comma between them.
    """
    return ",".join(_relative(part) for part in argument.split(","))


def _relative(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    relative = os.path.relpath(path)
    return path.name if relative.startswith(os.pardir) else relative
