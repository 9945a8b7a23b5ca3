"""Ask for the block that promises the most tokens a second."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.config import require
from specdec_plugins.decoding.interfaces import Prefix, Round, RowParams, SourceBatch
from specdec_plugins.decoding.schedules.base import SCHEDULES

_DECAY = 0.98  # of old measurements, a round; about the last 50 rounds count


@dataclass
class RoundCosts:
    """What a round costs: `plain` seconds without a draft, `fixed + slope * K` with one of K.

    A straight line through the measured rounds, the older ones counting less. It holds for a block
    drafter (one pass, any K) as for an assistant (K passes).
    """

    plain: float | None = None  # seconds; None until such a round was measured
    weight: float = 0.0  # decayed sums of a least-squares line: of 1, K, K^2, seconds, K * seconds
    widths: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0

    def observe(self, width: int, seconds: float) -> None:
        """One round that drafted `width` tokens for its widest row."""
        if width == 0:
            held = self.plain
            self.plain = seconds if held is None else _DECAY * held + (1 - _DECAY) * seconds
            return
        self.weight = _DECAY * self.weight + 1
        self.widths = _DECAY * self.widths + width
        self.squares = _DECAY * self.squares + width * width
        self.seconds = _DECAY * self.seconds + seconds
        self.products = _DECAY * self.products + width * seconds

    @property
    def known(self) -> bool:
        return self.plain is not None and self.weight > 0

    def by_width(self, widest: int) -> list[float]:
        """Seconds of a round by the width of its draft, 0..widest; only where `known`."""
        assert self.plain is not None
        mean_width, mean_seconds = self.widths / self.weight, self.seconds / self.weight
        variance = self.squares / self.weight - mean_width**2
        covariance = self.products / self.weight - mean_width * mean_seconds
        slope = max(covariance / variance, 0.0) if variance > 1e-6 else 0.0
        line = [mean_seconds + slope * (k - mean_width) for k in range(1, widest + 1)]
        # Noise must not promise a round for nothing.
        least = 0.01 * self.plain
        return [self.plain, *(max(seconds, least) for seconds in line)]


@SCHEDULES.register("adaptive")
class Adaptive:
    """Maximise expected emitted tokens over expected seconds, each row by its own acceptance.

    With acceptance a token alpha, a draft of K emits (1 - alpha^(K+1)) / (1 - alpha) tokens on
    average (Leviathan et al. 2023, equation 1). alpha is the row's own: tokens accepted over
    tokens judged, begun at `acceptance` with the weight of `evidence` tokens. Costs are measured
    (`EngineConfig.measure_time`), or given, which makes the schedule deterministic. Measuring
    begins, and every `probe_every` rounds begins again, with a round of the whole block, one of
    half of it and a plain one.
    """

    @dataclass(frozen=True)
    class Config:
        acceptance: float = 0.7  # share, 0..1, assumed of a row at first
        evidence: float = 4.0  # tokens that this assumption weighs, above 0
        plain_seconds: float | None = None  # of a round without a draft; None = measure all three
        round_seconds: float | None = None  # of a round with a draft, its tokens aside
        token_seconds: float | None = None  # of each drafted token
        probe_every: int = 200  # rounds between two measurements of all kinds of round

        def __post_init__(self) -> None:
            require(
                0 <= self.acceptance <= 1, f"acceptance must be within 0..1, not {self.acceptance}."
            )
            require(self.evidence > 0, f"evidence must be above 0, not {self.evidence}.")
            require(self.probe_every >= 4, f"probe_every must be 4 or more: {self.probe_every}.")
            costs = (self.plain_seconds, self.round_seconds, self.token_seconds)
            given = [cost for cost in costs if cost is not None]
            require(
                len(given) in (0, 3) and all(cost >= 0 for cost in given) and 0.0 not in costs[:2],
                "give plain_seconds and round_seconds (above 0) and token_seconds (0 or more) "
                "together, or none of them to have them measured.",
            )

    def __init__(self, config: Config) -> None:
        self._config = config
        self._costs = RoundCosts()
        self._num_rounds = 0
        self._judged: Tensor | None = None  # [B] float32, tokens judged; None before the first row
        self._accepted: Tensor | None = None  # [B] float32, of these accepted

    def admit(self, source: SourceBatch) -> None:
        weight = self._config.evidence
        judged = torch.full_like(source.lengths, weight, dtype=torch.float32)
        accepted = judged * self._config.acceptance
        if self._judged is not None and self._accepted is not None:
            judged = torch.cat([self._judged, judged])
            accepted = torch.cat([self._accepted, accepted])
        self._judged, self._accepted = judged, accepted

    def commit(self, prefix: Prefix, last: Round) -> None:
        assert self._judged is not None
        assert self._accepted is not None
        self._num_rounds += 1
        drafted, accepted = last.draft.lengths, last.verdict.num_accepted
        self._judged = self._judged + torch.minimum(accepted + 1, drafted)
        self._accepted = self._accepted + accepted
        if last.seconds is not None and self._config.plain_seconds is None:
            self._costs.observe(last.draft.tokens.shape[1], last.seconds)

    def select(self, rows: Tensor) -> None:
        if self._judged is not None and self._accepted is not None:
            self._judged, self._accepted = self._judged[rows], self._accepted[rows]

    def next_budget(self, params: RowParams) -> Tensor:
        assert self._judged is not None
        assert self._accepted is not None
        widest = params.widest_block
        costs = self._seconds_by_width(widest)
        if costs is None:
            return self._probe(params)
        alpha = (self._accepted / self._judged).clamp(max=0.999)[:, None]  # [B, 1]
        widths = torch.arange(widest + 1, device=alpha.device)  # [K+1]
        expected = (1 - alpha ** (widths + 1)) / (1 - alpha)  # [B, K+1]
        rate = expected / torch.tensor(costs, device=alpha.device)
        allowed = widths <= params.block_size[:, None]
        return rate.masked_fill(~allowed, -1.0).argmax(1)

    def _seconds_by_width(self, widest: int) -> list[float] | None:
        """What a round costs, or None where a measurement is due."""
        plain, fixed = self._config.plain_seconds, self._config.round_seconds
        slope = self._config.token_seconds
        if plain is not None and fixed is not None and slope is not None:
            return [plain, *(fixed + slope * k for k in range(1, widest + 1))]
        due = self._num_rounds % self._config.probe_every < 3
        return None if due or not self._costs.known else self._costs.by_width(widest)

    def _probe(self, params: RowParams) -> Tensor:
        """The whole block, half of it, none, in turn; the whole one where no time is measured."""
        block = params.block_size
        turn = self._num_rounds % self._config.probe_every
        if turn >= 3:
            return block
        return (block, (block + 1) // 2, torch.zeros_like(block))[turn]
