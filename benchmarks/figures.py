"""From raw cells to figures for JSON, and what explains each difference from greedy decoding."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.engines import Job, Lengths
from benchmarks.engines.ours import Ours
from benchmarks.engines.ours import load as load_ours
from benchmarks.measure import Cell, cut
from benchmarks.pair import Pair, TestSet
from benchmarks.results import Figures
from benchmarks.systems import EXACT, GREEDY, System
from benchmarks.worker import Batches
from specdec_plugins.app.exactness import Difference, common_prefix, logit_gap
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
    greedy = {
        (c.threads, c.batch): c
        for c in cells
        if (c.system.engine, c.system.role, c.system.dtype) == ("ours", GREEDY, "float32")
    }
    for cell in cells:
        other = greedy.get((cell.threads, cell.batch))
        if other is None or (cell.system.role, cell.system.dtype) != (EXACT, "float32"):
            continue
        numbers = [n for n, tokens in cell.tokens.items() if tokens != other.tokens[n]]
        if numbers:
            where = f"{cell.system.name}, float32, threads {cell.threads}, batch {cell.batch}"
            found = _differences(cell, other, numbers, pair, test, lengths, device)
            lines += [f"{where}, against our greedy: {difference}" for difference in found]
    return lines


def _differences(
    cell: Cell,
    greedy: Cell,
    numbers: Sequence[int],
    pair: Pair,
    test: TestSet,
    lengths: Lengths,
    device: str,
) -> list[Difference]:
    """Gap of the logits where each sentence first differs, and whether float64 agrees."""
    sentences = {s.number: s for s in test.sentences if s.number in numbers}

    def load(system: System, dtype: str) -> Ours:
        job = Job(
            replace(system, engine="ours", dtype=dtype), pair, lengths, device, "", cell.batch, ()
        )
        return load_ours(job, cell.threads)

    plain = load(greedy.system, "float32")
    doubles = [load(system, "float64") for system in (cell.system, greedy.system)]
    target = pair.dictionaries().target
    differences = []
    for number in numbers:
        mine, others = (
            target.encode_line(" ".join(c.tokens[number]), append_eos=False) for c in (cell, greedy)
        )
        common = common_prefix(mine, others)
        request = plain.request(sentences[number])
        gap = logit_gap(plain.decoder.verifier, request, common)
        exact, expected = (engine.target_ids([sentences[number]]) for engine in doubles)
        differences.append(Difference(number, len(common), gap, exact == expected))
    return differences
