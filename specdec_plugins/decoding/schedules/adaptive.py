"""Draft the block that promises the most tokens a second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean, median_low

import torch
from torch import Tensor

from specdec_plugins.decoding.extend import narrowed
from specdec_plugins.decoding.networks.cpu.ops import compiled, native
from specdec_plugins.decoding.types import (
    SCHEDULES,
    Draft,
    DraftSchedule,
    Outcome,
    Prefix,
    Round,
    RowParams,
    SourceBatch,
)
from specdec_plugins.errors import require

_DECAY = 0.98  # of the counts over all rows, each round; about the last 50 rounds count
_REMEMBERED = 9  # latest rounds kept for each width
_PLAIN, _HALF, _WHOLE = 0.0, 0.5, 1.0  # kinds of rounds: shares of the block that they draft
_DRAFTED = (_HALF, _HALF, _WHOLE, _WHOLE)  # measured rounds while the choice is not to draft
_ALL = (_WHOLE, _HALF) * 2 + (_PLAIN,) * 8  # and while it is to draft
_GOES_ON = (15, 3)  # rounds for which a decision holds, without or with drafts
_LEAST = 1e-4  # seconds of verifying a position; below it, trimming costs more than it saves
_LENGTH = 20.0  # tokens of a sentence, assumed until one has finished


@SCHEDULES.register("adaptive")
class Adaptive(DraftSchedule):
    """Maximise the expected tokens of a round over its seconds.

    A decision holds for some rounds, while the number of rows stays the same: deciding takes time,
    and rounds without drafts teach nothing.

    With acceptance alpha a token, a draft of K emits (1 - alpha^(K+1)) / (1 - alpha) tokens on
    average (Leviathan et al. 2023, equation 1). Each row has its own alpha: tokens accepted over
    tokens judged. Its prior, with the weight of `evidence` tokens, is the recent rate of all rows,
    which itself starts at `acceptance`. A round costs all rows what its widest draft costs, so the
    batch has one width: that of most tokens a second, summed over its rows, if it promises `margin`
    more than no draft. Sentences end within drafts, so the expectation is scaled by the share that
    rounds really emitted. The one-time cost of joining the drafter is spread over a sentence.

    If the drafter reports its confidence in each token (`Draft.confidences`), the draft is trimmed
    again: at the position from which the rows together expect fewer tokens than usually come in the
    time of verifying it. All rows are cut there, as a width costs the same however many use it.

    Costs are measured for each power of two of the number of rows (`Measurement`). Plain rounds
    gain more from a batch than drafting rounds, so where drafting does not pay for some number of
    rows, it is not tried for more. A round's time is known after its copy to the host, when the
    next one is already planned, so it arrives with that one. Given costs make this deterministic.
    """

    @dataclass(frozen=True)
    class Config:
        acceptance: float = 0.7  # share, 0..1, of accepted tokens, assumed at first
        evidence: float = 64.0  # tokens that this assumption weighs, above 0
        plain_seconds: float | None = None  # of a round without a draft; None = measure all three
        round_seconds: float | None = None  # of a round with a draft, without its tokens
        token_seconds: float | None = None  # of each drafted token
        margin: float = 0.02  # share, 0 or more, by which drafting must promise to be faster
        probe_every: int = 200  # rounds between two measurements; more where one costs more
        patience: int = 8  # plain rounds for each row of a batch, before it first drafts

        def __post_init__(self) -> None:
            require(
                0 <= self.acceptance <= 1, f"acceptance must be within 0..1, not {self.acceptance}."
            )
            require(self.margin >= 0, f"margin must be 0 or more, not {self.margin}.")
            require(self.evidence > 0, f"evidence must be above 0, not {self.evidence}.")
            require(
                self.probe_every >= 10, f"probe_every must be 10 or more, not {self.probe_every}."
            )
            require(self.patience >= 2, f"patience must be 2 or more, not {self.patience}.")
            costs = (self.plain_seconds, self.round_seconds, self.token_seconds)
            given = [cost for cost in costs if cost is not None]
            require(
                len(given) in (0, 3) and all(cost >= 0 for cost in given) and 0.0 not in costs[:2],
                "give plain_seconds and round_seconds (above 0) and token_seconds (0 or more) "
                "together, or none of them to have them measured.",
            )

    _config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # Keyed by the bit length of the number of rows: costs hold for no other.
        self._measured: dict[int, Measurement] = {}
        self._joining = Joining()
        self._asking: Measurement | None = None  # the one that the last budget was for
        # Where the last round's time goes, its width, and whether to settle the costs then
        self._timing: tuple[RoundCosts, int, bool] | None = None
        self._promised = 0.0  # expected tokens a row of the last round, if it had a draft
        self._kept_share = 1.0  # share of the promised tokens that was emitted
        self._is_chosen = False  # the last budget was a choice, not a measurement
        self._goes_on = 0  # coming rounds without a new decision and without learning
        self._num_rows = 0  # when the last budget was decided
        self._width: Tensor | None = None  # [] int64, the decided width; None = no draft
        self._trims = False  # the drafter reports confidences, readable without waiting
        # [2, B] float32, tokens judged and tokens accepted; None before the first row
        self._counts: Tensor | None = None
        self._pool: Tensor | None = None  # [2] float32, the same of all rows, decaying

    @property
    def follows_clock(self) -> bool:
        return self._config.plain_seconds is None

    def admit(self, source: SourceBatch) -> None:
        none = source.lengths.new_zeros(2, len(source), dtype=torch.float32)
        self._counts = none if self._counts is None else torch.cat([self._counts, none], 1)
        if self._pool is None:
            weight = self._config.evidence
            self._pool = none.new_tensor([weight, weight * self._config.acceptance])

    def commit(self, prefix: Prefix, last: Round) -> None:
        self._learn(last.before)
        width, num_rows = last.draft.tokens.shape[1], len(prefix.lengths)
        if self._goes_on > 0 and num_rows == self._num_rows:
            self._goes_on -= 1
            return
        self._goes_on = _GOES_ON[width > 0] if self._is_chosen else 0
        # After rows have left, the round is not the one that was to be measured.
        measured = self._measured.get(num_rows.bit_length())
        if measured is not None and measured is self._asking:
            counts, settles = measured.observe(
                width, self._is_chosen, num_rows * self._joining.seconds
            )
            if counts:
                self._timing = (measured.costs, width, settles)
            if measured.due() is not None:
                self._goes_on = 0
        if width == 0:
            return
        assert self._counts is not None
        assert self._pool is not None
        if self.follows_clock and self._pool.is_cpu:
            judged, accepted = self._pool.tolist()
            alpha = min(accepted / judged, 0.999)
            self._promised = (1 - alpha ** (width + 1)) / (1 - alpha)
        lengths, kept = last.draft.lengths, last.verdict.num_accepted
        count_judged(lengths, kept, self._counts, self._pool)

    def _learn(self, before: Outcome | None) -> None:
        """Learn from the round before the last one; from its time only if it was to be measured."""
        timing, self._timing = self._timing, None
        promised, self._promised = self._promised, 0.0
        if before is None or before.num_rows == 0:
            return
        self._joining.observe(before)
        if promised > 0:
            share = before.num_emitted / before.num_rows / promised
            self._kept_share += (1 - _DECAY) * (share - self._kept_share)
        if timing is not None and before.seconds is not None:
            costs, width, settles = timing
            costs.observe(width, before.seconds, before.num_emitted)
            if settles:
                costs.settle()

    def select(self, rows: Tensor) -> None:
        if self._counts is not None:
            self._counts = self._counts[:, rows]

    def next_budget(self, params: RowParams) -> Tensor | None:
        block = params.block_size
        if self._goes_on > 0 and len(block) == self._num_rows:
            return self._capped(block)
        self._is_chosen, self._goes_on, self._num_rows = False, 0, len(block)
        if not self.follows_clock:
            return self._best(block, self._given(params.widest_block))
        size = len(block).bit_length()
        measured = self._measured.get(size)
        if measured is None:
            measured = Measurement(self._config.probe_every, self._config.patience * len(block))
            self._measured[size] = measured
        self._asking = measured
        share = measured.due()
        if measured.asks and self._fewer_refuse(size):
            self._asking = None
            return None
        if share is not None:
            return (block * share).ceil().long() if share > 0 else None
        plain, *drafted = measured.costs.by_width(params.widest_block)
        costs = [plain, *(seconds / self._kept_share for seconds in drafted)]
        # Deduct from a plain round what joining would add to its tokens if they were drafted.
        costs[0] -= (1 + self._config.margin) * self._joining.a_token * len(block)
        return self._best(block, costs)

    def _fewer_refuse(self, size: int) -> bool:
        """True if drafting does not pay for fewer rows."""
        return any(other < size and found.refuses for other, found in self._measured.items())

    def _best(self, block: Tensor, costs: list[float]) -> Tensor | None:
        """The width of most tokens a second, or each row's block where that is less: [B] int64.

        None if plain rounds cost nothing or less.
        """
        assert self._counts is not None
        assert self._pool is not None
        self._is_chosen, self._width = True, None
        weight, margin = self._config.evidence, self._config.margin
        if costs[0] > 0:
            self._width = best_width(self._counts, self._pool, block, costs, weight, margin)
        return self._capped(block)

    def _capped(self, block: Tensor) -> Tensor | None:
        """The decided width, no more than each row's block."""
        if self._width is None:
            return None
        # A draft that will be trimmed starts with the whole block.
        return block * (self._width > 0) if self._trims else torch.minimum(self._width, block)

    def _given(self, widest: int) -> list[float]:
        """The given seconds of a round by the width of its draft, 0..widest."""
        plain, fixed = self._config.plain_seconds, self._config.round_seconds
        slope = self._config.token_seconds
        assert plain is not None
        assert fixed is not None
        assert slope is not None
        return [plain, *(fixed + slope * k for k in range(1, widest + 1))]

    def trim(self, draft: Draft) -> Draft:
        """Cut the draft at the position that promises less than it costs; the first one stays."""
        self._trims = draft.confidences is not None and draft.tokens.is_cpu and self.follows_clock
        if not (self._trims and self._is_chosen and self._asking) or draft.confidences is None:
            return draft
        if self._asking.costs.slope < _LEAST:
            return draft
        reached = (draft.confidences.cumprod(1) * draft.mask).sum(0)  # [K] tokens, falling
        return narrowed(draft, max(1, int((reached >= self._asking.costs.price).sum())))


