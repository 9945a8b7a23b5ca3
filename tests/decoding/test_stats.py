from __future__ import annotations

import pytest
import torch

from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from specdec_plugins.decoding.types import FinishReason, Request, RowEvent, RowResult


def event(drafted: int, accepted: int, emitted: int, reason: FinishReason | None) -> RowEvent:
    result = RowResult(Request("a", [2]), finish_reason=reason) if reason else None
    return RowEvent("a", [5] * drafted, accepted, [5] * emitted, result)


def stats(*events: RowEvent) -> DecodeStats:
    out = DecodeStats()
    for e in events:
        out.observe(e)
    return out


ONE = (event(3, 3, 4, None), event(3, 1, 2, None), event(2, 0, 1, FinishReason.EOS))
TWO = (event(0, 0, 1, None), event(5, 4, 4, FinishReason.LENGTH))


def test_counts_and_rates() -> None:
    got = stats(*ONE)
    assert (got.rounds, got.drafted, got.accepted, got.emitted) == (3, 8, 4, 7)
    assert (got.eos, got.rows) == (1, 1)
    assert got.drafted_at == [3, 3, 2]
    assert got.accepted_at == [2, 1, 1]
    assert got.acceptance_by_position == [2 / 3, 1 / 3, 1 / 2]
    assert got.mean_accepted_tokens == 6 / 3  # eos not counted
    assert got.mean_emitted_tokens == 7 / 3
    assert got.acceptance_rate == 0.5


def test_plain_decoding_has_the_published_figure() -> None:
    steps = [event(0, 0, 1, None)] * 9 + [event(0, 0, 1, FinishReason.EOS)]
    assert stats(*steps).mean_accepted_tokens == 9 / 10


def test_nothing_decoded_divides_nothing() -> None:
    empty = DecodeStats()
    assert empty.mean_accepted_tokens == empty.mean_emitted_tokens == empty.acceptance_rate == 0
    assert empty.acceptance_by_position == []


def test_addition_is_observing_both() -> None:
    a, b, both = stats(*ONE), stats(*TWO), stats(*ONE, *TWO)
    a.seconds, b.seconds = {"draft": 1.0, "rest": 2.0}, {"draft": 0.5, "verify": 4.0}
    both.seconds = {"draft": 1.5, "rest": 2.0, "verify": 4.0}
    assert a + b == both
    assert b + a == both
    assert a.drafted_at == [3, 3, 2]  # the summands are left alone


def test_a_position_that_was_never_kept_counts_zero() -> None:
    assert stats(event(3, 1, 2, None)).acceptance_by_position == [1.0, 0.0, 0.0]


def test_timer_adds_up_by_part_and_survives_errors() -> None:
    ticks = iter([0.0, 2.0, 10.0, 13.0, 20.0, 20.5])
    timer = PartTimer(torch.device("cpu"), clock=lambda: next(ticks))
    with timer.part("draft"):
        pass
    with timer.part("verify"):
        pass
    with pytest.raises(KeyError), timer.part("draft"):
        raise KeyError
    assert timer.seconds == {"draft": 2.5, "verify": 3.0}


def test_a_timer_switched_off_never_reads_its_clock() -> None:
    def broken() -> float:
        raise AssertionError

    timer = PartTimer(torch.device("cpu"), enabled=False, clock=broken)
    with timer.part("draft"):
        pass
    assert timer.seconds == {}
