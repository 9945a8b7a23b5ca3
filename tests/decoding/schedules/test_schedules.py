from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec_plugins.decoding.contract import DraftSchedule, Round, Scores, SourceBatch, Verdict
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.schedules import SCHEDULES
from tests.decoding.toys import (
    SCRIPTS,
    ScriptedDrafter,
    TableVerifier,
    draft_of,
    method_of,
    prefix_of,
    random_table,
    requests,
    row_params,
)
from tests.refusals import refused


def rows(count: int) -> SourceBatch:
    ones = torch.ones(count, dtype=torch.int64)
    return SourceBatch(ones[:, None], ones, ones[:, None], ones)


def opened(name: str, count: int, **options: Any) -> DraftSchedule:
    schedule = SCHEDULES.build(name, options=options)
    change(schedule, [], count)  # as a session does first
    return schedule


def change(schedule: DraftSchedule, kept: list[int], num_new: int) -> None:
    """Of the rows these stay, and so many join."""
    schedule.select(torch.tensor(kept, dtype=torch.int64))
    schedule.admit(rows(num_new))


def commit(
    schedule: DraftSchedule,
    drafted: list[int],
    accepted: list[int],
    confidence: list[float] | None = None,
) -> None:
    """One round of so many tokens a row; `confidence` is the verifier's in its own token 5."""
    draft = draft_of([[4] * n for n in drafted])
    logits = torch.full((len(drafted), draft.tokens.shape[1] + 1, 6), torch.nan)
    for b, p in enumerate(confidence or [0.5] * len(drafted)):
        odds = torch.tensor(p / (1 - p) * 5).log() if p < 1 else torch.tensor(99.0)
        logits[b, accepted[b]] = torch.tensor([0.0, 0, 0, 0, 0, float(odds)])
    verdict = Verdict(torch.tensor(accepted), torch.full((len(drafted),), 5))
    prefix = prefix_of([[4]] * len(drafted))
    schedule.commit(prefix, Round(draft, Scores(logits), verdict))


def budget(schedule: DraftSchedule, block_size: int | list[int] = 25, count: int = 1) -> list[int]:
    num_rows = len(block_size) if isinstance(block_size, list) else count
    asked = schedule.next_budget(row_params(num_rows, block_size=block_size))
    return [0] * num_rows if asked is None else asked.tolist()


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_no_schedule_asks_for_more_than_the_block_or_less_than_nothing(name: str) -> None:
    schedule = opened(name, 4)
    sizes = [0, 1, 3, 25]
    assert name != "constant" or budget(schedule, sizes) == sizes
    for i in range(12):
        asked = budget(schedule, sizes)
        assert all(0 <= a <= size for a, size in zip(asked, sizes, strict=True))
        whole = [a if (b + i) % 3 else 0 for b, a in enumerate(asked)]
        commit(schedule, asked, whole)


def test_heuristic_grows_by_two_and_shrinks_by_one() -> None:
    schedule = opened("heuristic", 3, start=2)
    assert budget(schedule, [25, 25, 3]) == [2, 2, 2]
    commit(schedule, [2, 2, 2], [2, 1, 2])
    assert budget(schedule, [25, 25, 3]) == [4, 1, 3]
    commit(schedule, [4, 1, 3], [3, 0, 3])
    assert budget(schedule, [25, 25, 3]) == [3, 1, 3]  # never under 1, nor over the block
    commit(schedule, [0, 1, 3], [0, 1, 2])
    assert budget(schedule, [25, 25, 3]) == [3, 3, 2]  # nothing drafted, nothing learnt


