"""Ask for the block that promises the most tokens a second."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.cpu.ops import compiled, native
from specdec_plugins.decoding.types import (
    SCHEDULES,
    DraftSchedule,
    Prefix,
    Round,
    RowParams,
    SourceBatch,
)
from specdec_plugins.errors import require

_DECAY = 0.98  # of what all rows had, a round; about the last 50 rounds count
_REMEMBERED = 9  # latest rounds of each width
_PLAIN, _HALF, _WHOLE = 0.0, 0.5, 1.0  # kinds of rounds: shares of the block that they draft


@SCHEDULES.register("adaptive")
class Adaptive(DraftSchedule):
    """Maximise the tokens that a round is expected to emit over the seconds that it takes.

    With acceptance a token alpha, a draft of K emits (1 - alpha^(K+1)) / (1 - alpha) tokens on
    average (Leviathan et al. 2023, equation 1). alpha is the row's own: tokens accepted over
    tokens judged, begun at what all rows of late had with the weight of `evidence` tokens, and
    these at `acceptance`. A round costs all rows what its widest draft costs, so there is one width
    for the batch: that of most tokens a second, summed over its rows. As the ends of sentences cut
    drafts, and rows that begin to draft must first be read, a draft must promise `margin` more.

    Costs are measured, for each power of two of the number of rows (`Measurement`), as plain rounds
    gain more from a batch than drafting ones. A round's time is known when it has been copied to
    the host, after the next one was planned, so it arrives with that one. Given costs make the
    schedule deterministic.
    """

    @dataclass(frozen=True)
    class Config:
        acceptance: float = 0.7  # share, 0..1, assumed of a row at first
        evidence: float = 4.0  # tokens that this assumption weighs, above 0
        plain_seconds: float | None = None  # of a round without a draft; None = measure all three
        round_seconds: float | None = None  # of a round with a draft, its tokens aside
        token_seconds: float | None = None  # of each drafted token
        margin: float = 0.1  # share, 0 or more, by which drafting must promise to be faster
        probe_every: int = 200  # rounds between two measurements; its inverse, a share of time

        def __post_init__(self) -> None:
            require(
                0 <= self.acceptance <= 1, f"acceptance must be within 0..1, not {self.acceptance}."
            )
            require(self.margin >= 0, f"margin must be 0 or more, not {self.margin}.")
            require(self.evidence > 0, f"evidence must be above 0, not {self.evidence}.")
            require(self.probe_every >= 10, f"probe_every must be 10 or more: {self.probe_every}.")
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
        # By the bits of the number of rows: costs hold for no other.
        self._measured: defaultdict[int, Measurement] = defaultdict(
            lambda: Measurement(config.probe_every)
        )
        self._asking: Measurement | None = None  # whose round the last budget was for
        self._timing: tuple[RoundCosts, int] | None = None  # the last round's costs, and its width
        self._is_chosen = False  # the last budget was not asked for to be measured
        self._rests = False  # nothing was drafted by choice: until rows change, nothing is learnt
        # [2, B] float32, tokens judged and of these accepted; None before the first row
        self._counts: Tensor | None = None
        self._pool: Tensor | None = None  # [2] float32, both of all rows, the older counting less

    @property
    def follows_clock(self) -> bool:
        return self._config.plain_seconds is None

    def admit(self, source: SourceBatch) -> None:
        self._rests = False
        none = source.lengths.new_zeros(2, len(source), dtype=torch.float32)
        self._counts = none if self._counts is None else torch.cat([self._counts, none], 1)
        if self._pool is None:
            weight = self._config.evidence
            self._pool = none.new_tensor([weight, weight * self._config.acceptance])

    def commit(self, prefix: Prefix, last: Round) -> None:
        width = last.draft.tokens.shape[1]
        self._rests = self._is_chosen and width == 0
        measured, before = self._measured.get(len(prefix.lengths).bit_length()), self._timing
        self._timing = None
        # After rows have left, a round is not of the kind that was asked for.
        if measured is not None and measured is self._asking and measured.observe(width):
            self._timing = (measured.costs, width)
        if before is not None and last.seconds_before is not None:
            costs, timed_width = before
            costs.observe(timed_width, last.seconds_before)
        if width == 0:
            return
        assert self._counts is not None
        assert self._pool is not None
        lengths, accepted = last.draft.lengths, last.verdict.num_accepted
        count_judged(lengths, accepted, self._counts, self._pool)

    def select(self, rows: Tensor) -> None:
        self._rests = False
        if self._counts is not None:
            self._counts = self._counts[:, rows]

    def next_budget(self, params: RowParams) -> Tensor | None:
        block, self._is_chosen = params.block_size, False
        if self.follows_clock:
            measured = self._asking = self._measured[len(block).bit_length()]
            share = measured.due()
            if share is not None:
                return (block * share).ceil().long() if share > 0 else None
        self._is_chosen = True
        if self._rests:
            return None
        widest = params.widest_block
        return self._best(
            block, measured.costs.by_width(widest) if self.follows_clock else self._given(widest)
        )

    def _best(self, block: Tensor, costs: list[float]) -> Tensor:
        """The width of most tokens a second, or each row's block where that is less: [B] int64."""
        assert self._counts is not None
        assert self._pool is not None
        weight, margin = self._config.evidence, self._config.margin
        return torch.minimum(
            best_width(self._counts, self._pool, block, costs, weight, margin), block
        )

    def _given(self, widest: int) -> list[float]:
        """The given seconds of a round by the width of its draft, 0..widest."""
        plain, fixed = self._config.plain_seconds, self._config.round_seconds
        slope = self._config.token_seconds
        assert plain is not None
        assert fixed is not None
        assert slope is not None
        return [plain, *(fixed + slope * k for k in range(1, widest + 1))]


