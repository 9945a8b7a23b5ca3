from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import mode
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch

from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.schedules.adaptive import RoundCosts, best_width, count_judged
from specdec_plugins.decoding.types import (
    Draft,
    DraftSchedule,
    Outcome,
    Round,
    Scores,
    SourceBatch,
    Verdict,
)
from specdec_plugins.errors import UserError
from tests.decoding.toys import (
    SCRIPTS,
    ScriptedDrafter,
    TableVerifier,
    both,
    draft_of,
    method_of,
    prefix_of,
    random_table,
    requests,
    row_params,
)

BEFORE: WeakKeyDictionary[DraftSchedule, Outcome] = WeakKeyDictionary()  # of the last round


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
    seconds: float | None = None,
    joined: tuple[int, float] = (0, 0.0),
) -> None:
    """One round of so many tokens a row; `confidence` is the verifier's in its own token 5.

    What it took is said with the next one.
    """
    draft = draft_of([[4] * n for n in drafted])
    logits = torch.full((len(drafted), draft.tokens.shape[1] + 1, 6), torch.nan)
    for b, p in enumerate(confidence or [0.5] * len(drafted)):
        odds = torch.tensor(p / (1 - p) * 5).log() if p < 1 else torch.tensor(99.0)
        logits[b, accepted[b]] = torch.tensor([0.0, 0, 0, 0, 0, float(odds)])
    verdict = Verdict(torch.tensor(accepted), torch.full((len(drafted),), 5))
    prefix = prefix_of([[4]] * len(drafted))
    schedule.commit(prefix, Round(draft, Scores(logits), verdict, BEFORE.get(schedule)))
    num_emitted = sum(accepted) + len(drafted)
    BEFORE[schedule] = Outcome(len(drafted), num_emitted, 0, seconds, *joined)


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
        commit(schedule, asked, whole, seconds=0.01)


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


COSTS = {"plain_seconds": 1.0, "round_seconds": 1.5, "token_seconds": 0.1}


def best(alphas: list[float], sizes: list[int]) -> list[int]:
    """The definition in plain Python."""

    def rate(k: int) -> float:
        pairs = zip(alphas, sizes, strict=True)
        expected = sum(sum(alpha**i for i in range(min(k, size) + 1)) for alpha, size in pairs)
        return expected / (1.5 + 0.1 * k) if k else 1.02 * expected

    width = max(range(max(sizes) + 1), key=rate)
    return [min(width, size) for size in sizes]


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.7, 0.9, 0.98])
@pytest.mark.parametrize("sizes", [[25], [25, 4], [3, 0]])
def test_adaptive_maximises_tokens_a_second(alpha: float, sizes: list[int]) -> None:
    schedule = opened("adaptive", len(sizes), acceptance=alpha, **COSTS)
    assert budget(schedule, sizes) == best([alpha] * len(sizes), sizes)


def test_adaptive_learns_each_rows_acceptance() -> None:
    schedule = opened("adaptive", 3, acceptance=0.9, evidence=4.0, **COSTS)
    commit(schedule, [4, 4, 0], [4, 0, 0])
    # tokens accepted over tokens judged: the rejected one was judged, those behind it were not
    prior = (0.98 * 3.6 + 4) / (0.98 * 4 + 5)  # of all rows, with the weight of four tokens
    seen = 4 * prior
    alphas = [(seen + 4) / (4 + 4), seen / (4 + 1), prior]
    alone = [best([alpha], [25])[0] for alpha in alphas]
    assert len({*alone, best([seen / (4 + 4)], [25])[0]}) == 4
    assert budget(schedule, count=3) == best(alphas, [25] * 3)
    for row in (2, 0, 1):  # which of them is which
        one = opened("adaptive", 3, acceptance=0.9, evidence=4.0, **COSTS)
        commit(one, [4, 4, 0], [4, 0, 0])
        one.select(torch.tensor([row]))
        assert budget(one) == [alone[row]]
    change(schedule, [1], 1)
    assert budget(schedule, count=2) == best([alphas[1], prior], [25] * 2)
    change(schedule, [], 1)  # a new call begins with what was learnt
    assert budget(schedule) == [alone[2]]


