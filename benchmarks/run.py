"""`python -m benchmarks`: one run from its flags to its files."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import bars, plots
from benchmarks.engines import Lengths, Workload, convert
from benchmarks.figures import bleu_signature, figures, near_ties
from benchmarks.machine import describe
from benchmarks.measure import MeasureOptions, measure
from benchmarks.pair import Pair, TestSet, read_test_set
from benchmarks.reports import Record, command
from benchmarks.results import Results, page
from benchmarks.shapes import (
    grow,
    grown_size,
    random_pair,
    random_sentences,
    random_shape,
)
from benchmarks.systems import Choice, System
from specdec_plugins.app.main import run_command
from specdec_plugins.app.options import add_options, build, option
from specdec_plugins.corpus.cli import at_least
from specdec_plugins.errors import Parser, require
from specdec_plugins.formats.output import check_output

DESCRIPTION = """\
Decode one test file with one set of verifier weights in every engine: fairseq's search,
transformers, CTranslate2 and this project's. Rows are interleaved and repeated on the same cores;
written are OUTPUT.json, OUTPUT.md and plots as OUTPUT.<plot>.png.
"""
_NUM_RANDOM = 20  # sentences

_what = partial(option, group="what is measured with")
_how = partial(option, group="how")


@dataclass(frozen=True)
class Options:
    """What is measured, where, and what is written; `Choice` and `MeasureOptions` have the rest."""

    output: str = _how(MISSING, "beginning of the names of the results", "OUTPUT", required=True)
    pair: str | None = _what(None, "verifier, drafter, dictionaries and BPE codes", "FOLDER")
    test: str | None = _what(
        None, "raw text: a TSV with source and target first, or SOURCE,TARGET", "FILE"
    )
    sentences: int | None = _what(
        None, "the first N of the test file (default: all)", type=at_least(1)
    )
    source_lang: str | None = _what(
        None, "default: from the names of the dictionaries", "LANG", flags=("--source-lang", "-s")
    )
    target_lang: str | None = _what(
        None, "default: from the names of the dictionaries", "LANG", flags=("--target-lang", "-t")
    )
    random_weights: str | None = _what(
        None,
        "instead of a pair and a test file: random weights and sentences of this shape, "
        "LAYERSxDIMxTYPES[xDRAFTER_LAYERS], decoded to --length tokens each",
        "SHAPE",
    )
    length: int = _what(30, "of random outputs", type=at_least(1))
    grow: str | None = _what(
        None,
        "the pair made larger, LAYERSxWIDTHxTYPES: its words and its acceptance, at the cost of "
        "that shape (benchmarks/shapes.py)",
        "SHAPE",
    )
    device: str = _how("cpu", "what all engines compute on", choices=("cpu", "cuda"))
    work: str = _how("runs/bench", "for converted weights", "FOLDER")

    def __post_init__(self) -> None:
        """Raises UserError where flags do not fit together."""
        if self.random_weights is None:
            both = self.pair is not None and self.test is not None
            require(both, "give --pair and --test, or --random-weights.")
        else:
            none = not (self.pair or self.test)
            require(none, "--random-weights makes its own pair and test; leave the others out.")
            told = "--grow is about a trained pair; leave it out, or --random-weights."
            require(not self.grow, told)
        usable = self.device == "cpu" or torch.cuda.is_available()
        require(usable, "--device cuda: torch sees no GPU here; leave the flag out.")


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="python -m benchmarks", description=DESCRIPTION, allow_abbrev=False)
    add_options(made, Options, Choice, MeasureOptions)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 bad input or settings, 130 interrupted."""
    made = parser()
    given = vars(made.parse_args(argv))
    logging.getLogger("fairseq").setLevel(logging.WARNING)

    def work() -> None:
        options = build(Options, given)
        check_output(f"{options.output}.json", "--output", replaced=True)
        results = Results(run(options, given))
        write(results, options.output)
        print(page(results))
        print(bars.table(results))

    return run_command(made.prog, work, False, "interrupted; nothing was written.")


def write(results: Results, output: str) -> None:
    """JSON, Markdown and plots."""
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.record, ensure_ascii=False, separators=(",", ":"))
    Path(f"{output}.json").write_text(text.replace('{"row":', '\n{"row":') + "\n", encoding="utf-8")
    drawn = plots.draw(results, output)
    pictures = [f"![{path.stem}]({path.name})" for path in drawn]
    whole = [page(results), "## Bars\n", bars.table(results), "", *pictures]
    Path(f"{output}.md").write_text("\n".join(whole) + "\n", encoding="utf-8")


def run(options: Options, given: Mapping[str, Any]) -> Record:
    """Measure, and everything that is to be known of it."""
    how = build(MeasureOptions, given)
    pair, test, lengths = _subject(options)
    threads = max(how.threads) if options.device == "cpu" else 1
    systems = choose(given, pair.drafter, pair.assistant is not None, threads)
    work = str(Path(options.work) / f"converted.{pair.name}")
    workload = Workload(pair, test.sentences, lengths, options.device, max(how.batches), work)
    convert(workload, {name for one in systems for name in (one.engine, one.role)})
    cells = measure(systems, workload, how)
    return {
        "command": command("python", "-m", "benchmarks"),
        "machine": describe(options.device),
        "pair": {"name": pair.name, **pair.describe()},
        "test": test.name,
        "num_sentences": len(test.sentences),
        "setting": {"device": options.device, "repeats": how.repeats, **asdict(lengths)},
        "bleu_signature": bleu_signature(test),
        "near_ties": near_ties(cells, workload),
        "cells": [figures(cell, cells, test, lengths) for cell in cells],
    }


def _subject(options: Options) -> tuple[Pair, TestSet, Lengths]:
    """What is decoded with, what is decoded, and how long it may get."""
    work = Path(options.work)
    if options.random_weights is not None:
        size, drafter_layers = random_shape(options.random_weights)
        test = random_sentences(size.types, options.sentences or _NUM_RANDOM)
        lengths = Lengths(min_len=options.length - 1, max_len=options.length)
        return random_pair(size, drafter_layers, work), test, lengths
    assert options.pair is not None
    assert options.test is not None
    languages = (options.source_lang, options.target_lang)
    pair = Pair.of(Path(options.pair), *languages)
    if options.grow is not None:
        folder = work / f"{pair.name}.grown.{options.grow}"
        grow(pair, grown_size(options.grow), folder)
        pair = Pair.of(folder, *languages)
    return pair, read_test_set(options.test, pair, options.sentences), Lengths()


def choose(
    given: Mapping[str, Any], drafter: str | None, assistant: bool, threads: int
) -> list[System]:
    """What the flags ask for, of a pair with this drafter, and with an assistant or not.

    threads: the most that an engine gets. Raises UserError where no system is left.
    """
    pair = {"drafter": drafter, "assistant": assistant, "most_threads": threads}
    choice = build(Choice, {**given, **pair})
    systems = choice.systems()
    chosen = [one for one in systems if one.is_like(choice.rows)]
    names = ", ".join(sorted({one.name for one in systems}))
    require(bool(chosen), f"--rows: none of the rows has such a name; there are: {names}.")
    return chosen