def count_judged(lengths: Tensor, accepted: Tensor, counts: Tensor, pool: Tensor) -> None:
    """Add a round's tokens judged and accepted, of `lengths` and `accepted` [B] int64, in place.

    counts: [2, B] float32, of each row; pool: [2] float32, of all, where earlier ones lose weight.
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
    weight: float,  # tokens of the pool that each row begins with
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


class RoundCosts:
    """Seconds of a round without a draft, and a straight line through those of rounds with one.

    The line goes through medians: a machine that does something else for a moment makes a round
    longer and never shorter. It holds for a block drafter (one pass, any width) as for an assistant
    (a pass for each token).
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}  # of the latest rounds, by width
        self._median: dict[int, float] = {}  # of these
        self._observed: set[int] = set()  # widths, since others were forgotten

    def observe(self, width: int, seconds: float) -> None:
        """One round that drafted `width` tokens for its widest row."""
        found = self._seconds.setdefault(width, deque(maxlen=_REMEMBERED))
        found.append(seconds)
        self._median[width] = median_low(found)
        self._observed.add(width)

    def forget_others(self) -> None:
        """Keep the widths observed since the last call: the machine may be another by now."""
        kept = {width: found for width, found in self._seconds.items() if width in self._observed}
        if len(kept) > 1 and 0 in kept:
            self._seconds = kept
        self._observed = set()

    @property
    def known(self) -> bool:
        return 0 in self._seconds and len(self._seconds) > 1

    @property
    def ratio(self) -> float:
        """Seconds of the cheapest width that was measured over those of none; where `known`."""
        drafted = [self._median[width] for width in self._seconds if width > 0]
        return min(drafted) / max(self._median[0], 1e-9)

    def by_width(self, widest: int) -> list[float]:
        """Seconds of a round by the width of its draft, 0..widest; only where `known`."""
        points = [(k, self._median[k], len(s)) for k, s in self._seconds.items() if k > 0]
        weight = sum(n for _, _, n in points)
        mean_width = sum(n * k for k, _, n in points) / weight
        mean_seconds = sum(n * seconds for _, seconds, n in points) / weight
        variance = sum(n * (k - mean_width) ** 2 for k, _, n in points)
        covariance = sum(n * (k - mean_width) * (s - mean_seconds) for k, s, n in points)
        slope = max(covariance / variance, 0.0) if variance > 0 else 0.0
        line = [mean_seconds + slope * (k - mean_width) for k in range(1, widest + 1)]
        plain = self._median[0]
        # Noise must not promise a round for nothing.
        return [plain, *(max(seconds, 0.01 * plain) for seconds in line)]


class Measurement:
    """Costs of rounds with about one number of rows, and when they are due to be measured.

    First plain rounds and some of half a block, of each of which the first one warms up and does
    not count. The whole block follows once drafts are chosen: where half of it does not pay, its
    cost says nothing. All of that again from time to time: within `every` rounds where drafting
    pays, and else so seldom that asking takes a share of 1 / `every` of the time.
    """

    def __init__(self, every: int) -> None:
        self.costs = RoundCosts()
        self._every = every
        self._due = [_PLAIN, _PLAIN, _PLAIN, _PLAIN, _HALF, _HALF]
        self._cold = {_PLAIN, _HALF, _WHOLE}
        self._num_rounds = 0  # that were not due, since measuring began
        self._rest = every // 4  # of these until it begins again
        self._has_drafted = False  # in one of these

    def due(self) -> float | None:
        """The share of its block that a row should draft to be measured; None = no need."""
        if self._due:
            return self._due[0]
        return None if self.costs.known else _HALF  # the last round's time is still to come

    def observe(self, width: int) -> bool:
        """One round that drafted `width` tokens for its widest row; whether its time counts."""
        asked, self._due = self.due(), self._due[1:]
        if asked is not None:
            is_cold = asked in self._cold and (width > 0) == (asked > 0)
            self._cold -= {asked} if is_cold else set()
            return not is_cold
        self._num_rounds += 1
        if width > 0 and not self._has_drafted:
            self._has_drafted = True
            self._due = [_WHOLE, _WHOLE] if _WHOLE in self._cold else [_WHOLE]
        elif self._num_rounds >= self._rest:
            self._begin_again()
        return True

    def _begin_again(self) -> None:
        if self._has_drafted or not self.costs.known:
            self._rest = min(2 * self._rest, self._every)
            self._due = [_PLAIN, _PLAIN, _HALF]
            self.costs.forget_others()
        else:
            self._rest = int(self._every * max(1.0, self.costs.ratio))
            self._due = [_HALF]
        self._num_rounds, self._has_drafted = 0, False