def test_adaptive_counts_and_chooses_alike() -> None:
    """By the kernels and by torch, up to equally good widths."""
    random = torch.Generator().manual_seed(0)
    for _ in range(100):
        block = torch.randint(0, 9, (5,), generator=random)
        accepted = (torch.rand(5, generator=random) * (block + 1)).long()
        costs = [1.0, *(1.2 + torch.rand(8, generator=random).cumsum(0)).tolist()]

        def counted() -> tuple[torch.Tensor, torch.Tensor]:
            counts, pool = torch.ones(2, 5) * 3, torch.tensor([9.0, 4.0])
            count_judged(block, accepted, counts, pool)  # noqa: B023
            return counts, pool

        (counts, pool), others = both(counted)
        torch.testing.assert_close((counts, pool), others)
        one, other = both(partial(best_width, counts, pool, block, costs, 4.0, 0.1))
        assert one.dtype == other.dtype
        rates = [_rate(counts, pool, block, costs, int(width)) for width in (one, other)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-5)


def _rate(
    counts: torch.Tensor, pool: torch.Tensor, block: torch.Tensor, costs: list[float], width: int
) -> float:
    """Tokens a second, each power of each row added up."""
    prior, tokens = float(pool[1] / pool[0]), 0.0
    for (judged, accepted), most in zip(counts.t().tolist(), block.tolist(), strict=True):
        alpha = min((accepted + 4 * prior) / (judged + 4), 0.999)
        tokens += sum(alpha**k for k in range(min(width, most) + 1))
    return tokens / costs[width] * (1.1 if width == 0 else 1.0)


def test_one_row_does_not_make_a_batch_draft() -> None:
    """A round costs everybody what it costs the one who drafts."""
    schedule = opened("adaptive", 6, acceptance=0.5, evidence=0.1, **COSTS)
    for _ in range(4):
        commit(schedule, [4] * 6, [2, *[0] * 5])
    assert budget(schedule, count=6) == [0] * 6
    schedule.select(torch.tensor([0]))
    assert budget(schedule)[0] > 1


# Widths of the rounds that are measured first, of blocks of 20; the last fills the time until what
# the one before it took is known.
ASKED = [10, 10, 20, 20, 10]
FIRST = [0] * 8 + ASKED


def run(
    schedule: DraftSchedule, num_rounds: int, slope: float, accepts: bool = True, count: int = 1
) -> list[int]:
    """Rounds of rows with a block of 20, a token of `slope` seconds: what each one drafted."""
    asked: list[int] = []
    for _ in range(num_rounds):
        widths = budget(schedule, 20, count)
        asked.append(max(widths))
        commit(schedule, widths, widths if accepts else [0] * count, None, 1 + slope * asked[-1])
    return asked


@pytest.mark.parametrize(
    ("slope", "least", "most"),
    [(0.0, 20, 20), (0.1, 1, 9), (3.0, 0, 0)],  # tokens are free, cost something, never pay
)
def test_adaptive_measures_costs_and_follows_them(slope: float, least: int, most: int) -> None:
    asked = run(opened("adaptive", 1, acceptance=0.8, evidence=1e6), 40, slope)
    assert asked[:13] == FIRST
    assert set(asked[13:]) == {asked[-1]}
    assert least <= asked[-1] <= most


def test_adaptive_keeps_the_costs_of_batches_apart() -> None:
    """Drafting pays for one row and not for eight, and both are remembered."""
    schedule = opened("adaptive", 1, acceptance=0.8, evidence=1e6)

    def asked(count: int, num_rounds: int) -> list[int]:
        change(schedule, [], count)
        return run(schedule, num_rounds, 0.1 if count == 1 else 3.0, count=count)

    one, eight = asked(1, 20), asked(8, 80)
    assert one[:13] == FIRST
    assert eight[:69] == [0] * 64 + ASKED
    assert set(one[13:]) == {one[-1]} != {0}
    assert set(eight[69:]) == {0}
    assert asked(1, 5) == [one[-1]] * 5
    assert asked(8, 5) == [0] * 5


def test_more_rows_are_not_asked_where_drafting_does_not_pay_for_fewer() -> None:
    schedule = opened("adaptive", 2, patience=2)
    assert run(schedule, 10, 3.0, count=2) == [0] * 4 + ASKED + [0]
    change(schedule, [], 8)
    assert set(run(schedule, 100, 3.0, count=8)) == {0}
    change(schedule, [], 1)
    assert run(schedule, 7, 3.0) == [0] * 2 + ASKED


def test_a_round_that_lost_rows_measures_nothing() -> None:
    """What eight rows were asked to draft says nothing of four, and is asked of eight again."""
    schedule = opened("adaptive", 8, patience=2)
    assert run(schedule, 16, 3.0, count=8) == [0] * 16
    assert budget(schedule, 20, count=8) == [10] * 8
    schedule.select(torch.arange(4))
    commit(schedule, [10] * 4, [0] * 4, seconds=9.0)
    assert budget(schedule, 20, count=4) == [0] * 4  # four begin with plain rounds
    schedule.admit(rows(4))
    assert budget(schedule, 20, count=8) == [10] * 8


