"""`python -m benchmarks`: one run from its flags to its files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks import plots
from benchmarks.engines import Lengths, Workload, convert
from benchmarks.figures import bleu_signature, figures, near_ties
from benchmarks.measure import measure
from benchmarks.pair import Pair, read_test_set
from benchmarks.reports import Record, command, describe
from benchmarks.results import Results, page
from benchmarks.systems import Options
from specdec_plugins.corpus.cli import CommandLine
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.output import check_output


def main(options: Options) -> None:
    # Checked before the long measurement.
    inputs = options.test.split(",")
    check_output(f"{options.output}.json", "--output", inputs=inputs, replaced=True)
    plots.pyplot()
    results = Results(run(options))
    write(results, str(options.output))
    print(page(results))


STOPPED = "interrupted; nothing was written."
COMMAND = CommandLine("specdec bench", main, Options, interrupted=STOPPED)


def write(results: Results, output: str) -> None:
    """Write JSON, Markdown and plots."""
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.record, ensure_ascii=False, separators=(",", ":"))
    Path(f"{output}.json").write_text(text.replace('{"row":', '\n{"row":') + "\n", encoding="utf-8")
    drawn = plots.draw(results, output)
    pictures = [f"![{path.stem}]({path.name})" for path in drawn]
    whole = [page(results), *pictures]
    Path(f"{output}.md").write_text("\n".join(whole) + "\n", encoding="utf-8")


def run(options: Options) -> Record:
    """Measure; returns the record of the run."""
    pair = Pair.of(local_model(options.pair), options.source_lang, options.target_lang)
    if options.model is not None:
        pair = pair.beside(local_model(options.model))
    test, lengths = read_test_set(options.test, pair, options.sentences), Lengths()
    systems = options.systems(pair.drafter, pair.assistant is not None)
    work = str(Path(options.work) / f"converted.{pair.name.replace('/', '--')}")
    most = max(options.batches)
    workload = Workload(pair, test.sentences, lengths, options.device, most, work)
    convert(workload, {name for one in systems for name in (one.engine, one.role)})
    cells = measure(systems, workload, options)
    return {
        "command": command(),
        "machine": describe(options.device),
        "pair": {"name": pair.name, **pair.describe()},
        "test": test.name,
        "num_sentences": len(test.sentences),
        "setting": {"device": options.device, "repeats": options.repeats, **asdict(lengths)},
        "bleu_signature": bleu_signature(test),
        "near_ties": near_ties(cells, workload),
        "cells": [figures(cell, cells, test) for cell in cells],
    }
