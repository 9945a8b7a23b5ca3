"""Rows: how they are collated, extended, kept together and counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec_plugins.decoding.batch import Batch, collate
from specdec_plugins.decoding.contract import Stream, Verdict
from specdec_plugins.decoding.extend import extend
from specdec_plugins.decoding.requests import FinishReason, Request, RowEvent, RowResult
from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from tests.decoding.toys import CPU, NO_TOKEN, SPECIAL, draft_of, prefix_of, requests, row_params

JOBS = requests(5, lambda i: i % 3, max_len=lambda i: 6 + i, seed=lambda i: i)


def opened(indices: list[int]) -> Batch:
    jobs = [JOBS[i] for i in indices]
    return Batch.open(jobs, collate(jobs, SPECIAL.pad, SPECIAL.start, CPU))


def committed(batch: Batch) -> list[list[int]]:
    rows = zip(batch.prefix.tokens.tolist(), batch.prefix.lengths.tolist(), strict=True)
    return [row[:length] for row, length in rows]


def test_rows_stay_together_through_append_and_select() -> None:
    batch = Batch.empty(CPU).append(opened([0, 1])).append(opened([2, 3, 4]))
    keep = [4, 0, 2]
    batch = batch.select(keep, torch.tensor(keep))
    assert [row.request.id for row in batch.rows] == ["r4", "r0", "r2"]
    assert committed(batch) == [[SPECIAL.start, *JOBS[i].forced_ids] for i in keep]
    assert batch.params.max_len.tolist() == [10, 6, 8]
    assert batch.prefix.tokens.shape[1] >= 11
    assert batch.prefix.width == 3
    assert batch.select([1], torch.tensor([1])).prefix.width == 1  # of the longest row present
    numbers = batch.random.uniform(batch.prefix.lengths * 0, 1, Stream.NEXT)
    fresh = opened(keep).random.uniform(batch.prefix.lengths * 0, 1, Stream.NEXT)
    assert numbers.tolist() == fresh.tolist()


def test_a_forced_prefix_is_not_shared_with_its_source() -> None:
    source = collate(JOBS[:2], SPECIAL.pad, SPECIAL.start, CPU)
    batch = Batch.open(JOBS[:2], source)
    batch.prefix.lengths += 1
    batch.rows[0].token_ids.append(5)
    assert source.forced_lengths.tolist() == [1, 2]
    assert JOBS[0].forced_ids == []


EOS = SPECIAL.eos


def outcome(
    committed: list[int],
    draft: list[int],
    num_accepted: int,
    next_token: int,
    max_len: int = 30,
    active: bool = True,
) -> tuple[list[int], int, bool, bool, bool]:
    """(row after, accepted, ended, full, active), beside a neighbour that must not change it."""
    prefix = prefix_of([[7, 7, 7], committed])
    prefix.active[1] = active
    verdict = Verdict(torch.tensor([0, num_accepted]), torch.tensor([8, next_token]))
    got = extend(
        prefix, draft_of([[8], draft], 4), verdict, row_params(2, max_len=[30, max_len]), EOS
    )
    length = int(prefix.lengths[1])
    assert prefix.tokens[0, :5].tolist() == [SPECIAL.start, 7, 7, 7, 8]
    assert prefix.tokens[1, length] == NO_TOKEN
    assert prefix.tokens[:, 0].tolist() == [SPECIAL.start] * 2
    assert length - len(committed) - 1 == int(got.lengths[1])
    emitted = got.tokens[1, : int(got.lengths[1])].tolist()
    row = prefix.tokens[1, 1:length].tolist()
    assert row == committed + emitted
    flags = bool(got.ended[1]), bool(got.full[1]), bool(prefix.active[1])
    return row, int(got.num_accepted[1]), *flags


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # the worked examples
        (([4], [5, 6, 7], 2, 9), ([4, 5, 6, 9], 2, False, False, True)),
        (([4], [5, EOS, 7], 3, 9), ([4, 5, EOS], 2, True, False, False)),
        # nothing drafted, nothing accepted, everything accepted
        (([], [], 0, 5), ([5], 0, False, False, True)),
        (([], [4, 5], 0, 6), ([6], 0, False, False, True)),
        (([], [4, 5, 6, 7], 4, 8), ([4, 5, 6, 7, 8], 4, False, False, True)),
        # eos as the next token, drafted and accepted, drafted and not accepted, behind the cut
        (([4], [5], 1, EOS), ([4, 5, EOS], 1, True, False, False)),
        (([4], [EOS], 1, 5), ([4, EOS], 1, True, False, False)),
        (([4], [EOS], 0, 5), ([4, 5], 0, False, False, True)),
        (([4], [EOS, EOS], 2, EOS), ([4, EOS], 1, True, False, False)),
        # max_len: exactly full, cut inside the draft, cut before eos, eos in the last place
        (([4], [5], 1, 6, 3), ([4, 5, 6], 1, False, True, False)),
        (([4], [5, 6, 7], 3, 8, 3), ([4, 5, 6], 2, False, True, False)),
        (([4], [5, 6, EOS], 3, 8, 3), ([4, 5, 6], 2, False, True, False)),
        (([4], [5, EOS], 2, 8, 3), ([4, 5, EOS], 2, True, False, False)),
        (([], [], 0, 5, 1), ([5], 0, False, True, False)),
        # a finished row does not move
        (([4], [5], 1, 6, 30, False), ([4], 0, False, False, False)),
    ],
    ids=str,
)
def test_a_row_is_extended(arguments: Any, expected: Any) -> None:
    assert outcome(*arguments) == expected


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
    plain = [event(0, 0, 1, None)] * 9 + [event(0, 0, 1, FinishReason.EOS)]
    assert stats(*plain).mean_accepted_tokens == 9 / 10  # the published figure of plain decoding
    empty = DecodeStats()
    assert empty.mean_accepted_tokens == empty.mean_emitted_tokens == empty.acceptance_rate == 0
    assert empty.acceptance_by_position == []
    assert stats(event(3, 1, 2, None)).acceptance_by_position == [1.0, 0.0, 0.0]


def test_addition_is_observing_both() -> None:
    a, b, both = stats(*ONE), stats(*TWO), stats(*ONE, *TWO)
    a.seconds, b.seconds = {"draft": 1.0, "rest": 2.0}, {"draft": 0.5, "verify": 4.0}
    both.seconds = {"draft": 1.5, "rest": 2.0, "verify": 4.0}
    assert a + b == both
    assert b + a == both
    assert a.drafted_at == [3, 3, 2]  # the summands are left alone


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
    # The clock is at its end: one that is switched off does not read it.
    off = PartTimer(torch.device("cpu"), enabled=False, clock=lambda: next(ticks))
    with off.part("draft"):
        pass
    assert off.seconds == {}