def test_adaptive_measures_again_from_time_to_time() -> None:
    """After a quarter of the rounds at first, then after half of them, then after all."""
    schedule = opened("adaptive", 1, acceptance=0.8, evidence=1e6, probe_every=40)
    asked = run(schedule, 140, 0.1)
    usual, again = asked[13], [22, 51, 100]
    for first in again:
        assert asked[first : first + 12] == [20, 10, 20, 10] + [0] * 8
    assert usual not in (0, 10, 20)
    assert set(asked[13:22] + asked[34:51] + asked[63:100] + asked[112:]) == {usual}


def test_adaptive_asks_the_seldomer_the_more_asking_loses() -> None:
    """A draft takes 31 or 61 plain rounds and brings the token of one, so four lose 200."""
    schedule = opened("adaptive", 1, acceptance=0.8, probe_every=12)
    asked = run(schedule, 3000, 3.0, accepts=False)
    assert asked[:13] == FIRST
    assert [i for i, width in enumerate(asked) if width > 0][5:9] == [1198, 1199, 1200, 1201]
    assert {width for width in asked if width > 0} == {10, 20}


def test_adaptive_follows_a_machine_that_changes() -> None:
    schedule = opened("adaptive", 1, acceptance=0.8, evidence=1e6, probe_every=20)
    for num_rounds, slope, wanted in ((60, 0.0, 20), (600, 3.0, 0), (4000, 0.0, 20)):
        assert mode(run(schedule, num_rounds, slope)[-40:]) == wanted


@pytest.mark.parametrize(
    ("held_up", "num_rounds", "slope", "least", "most"),
    [((0, 8), 13, 0.01, 11, 20), ((2,), 30, 3.0, 0, 0)],
    ids=["warming up", "something else"],
)
def test_rounds_that_were_held_up_do_not_count(
    held_up: tuple[int, ...], num_rounds: int, slope: float, least: int, most: int
) -> None:
    schedule = opened("adaptive", 1, acceptance=0.8, evidence=1e6)
    for number in range(num_rounds):
        asked = budget(schedule, 20)
        seconds = 500.0 if number in held_up else 1.0 + slope * asked[0]
        commit(schedule, asked, asked, seconds=seconds)
    assert least <= budget(schedule, 20)[0] <= most


@pytest.mark.parametrize(("joining", "drafts"), [(1.0, True), (40.0, False)])
def test_what_joining_takes_belongs_to_the_tokens_of_a_sentence(
    joining: float, drafts: bool
) -> None:
    """A draft takes as long as none and brings five tokens; a sentence of 20 tokens joins once."""
    schedule = opened("adaptive", 1, acceptance=0.8, evidence=1e6)
    for number in range(20):
        asked = budget(schedule, 20)
        kept = [min(asked[0], 4)]
        commit(schedule, asked, kept, seconds=1.0, joined=(int(number == 8), joining))
    assert (budget(schedule, 20)[0] > 0) == drafts


def test_what_rounds_fall_short_of_is_no_gain() -> None:
    """Drafts of which the pool promises 5 tokens a round end with the sentence after one."""
    shares = []
    for emitted in (5, 1):
        schedule = opened("adaptive", 1, acceptance=0.8, evidence=1e6)
        drafted = []
        for _ in range(1200):
            asked = budget(schedule, 20)
            drafted.append(asked[0] > 0)
            commit(schedule, asked, [0], seconds=2.0 if drafted[-1] else 1.0)
            BEFORE[schedule] = replace(BEFORE[schedule], num_emitted=emitted if drafted[-1] else 1)
        shares.append(sum(drafted[-200:]) / 200)
    assert shares[0] > 0.9
    assert shares[1] < 0.1