def count_judged(lengths: Tensor, accepted: Tensor, counts: Tensor, pool: Tensor) -> None:
    """Add a round's tokens judged and accepted, of `lengths` and `accepted` [B] int64, in place.

    counts: [2, B] float32, of each row; pool: [2] float32, of all, where earlier ones decay.
    """
    if compiled(lengths):
        native.count_judged(lengths, accepted, counts, pool, _DECAY)
        return
    added = torch.stack([torch.minimum(accepted + 1, lengths), accepted])
    counts += added
    pool.mul_(_DECAY).add_(added.sum(1))


def best_width(
    counts: Tensor,  # [2, B] float32, tokens judged and accepted
    pool: Tensor,  # [2] float32, of all rows
    block: Tensor,  # [B] int64, the most that each row may draft
    costs: list[float],  # seconds of a round by the width of its draft, from 0
    weight: float,  # weight of the pool in each row's estimate, in tokens
    margin: float,  # share by which drafting must promise to be faster
) -> Tensor:  # [] int64
    """The width of most tokens a second, summed over the rows; the narrowest of equal ones."""
    if compiled(block):
        return torch.tensor(native.best_width(counts, pool, block, costs, weight, margin))
    judged, accepted = counts
    alpha = (accepted + weight * (pool[1] / pool[0])) / (judged + weight)
    alpha = alpha.clamp(max=0.999)[:, None]  # [B, 1]
    widths = torch.arange(len(costs), device=alpha.device)  # [K+1]
    drafted = torch.minimum(widths, block[:, None])  # [B, K+1]
    expected = ((1 - alpha ** (drafted + 1)) / (1 - alpha)).sum(0)  # [K+1]
    rate = expected / torch.tensor(costs, device=alpha.device)
    rate[0] *= 1 + margin
    best: Tensor = rate.argmax()
    return best


