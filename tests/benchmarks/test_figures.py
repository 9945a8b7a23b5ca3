"""From raw cells to figures."""

from __future__ import annotations

import pytest

from benchmarks.engines import Lengths
from benchmarks.figures import figures, greedy_of
from benchmarks.measure import Cell
from benchmarks.pair import Sentence, TestSet
from benchmarks.systems import System
from specdec_plugins.decoding.stats import DecodeStats

SENTENCES = [Sentence(n, ["w"] * n, [5] * n + [2]) for n in (1, 2, 3)]
TEST = TestSet("toys", SENTENCES, ["a b c d", "a b c d", "a b c d"])


def filled(role: str = "exact", engine: str = "ours", batch: int = 2) -> Cell:
    """Two batches a repetition: sentences 3 and 2 together, then 1, or the other way round."""
    cell = Cell(System(engine, role, "float32"), 1, batch)
    cell.seconds = [[2.0, 1.0], [4.0, 3.0]]
    cell.tokens = {n: ["a", "b", "c", "d"] for n in (1, 2, 3)}
    return cell


def test_a_sentence_waits_for_its_batch() -> None:
    found = figures(filled(), [], TEST, Lengths())
    assert found["seconds"] == [3.0, 7.0]
    assert found["tokens_a_second"] == [12 / 3, 12 / 7]
    # One batch holds two sentences: which, the seed of `cut` says; six latencies in all.
    assert found["seconds_a_sentence"]["p95"] == 4.0
    assert found["seconds_a_sentence"]["p50"] in (2.0, 3.0)
    assert found["by_length"] == []
    assert found["bleu"] == pytest.approx(100)


def test_latency_by_length_is_of_sentences_alone() -> None:
    cell = filled(batch=1)
    cell.seconds = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]
    found = figures(cell, [], TEST, Lengths())["by_length"]
    assert sorted(length for length, _ in found) == [2, 3, 4]
    assert sorted(seconds for _, seconds in found) == [1.0, 2.0, 3.0]


def test_differences_are_from_greedy_decoding() -> None:
    cell, greedy = filled(), filled("greedy", "fairseq")
    cell.tokens = {**cell.tokens, 2: ["a", "b", "c", "x"]}
    beam, plain = filled("beam 5", "fairseq"), filled("greedy")
    assert greedy_of("fairseq", "float32", cell, [cell, beam, greedy]) is greedy
    assert greedy_of("fairseq", "float32", cell, [cell, beam]) is None
    plain.tokens = {**cell.tokens, 1: ["y"]}
    found = figures(cell, [plain, greedy], TEST, Lengths())
    assert found["differs_from_fairseq_greedy"] == [2]
    assert found["differs_from_our_greedy"] == [1]
    assert figures(cell, [beam], TEST, Lengths())["differs_from_our_greedy"] is None
    # Where all outputs are cut at one length, fairseq's last token is the end of the sentence.
    fixed = Lengths(min_len=3, max_len=4)
    assert figures(cell, [greedy], TEST, fixed)["differs_from_fairseq_greedy"] == []


def test_shares_of_time_and_accepted_tokens() -> None:
    cell = filled()
    cell.stats = DecodeStats(rounds=4, emitted=14, eos=2, drafted_at=[4, 4], accepted_at=[2])
    cell.parts = {"encode": 1.0, "verify": 2.0, "rest": 1.0}
    found = figures(cell, [], TestSet("toys", SENTENCES, None), Lengths())
    assert found["accepted_tokens"] == 3.0
    assert found["acceptance_by_position"] == [0.5, 0.0]
    assert found["shares"] == {"encode": 0.25, "draft": 0.0, "verify": 0.5, "rest": 0.25}
    assert found["bleu"] is None