def test_heuristic_keeps_its_size_between_calls_only_if_asked() -> None:
    for keep, begun in ((True, 8), (False, 5)):
        schedule = opened("heuristic", 3, start=5, keep=keep)
        commit(schedule, [5, 5, 5], [5, 0, 5])
        commit(schedule, [7, 4, 7], [7, 0, 7])  # 9, 3, 9
        change(schedule, [0, 1, 2], 1)  # nobody left
        assert budget(schedule, count=4) == [9, 3, 9, 5]
        commit(schedule, [9, 3, 9, 5], [0, 0, 0, 5])  # 8, 2, 8, 7
        change(schedule, [1, 3], 1)  # two of 8 leave
        assert budget(schedule, count=3) == [2, 7, begun]
        change(schedule, [], 1)  # a new call; 2, 7 and `begun` leave
        assert budget(schedule) == [6 if keep else 5]


@pytest.mark.parametrize("keep", [True, False])
def test_heuristic_goes_on_in_the_next_call_only_if_asked(keep: bool) -> None:
    """Through the engine: a call ends with rows that nobody has dropped yet."""
    table = random_table()
    method = method_of(
        ScriptedDrafter(table, SCRIPTS["always"]), schedule="heuristic", start=1, keep=keep
    )
    decoder = SpeculativeDecoder(TableVerifier(table), method)
    [first] = decoder.decode(requests(1, block_size=25, max_len=40))
    assert first.drafted_per_round[:4] == [1, 3, 5, 7]
    [again] = decoder.decode(requests(1, block_size=25, max_len=40))
    assert again.token_ids == first.token_ids
    assert again.drafted_per_round[0] == (1 + 2 * first.rounds if keep else 1)


def test_gate_opens_at_the_threshold() -> None:
    schedule = opened("target_confidence", 4, threshold=0.5)
    assert budget(schedule, [8, 8, 8, 0]) == [8, 8, 8, 0]  # drafts at once
    commit(schedule, [2, 2, 0, 0], [2, 0, 0, 0], [0.4, 0.6, 0.9, 0.9])
    assert budget(schedule, [8, 8, 8, 0]) == [0, 8, 8, 0]
    commit(schedule, [0, 2, 1, 0], [0, 1, 1, 0], [0.7, 0.3, 0.2, 0.9])
    assert budget(schedule, [8, 8, 8, 0]) == [8, 0, 0, 0]
    change(schedule, [2, 0], 1)
    assert budget(schedule, [8, 8, 8]) == [0, 8, 8]
    for threshold, want in ((0, 8), (1.0, 0)):
        one = opened("target_confidence", 1, threshold=threshold)
        commit(one, [1], [1], [0.01])
        assert budget(one, 8) == [want]


@pytest.mark.parametrize(
    ("others", "want"),
    [
        ([-99.0] * 4 + [0.0], 8),  # half and half: the boundary drafts
        ([-99.0] * 4 + [0.1], 0),
        ([-99.0] * 4 + [9.0], 0),  # sure of a token, but not of the one that was emitted
    ],
)
def test_gate_reads_the_emitted_token_and_includes_its_boundary(
    others: list[float], want: int
) -> None:
    schedule = opened("target_confidence", 1, threshold=0.5)
    logits = torch.tensor([[[*others, 0.0]]])
    verdict = Verdict(torch.tensor([0]), torch.tensor([5]))
    schedule.commit(prefix_of([[4]]), Round(draft_of([[]]), Scores(logits), verdict))
    assert budget(schedule, 8) == [want]


def test_few_rows_draft_and_many_do_not() -> None:
    for most in (0, 1, 3):
        schedule = opened("few_rows", 1, rows=most)
        sizes = [budget(schedule, 7, count) for count in (1, 2, 3, 4)]
        assert sizes == [[7 if count <= most else 0] * count for count in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("heuristic", {"start": 0}, "start must be 1 or more"),
        ("heuristic", {"grow": -1}, "grow"),
        ("heuristic", {"shrink": -1}, "shrink"),
        ("target_confidence", {"threshold": 1.1}, "threshold"),
        ("few_rows", {"rows": -1}, "rows must be 0 or more"),
        ("adaptive", {}, "was removed: few_rows"),
        ("constant", {"size": 3}, "its options: none"),
        ("wishful", {}, "choose one of: constant, few_rows, heuristic, target_confidence"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    refused(words, SCHEDULES.build, name, options=options)