@pytest.mark.parametrize(("price", "width"), [(0.0, 4), (0.1, 3), (0.5, 2), (1.0, 1), (9.0, 1)])
def test_a_draft_ends_where_a_position_costs_more_than_it_promises(
    price: float, width: int
) -> None:
    """Two rows that are sure of 1.7, 0.85, 0.125 and 0.04 tokens, the last of one row alone."""
    schedule = opened("adaptive", 2, acceptance=0.8, patience=2)
    run(schedule, 12, 0.01, count=2)
    probs = torch.tensor([[0.9, 0.5, 0.1, 0.9], [0.8, 0.5, 0.2, 0.9]])
    draft = Draft(torch.ones(2, 4).long(), torch.tensor([4, 3]), confidences=probs)
    schedule._asking.costs.price = price  # type: ignore[attr-defined]
    cut = schedule.trim(draft)
    assert cut.tokens.shape == (2, width)
    assert cut.lengths.tolist() == [width, min(width, 3)]
    assert schedule.trim(replace(draft, confidences=None)).tokens.shape == (2, 4)
    begun = opened("adaptive", 2, patience=2)
    run(begun, 4, 0.01, count=2)
    assert budget(begun, 4, count=2) == [2, 2]  # to be measured
    assert begun.trim(draft) is draft


def test_a_draft_must_promise_more_than_none() -> None:
    """Of one token, right every second time: 1.5 tokens in 1.4 times the time."""
    costs = {"plain_seconds": 1.0, "round_seconds": 1.4, "token_seconds": 0.0}
    for margin, wanted in ((0.0, 1), (0.1, 0)):
        schedule = opened("adaptive", 1, acceptance=0.5, margin=margin, **costs)
        assert budget(schedule, 1) == [wanted]


def test_adaptive_thinks_again_when_rows_change() -> None:
    schedule = opened("adaptive", 2, acceptance=0.7, evidence=4.0, **COSTS)
    commit(schedule, [4, 4], [4, 0])
    for _ in range(9):
        commit(schedule, [4, 4], [1, 0])
    assert budget(schedule, count=2) == [0, 0]
    commit(schedule, [0, 0], [0, 0])
    assert budget(schedule, count=2) == [0, 0]
    schedule.select(torch.tensor([0]))
    for _ in range(9):
        commit(schedule, [4], [4])
    assert budget(schedule)[0] > 0
    commit(schedule, [0], [0])  # for another reason: its last token, say
    schedule.admit(rows(1))
    assert budget(schedule, count=2)[0] > 0


def test_round_costs_fit_a_line() -> None:
    costs = RoundCosts()
    costs.settle()
    assert not costs.known
    for width in (0, 3, 9, 5, 1):
        costs.observe(width, 0.5 if width == 0 else 2.0 + 0.25 * width, width + 1)
    costs.settle()
    assert costs.known
    assert costs.by_width(4) == pytest.approx([0.5, 2.25, 2.5, 2.75, 3.0])
    assert costs.price == pytest.approx(0.25 * 22 / 12.5)
    # Four such drafts take 25 plain rounds and bring the tokens of 22.
    assert costs.lost(4, 0.5) == pytest.approx(25 - 22 + 1)
    level = RoundCosts()
    level.observe(0, 1.0, 1)
    level.observe(5, 2.0, 1)
    level.settle()
    assert level.by_width(2) == pytest.approx([1.0, 2.0, 2.0])  # one width says no slope


def test_round_costs_are_of_one_time() -> None:
    costs = RoundCosts()
    for width, seconds in ((0, 1.0), (4, 9.0), (8, 3.0)):
        costs.observe(width, seconds, 1)
    costs.settle()
    costs.observe(0, 8.0, 1)
    costs.observe(8, 3.0, 1)
    costs.settle()
    # Plain rounds took 1/6 of others, then 8/3 of them: 2/3.
    assert costs.by_width(4) == pytest.approx([2.0, 3.0, 3.0, 3.0, 3.0])
    costs.observe(8, 5.0, 1)
    costs.settle()  # without a plain round of that time: better old costs than wrong ones
    assert costs.by_width(1) == pytest.approx([2.0, 3.0])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("heuristic", {"start": 0}, "start must be 1 or more"),
        ("heuristic", {"grow": -1}, "grow"),
        ("heuristic", {"shrink": -1}, "shrink"),
        ("target_confidence", {"threshold": 1.1}, "threshold"),
        ("adaptive", {"acceptance": -0.1}, "acceptance"),
        ("adaptive", {"evidence": 0.0}, "evidence"),
        ("adaptive", {"probe_every": 9}, "probe_every"),
        ("adaptive", {"margin": -0.1}, "margin"),
        ("adaptive", {"patience": 1}, "patience"),
        ("adaptive", {"plain_seconds": 1.0}, "together"),
        ("adaptive", {**COSTS, "plain_seconds": 0.0}, "together"),
        ("adaptive", {**COSTS, "token_seconds": -1.0}, "together"),
        ("constant", {"size": 3}, "its options: none"),
        ("wishful", {}, "choose one of: adaptive, constant, heuristic, target_confidence"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SCHEDULES.build(name, options=options)