class Joining:
    """The one-time cost of a row to join the drafter."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._tokens, self._rows = _LENGTH, 1  # emitted tokens, finished rows

    def observe(self, outcome: Outcome) -> None:
        self._tokens += outcome.num_emitted
        self._rows += outcome.num_finished
        if outcome.num_joined and outcome.joining > 0:
            self._seconds.append(outcome.joining / outcome.num_joined)

    @property
    def seconds(self) -> float:
        """For one row; 0 while unknown."""
        return median_low(self._seconds) if self._seconds else 0.0

    @property
    def a_token(self) -> float:
        """The same spread over the tokens of a sentence."""
        return self.seconds * self._rows / self._tokens


class RoundCosts:
    """Seconds of a round without a draft, and a straight line through those of rounds with one.

    The line holds for a block drafter (one pass, any width) as for an assistant (a pass for each
    token). A machine may be slower for some seconds. So `settle` takes all costs from rounds of the
    same period, and they stay until it is called again. The ratio of rounds without a draft to
    rounds with one is the geometric mean of its new and its previous value.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}  # by width, of the latest rounds since `settle`
        # Tokens emitted by rounds without a draft, and by those with one
        self._emitted: list[deque[int]] = [deque(maxlen=_REMEMBERED) for _ in range(2)]
        self._plain = self._ratio = 0.0  # seconds without a draft; their ratio to those with one
        self._line = (0.0, 0.0)  # seconds at width 0, and for each position
        self._loss = 0.0  # plain rounds that a round with a draft costs beyond its tokens
        self.known = False
        self.slope = 0.0  # seconds of verifying one more position
        self.price = 0.0  # tokens that usually come in that time

    def observe(self, width: int, seconds: float, num_emitted: int) -> None:
        """One round that drafted `width` tokens for its widest row."""
        self._seconds.setdefault(width, deque(maxlen=_REMEMBERED)).append(seconds)
        self._emitted[width > 0].append(num_emitted)

    def settle(self) -> None:
        """Take the costs from the rounds since the last call, if there were both kinds."""
        points = [(k, _middle(s), len(s)) for k, s in self._seconds.items() if k > 0]
        if not points or 0 not in self._seconds:
            return
        often = [point for point in points if point[2] > 1]
        points = often if len(often) > 1 else points
        weight = sum(n for _, _, n in points)
        mean_width = sum(n * k for k, _, n in points) / weight
        mean_seconds = sum(n * seconds for _, seconds, n in points) / weight
        variance = sum(n * (k - mean_width) ** 2 for k, _, n in points)
        covariance = sum(n * (k - mean_width) * (s - mean_seconds) for k, s, n in points)
        slope = max(covariance / variance, 0.0) if variance > 0 else 0.0
        ratio = max(_middle(self._seconds[0]), 1e-9) / mean_seconds
        self._ratio = ratio if not self.known else math.sqrt(ratio * self._ratio)
        self._plain = self._ratio * mean_seconds
        self._line = (mean_seconds - slope * mean_width, slope)
        plain_tokens, tokens = (fmean(emitted) for emitted in self._emitted)
        self._loss = mean_seconds / self._plain - tokens / max(plain_tokens, 1.0)
        self.slope, self.price = slope, slope * tokens / mean_seconds
        self.known = True
        self._seconds = {}
        self._emitted = [deque(maxlen=_REMEMBERED) for _ in range(2)]

    def lost(self, num_asked: int, joining: float) -> float:
        """Plain rounds that so many drafts, and all rows joining, cost beyond their tokens."""
        return num_asked * self._loss + joining / self._plain

    def by_width(self, widest: int) -> list[float]:
        """Seconds of a round by the width of its draft, 0..widest; only where `known`."""
        start, slope = self._line
        # Noise must not make a round look free.
        line = [max(start + slope * k, 0.01 * self._plain) for k in range(1, widest + 1)]
        return [self._plain, *line]


