"""Figures of raw cells for JSON, and an explanation of each difference from greedy decoding."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks.engines import Workload
from benchmarks.engines.ours import settings_of
from benchmarks.measure import Cell
from benchmarks.pair import TestSet
from benchmarks.reports import Record
from benchmarks.systems import EXACT, GREEDY
from specdec_plugins.app import types as app
from specdec_plugins.app.exactness import check_exactness
from specdec_plugins.app.report import percentile
from specdec_plugins.corpus import scoring
from specdec_plugins.decoding.stats import DecodeStats

MIB = 2**20
Tokens = Mapping[int, list[str]]  # by sentence
PARTS = ("encode", "draft", "verify", "rest")


def figures(cell: Cell, cells: Sequence[Cell], test: TestSet) -> Record:
    """All figures of one cell."""
    fairseq = greedy_of("fairseq", "float32", cell, cells)
    transformers = greedy_of("transformers", "float32", cell, cells)
    plain = greedy_of("ours", cell.system.dtype, cell, cells)
    tokens, stats = cell.tokens, cell.stats
    num_tokens = sum(map(len, tokens.values()))
    totals = [sum(output.seconds for output in run) for run in cell.runs]
    # The latency of each sentence, in all repetitions: that of its whole batch.
    latencies = [output.seconds for run in cell.runs for output in run for _ in output.tokens]
    time = sum(cell.parts.values())  # 0 where no parts were measured
    return {
        "row": cell.system.to_dict(),
        "threads": cell.threads,
        "batch": cell.batch,
        "seconds": totals,
        "seconds_a_sentence": {
            "p50": percentile(latencies, 0.5),
            "p95": percentile(latencies, 0.95),
        },
        "tokens": num_tokens,
        "tokens_a_second": [num_tokens / total for total in totals],
        "bleu": _bleu(tokens, test),
        "differs_from_fairseq_greedy": _differs(tokens, fairseq),
        "differs_from_transformers_greedy": _differs(tokens, transformers),
        "differs_from_our_greedy": _differs(tokens, plain),
        "num_unstable": cell.num_unstable,
        "accepted_tokens": None if stats is None else stats.mean_accepted_tokens,
        "acceptance_by_position": [] if stats is None else stats.acceptance_by_position,
        "shares": {name: cell.parts.get(name, 0.0) / time for name in PARTS} if time else {},
        "drafting": _drafting(cell),
        "peak_memory_mib": cell.peak_memory / MIB,
        "by_length": _by_length(cell) if cell.batch == 1 else [],
    }


def _drafting(cell: Cell) -> list[float]:
    """The drafter's share of the time, by repetition; empty if parts were not measured."""
    stats = [sum((one.stats for one in run if one.stats), DecodeStats()) for run in cell.runs]
    seconds = [one.seconds for one in stats if one.seconds]
    return [parts.get("draft", 0.0) / sum(parts.values()) for parts in seconds]


def greedy_of(engine: str, dtype: str, cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """An engine's greedy decoding with the same threads and batch."""
    wanted = (engine, GREEDY, dtype, cell.threads, cell.batch)
    for other in cells:
        one = other.system
        if (one.engine, one.role, one.dtype, other.threads, other.batch) == wanted:
            return other
    return None


def _bleu(tokens: Tokens, test: TestSet) -> float | None:
    if test.references is None:
        return None
    texts = [test.decode(tokens[sentence.number]) for sentence in test.sentences]
    return scoring.score(texts, test.references)[0].value


def bleu_signature(test: TestSet) -> str | None:
    """The signature to quote beside the scores."""
    if test.references is None:
        return None
    return scoring.score(test.references, test.references)[0].signature


def _differs(tokens: Tokens, greedy: Cell | None) -> list[int] | None:
    """Numbers of the sentences whose tokens differ; None if there is nothing to compare with."""
    if greedy is None:
        return None
    return [n for n, found in tokens.items() if found != greedy.tokens[n]]


def _by_length(cell: Cell) -> list[tuple[int, float]]:
    """Source tokens and median seconds of each sentence, decoded alone."""
    return [
        (len(batch[0].ids), round(statistics.median(output.seconds for output in outputs), 6))
        for batch, *outputs in zip(cell.batches, *cell.runs, strict=True)
    ]


def near_ties(cells: Sequence[Cell], workload: Workload) -> list[str]:
    """A sentence for each difference between exact and greedy decoding in float32.

    It says whether rounding explains the difference. In lower precisions they are only counted.
    """
    lines: list[str] = []
    for cell in cells:
        other = greedy_of("ours", "float32", cell, cells)
        if other is None or (cell.system.role, cell.system.dtype) != (EXACT, "float32"):
            continue
        mine, plain = cell.tokens, other.tokens
        differing = [s for s in workload.sentences if mine[s.number] != plain[s.number]]
        if not differing:
            continue
        where = f"{cell.system.name}, float32, threads {cell.threads}, batch {cell.batch}"
        torch.set_num_threads(cell.threads)
        again = [app.Sentence(s.number, " ".join(s.tokens), tokens=s.tokens) for s in differing]
        settings = settings_of(cell.system, replace(workload, max_batch=cell.batch))
        exactness = check_exactness(settings, again)
        lines += [f"{where}, against our greedy: {found}" for found in exactness.differences]
        if gone := len(again) - len(exactness.differences):
            lines.append(f"{where}, against our greedy: {gone} more, not repeated in a second run")
    return lines
