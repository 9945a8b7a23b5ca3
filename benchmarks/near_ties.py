"""Exact rows that differ from plain greedy decoding, each with what makes it excusable or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.engines.base import Job, Lengths
from benchmarks.engines.ours import Ours
from benchmarks.engines.ours import load as load_ours
from benchmarks.measure import Cell
from benchmarks.pair import Pair, TestSet
from benchmarks.rows import EXACT, GREEDY, Row
from specdec_plugins.app.exactness import Difference, common_prefix, logit_gap

DOUBLE = "float64"


def explain(
    cells: Sequence[Cell], pair: Pair, test: TestSet, lengths: Lengths, device: str
) -> list[str]:
    """A sentence for each difference in float32; in lower precisions they are counted only."""
    lines: list[str] = []
    greedy = {
        (c.threads, c.batch): c
        for c in cells
        if (c.row.engine, c.row.role, c.row.dtype) == ("ours", GREEDY, "float32")
    }
    for cell in cells:
        other = greedy.get((cell.threads, cell.batch))
        if other is None or (cell.row.role, cell.row.dtype) != (EXACT, "float32"):
            continue
        numbers = [n for n, tokens in cell.tokens.items() if tokens != other.tokens[n]]
        if numbers:
            where = f"{cell.row.name}, float32, threads {cell.threads}, batch {cell.batch}"
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

    def load(row: Row, dtype: str) -> Ours:
        job = Job(
            replace(row, engine="ours", dtype=dtype), pair, lengths, device, "", cell.batch, ()
        )
        return load_ours(job, cell.threads)

    plain = load(greedy.row, "float32")
    doubles = [load(row, DOUBLE) for row in (cell.row, greedy.row)]
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
