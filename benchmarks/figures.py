"""From raw cells to figures for JSON, and what explains each difference from greedy decoding."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.engines import Job, Lengths
from benchmarks.engines.ours import settings_of
from benchmarks.measure import Cell, cut
from benchmarks.pair import Pair, TestSet
from benchmarks.results import Figures
from benchmarks.systems import EXACT, GREEDY
from benchmarks.worker import Batches
from specdec_plugins.app import types as app
from specdec_plugins.app.exactness import check_exactness
from specdec_plugins.app.report import percentile
from specdec_plugins.corpus import scoring

MIB = 2**20
PARTS = ("encode", "draft", "verify", "rest")


def figures(cell: Cell, cells: Sequence[Cell], test: TestSet, lengths: Lengths) -> Figures:
    """All figures of one of the cells."""
    fairseq = greedy_of("fairseq", "float32", cell, cells)
    plain = greedy_of("ours", cell.system.dtype, cell, cells)
    batches = cut(test.sentences, cell.batch)
    num_tokens = sum(map(len, cell.tokens.values()))
    totals = [sum(repeat) for repeat in cell.seconds]
    latencies = _latencies(cell, batches)
    stats = cell.stats
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
        "bleu": _bleu(cell, test),
        "differs_from_fairseq_greedy": _differs(cell, fairseq, lengths),
        "differs_from_our_greedy": _differs(cell, plain, lengths),
        "num_unstable": cell.num_unstable,
        "accepted_tokens": None if stats is None else stats.mean_accepted_tokens,
        "acceptance_by_position": [] if stats is None else stats.acceptance_by_position,
        "shares": _shares(cell),
        "peak_memory_mib": cell.peak_memory / MIB,
        "by_length": _by_length(cell, batches) if cell.batch == 1 else [],
    }


def greedy_of(engine: str, dtype: str, cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """An engine's greedy decoding under the same threads and batch."""
    wanted = (engine, GREEDY, dtype, cell.threads, cell.batch)
    for other in cells:
        one = other.system
        if (one.engine, one.role, one.dtype, other.threads, other.batch) == wanted:
            return other
    return None


def _latencies(cell: Cell, batches: Batches) -> list[float]:
    """Seconds until a sentence was there, in all repetitions: those of its whole batch."""
    return [
        seconds
        for repeat in cell.seconds
        for batch, seconds in zip(batches, repeat, strict=True)
        for _ in batch
    ]


def _bleu(cell: Cell, test: TestSet) -> float | None:
    if test.references is None:
        return None
    texts = [test.decode(cell.tokens[sentence.number]) for sentence in test.sentences]
    return scoring.score(texts, test.references)[0].value


def bleu_signature(test: TestSet) -> str | None:
    """What must be quoted beside the scores."""
    if test.references is None:
        return None
    return scoring.score(test.references, test.references)[0].signature


def _differs(cell: Cell, greedy: Cell | None, lengths: Lengths) -> list[int] | None:
    """Numbers of the sentences with other tokens; None where there is nothing to compare with.

    Where the length is fixed, the last token is left out: fairseq puts the end of the sentence
    there, the others whatever token comes.
    """
    if greedy is None:
        return None
    stop = lengths.max_len - 1 if lengths.fixed else None
    return [n for n, tokens in cell.tokens.items() if tokens[:stop] != greedy.tokens[n][:stop]]


def _shares(cell: Cell) -> dict[str, float]:
    """Of the time, by part; empty where no parts were measured."""
    total = sum(cell.parts.values())
    return {name: cell.parts.get(name, 0.0) / total for name in PARTS} if total else {}


def _by_length(cell: Cell, batches: Batches) -> list[tuple[int, float]]:
    """Source tokens and median seconds of each sentence, decoded alone."""
    by_batch = zip(*cell.seconds, strict=True)
    return [
        (len(batch[0].ids), round(statistics.median(times), 6))
        for batch, times in zip(batches, by_batch, strict=True)
    ]


def near_ties(
    cells: Sequence[Cell], pair: Pair, test: TestSet, lengths: Lengths, device: str
) -> list[str]:
    """A sentence for each difference between exact and greedy decoding in float32.

    It says what makes the difference excusable or not. In lower precisions they are counted only.
    """
    lines: list[str] = []
    for cell in cells:
        other = greedy_of("ours", "float32", cell, cells)
        if other is None or (cell.system.role, cell.system.dtype) != (EXACT, "float32"):
            continue
        differing = [s for s in test.sentences if cell.tokens[s.number] != other.tokens[s.number]]
        if not differing:
            continue
        where = f"{cell.system.name}, float32, threads {cell.threads}, batch {cell.batch}"
        system = replace(cell.system, engine="ours")
        job = Job(system, pair, lengths, device, "", cell.batch, ())
        torch.set_num_threads(cell.threads)
        again = [app.Sentence(s.number, " ".join(s.tokens), tokens=s.tokens) for s in differing]
        exactness = check_exactness(settings_of(job), again)
        lines += [f"{where}, against our greedy: {found}" for found in exactness.differences]
        if gone := len(again) - len(exactness.differences):
            lines.append(f"{where}, against our greedy: {gone} more, not seen in a second run")
    return lines