def _middle(seconds: Collection[float]) -> float:
    """The mean, without the largest of three or more: the machine may have been busy then."""
    dropped = max(seconds) if len(seconds) > 2 else 0.0
    return (sum(seconds) - dropped) / (len(seconds) - (len(seconds) > 2))


class Measurement:
    """Costs of rounds with about the same number of rows, and when to measure them.

    First come `patience` plain rounds, since the first draft makes all rows join the drafter; then
    rounds of half a block and of a whole one. What is not chosen is measured again from time to
    time: plain rounds after a quarter of `every` rounds, then after twice as many and so on up to
    `every`; drafts after half of `every` for each plain round that asking for them loses.

    The first round with a draft after one without, or the reverse, does not count: the processor's
    caches hold other weights, and it may take twice as long as the rounds after it.
    """

    def __init__(self, every: int, patience: int) -> None:
        self.costs = RoundCosts()
        self._every = every
        self._patience = patience
        self._due: tuple[float, ...] = _DRAFTED
        self._had_draft = False  # in the last round
        self._drafts: bool | None = None  # the last choice; None before there was one
        self._num_rounds = 0  # chosen rounds since the last measurement
        self._rest = every // 4  # chosen rounds until the next one

    @property
    def refuses(self) -> bool:
        """True if drafting was found not to pay."""
        return self._drafts is False

    @property
    def asks(self) -> bool:
        """True if a draft is due although none is chosen."""
        return self._patience == 0 and not self._drafts and self.due() is not None

    def due(self) -> float | None:
        """The share of its block that a row should draft for measurement; None = none is due."""
        if self._patience > 0:
            return _PLAIN
        if self._due:
            return self._due[0]
        return None if self.costs.known else _HALF  # the last round's time is still to come

    def observe(self, width: int, is_chosen: bool, joining: float) -> tuple[bool, bool]:
        """One round that drafted `width` tokens for its widest row.

        is_chosen: a choice, not a measurement. joining: seconds that it takes all rows to join the
        drafter. Returns whether its time counts, and whether to settle the costs once it is known.
        """
        is_warm, self._had_draft = self._had_draft == (width > 0), width > 0
        if self._patience > 0:
            self._patience -= 1
            return is_warm, False
        if not is_chosen:
            self._due = self._due[1:]
            return is_warm, not self._due
        if self._drafts != (width > 0):
            self._drafts = width > 0
            self._rest = self._every // 4 if self._drafts else self._until(joining)
        self._num_rounds += 1 + _GOES_ON[width > 0]
        if self._num_rounds >= self._rest:
            self._rest = min(2 * self._rest, self._every) if self._drafts else self._until(joining)
            self._due, self._num_rounds = _ALL if self._drafts else _DRAFTED, 0
        return is_warm, False

    def _until(self, joining: float) -> int:
        """Plain rounds until drafts are measured again."""
        return int(self._every / 2 * max(0.5, self.costs.lost(len(_DRAFTED), joining)))
