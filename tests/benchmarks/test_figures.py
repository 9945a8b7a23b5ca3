"""From raw cells to figures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.engines import Output
from benchmarks.figures import figures
from benchmarks.measure import Cell, cut
from benchmarks.pair import Sentence, TestSet
from benchmarks.systems import System
from specdec_plugins.decoding.stats import DecodeStats

SENTENCES = [Sentence(n, ["w"] * n, [5] * n + [2]) for n in (1, 2, 3)]
TEST = TestSet("toys", SENTENCES, ["a b c d", "a b c d", "a b c d"])
WORDS = ["a", "b", "c", "d"]


def filled(
    role: str = "exact",
    engine: str = "ours",
    batch: int = 2,
    seconds: Sequence[Sequence[float]] = ((2.0, 1.0), (4.0, 3.0)),
    stats: DecodeStats | None = None,
    **tokens: list[str],
) -> Cell:
    """By default two batches a repetition. tokens: what sentences n1, n2, n3 are not WORDS of."""
    batches = cut(SENTENCES, batch)
    of = [[tokens.get(f"n{one.number}", WORDS) for one in sentences] for sentences in batches]
    runs = [
        [Output(o, stats, time) for o, time in zip(of, times, strict=True)] for times in seconds
    ]
    return Cell(System(engine, role, "float32"), 1, batch, batches, runs)


def test_a_sentence_waits_for_its_batch() -> None:
    found = figures(filled(), [], TEST)
    assert found["seconds"] == [3.0, 7.0]
    assert found["tokens_a_second"] == [12 / 3, 12 / 7]
    # One batch holds two sentences: which, the seed of `cut` says; six latencies in all.
    assert found["seconds_a_sentence"]["p95"] == 4.0
    assert found["seconds_a_sentence"]["p50"] in (2.0, 3.0)
    assert found["by_length"] == []
    assert found["bleu"] == pytest.approx(100)


def test_differences_are_from_greedy_decoding() -> None:
    other = ["a", "b", "c", "x"]
    cell, greedy = filled(n2=other), filled("greedy", "fairseq")
    beam, plain = filled("beam 5", "fairseq", n3=other), filled("greedy", n1=["y"], n2=other)
    found = figures(cell, [cell, beam, plain, greedy], TEST)
    assert found["differs_from_fairseq_greedy"] == [2]
    assert found["differs_from_our_greedy"] == [1]
    found = figures(cell, [cell, beam], TEST)
    assert found["differs_from_fairseq_greedy"] is found["differs_from_our_greedy"] is None


def test_shares_of_time_and_accepted_tokens() -> None:
    stats = DecodeStats(rounds=1, emitted=4, eos=1, drafted_at=[1, 1], accepted_at=[1])
    cell = filled(stats=stats)
    cell.parts = {"encode": 1.0, "verify": 2.0, "rest": 1.0}
    found = figures(cell, [], TestSet("toys", SENTENCES, None))
    assert found["accepted_tokens"] == 3.0
    assert found["acceptance_by_position"] == [1.0, 0.0]
    assert found["shares"] == {"encode": 0.25, "draft": 0.0, "verify": 0.5, "rest": 0.25}
    assert found["bleu"] is None
