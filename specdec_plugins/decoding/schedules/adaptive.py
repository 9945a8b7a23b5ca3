"""Ask for the block that promises the most tokens a second."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.schedules.base import SCHEDULES
from specdec_plugins.decoding.schedules.costs import Measurement
from specdec_plugins.decoding.types import Prefix, Round, RowParams, SourceBatch
from specdec_plugins.errors import require

_DECAY = 0.98  # of what all rows had, a round; about the last 50 rounds count


@SCHEDULES.register("adaptive")
class Adaptive:
    """Maximise the tokens that a round is expected to emit over the seconds that it takes.

    With acceptance a token alpha, a draft of K emits (1 - alpha^(K+1)) / (1 - alpha) tokens on
    average (Leviathan et al. 2023, equation 1). alpha is the row's own: tokens accepted over
    tokens judged, begun at what all rows of late had with the weight of `evidence` tokens, and
    these at `acceptance`. A round costs all rows what its widest draft costs, so there is one width
    for the batch: that of most tokens a second, summed over its rows. As the ends of sentences cut
    drafts, and rows that begin to draft must first be read, a draft must promise `margin` more.

    Costs are measured (`EngineConfig.measure_time`), for each power of two of the number of rows
    (`Measurement`), as plain rounds gain more from a batch than drafting ones. Given costs make the
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

    def __init__(self, config: Config) -> None:
        self._config = config
        # By the bits of the number of rows: costs hold for no other.
        self._measured: defaultdict[int, Measurement] = defaultdict(
            lambda: Measurement(config.probe_every)
        )
        self._asking: Measurement | None = None  # whose round the last budget was for
        self._is_chosen = False  # the last budget was not asked for to be measured
        self._rests = False  # nothing was drafted by choice: until rows change, nothing is learnt
        self._judged: Tensor | None = None  # [B] float32, tokens judged; None before the first row
        self._accepted: Tensor | None = None  # [B] float32, of these accepted
        self._pool: Tensor | None = None  # [2] float32, both of all rows, the older counting less

    @property
    def follows_clock(self) -> bool:
        return self._config.plain_seconds is None

    def admit(self, source: SourceBatch) -> None:
        self._rests = False
        judged = torch.zeros_like(source.lengths, dtype=torch.float32)
        accepted = judged
        if self._judged is not None and self._accepted is not None:
            judged = torch.cat([self._judged, judged])
            accepted = torch.cat([self._accepted, accepted])
        self._judged, self._accepted = judged, accepted
        if self._pool is None:
            weight = self._config.evidence
            self._pool = judged.new_tensor([weight, weight * self._config.acceptance])

    def commit(self, prefix: Prefix, last: Round) -> None:
        assert self._judged is not None
        assert self._accepted is not None
        width = last.draft.tokens.shape[1]
        self._rests = self._is_chosen and width == 0
        measured = self._measured.get(len(prefix.lengths).bit_length())
        # After rows have left, a round is not of the kind that was asked for.
        if measured is not None and measured is self._asking:
            measured.observe(width, last.seconds)
        if width == 0:
            return
        assert self._pool is not None
        accepted = last.verdict.num_accepted
        judged = torch.minimum(accepted + 1, last.draft.lengths)
        self._judged = self._judged + judged
        self._accepted = self._accepted + accepted
        counts = torch.stack([judged.sum(), accepted.sum()])
        self._pool = _DECAY * self._pool + counts

    def select(self, rows: Tensor) -> None:
        self._rests = False
        if self._judged is not None and self._accepted is not None:
            self._judged, self._accepted = self._judged[rows], self._accepted[rows]

    def next_budget(self, params: RowParams) -> Tensor | None:
        block, self._is_chosen = params.block_size, False
        if self.follows_clock:
            measured = self._asking = self._measured[len(block).bit_length()]
            share = measured.due()
            if share is not None:
                return (block * share).ceil().long() if share > 0 else None
            if not measured.costs.known:
                return block  # no time is measured
        self._is_chosen = True
        if self._rests:
            return None
        widest = params.widest_block
        return self._best(
            block, measured.costs.by_width(widest) if self.follows_clock else self._given(widest)
        )

    def _best(self, block: Tensor, costs: list[float]) -> Tensor:
        """The width of most tokens a second, or each row's block where that is less: [B] int64."""
        assert self._judged is not None
        assert self._accepted is not None
        assert self._pool is not None
        weight = self._config.evidence
        prior = self._pool[1] / self._pool[0]
        alpha = (self._accepted + weight * prior) / (self._judged + weight)
        alpha = alpha.clamp(max=0.999)[:, None]  # [B, 1]
        widths = torch.arange(len(costs), device=alpha.device)  # [K+1]
        drafted = torch.minimum(widths, block[:, None])  # [B, K+1]
        expected = ((1 - alpha ** (drafted + 1)) / (1 - alpha)).sum(0)  # [K+1]
        rate = expected / torch.tensor(costs, device=alpha.device)
        rate[0] *= 1 + self._config.margin
        best = rate.argmax()
        return torch.minimum(best, block)

    def _given(self, widest: int) -> list[float]:
        """The given seconds of a round by the width of its draft, 0..widest."""
        plain, fixed = self._config.plain_seconds, self._config.round_seconds
        slope = self._config.token_seconds
        assert plain is not None
        assert fixed is not None
        assert slope is not None
        return [plain, *(fixed + slope * k for k in range(1, widest + 1))]
