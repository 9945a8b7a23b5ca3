"""Counts of a decoding run. Count once, divide last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from specdec_plugins.decoding.requests import FinishReason, RowEvent


@dataclass
class DecodeStats:
    """Counts only, merged by addition; every rate is a property that states its convention."""

    rounds: int = 0  # one for each row and round
    drafted: int = 0  # proposed tokens
    accepted: int = 0  # drafted tokens kept, after the cuts at eos and max_len
    emitted: int = 0  # tokens appended, eos included
    eos: int = 0  # emitted tokens that are eos
    rows: int = 0  # finished rows
    drafted_at: list[int] = field(default_factory=list)  # [i]: rounds that drafted position i
    accepted_at: list[int] = field(default_factory=list)  # [i]: of these, kept position i
    seconds: dict[str, float] = field(default_factory=dict)  # by part: encode, draft, verify, rest

    def observe(self, event: RowEvent) -> None:
        """Count one round of one row."""
        self.rounds += 1
        self.drafted += len(event.draft_ids)
        self.accepted += event.num_accepted
        self.emitted += len(event.emitted_ids)
        if event.result is not None:
            self.rows += 1
            self.eos += event.result.finish_reason is FinishReason.EOS
        _count_leading(self.drafted_at, len(event.draft_ids))
        _count_leading(self.accepted_at, event.num_accepted)

    def __add__(self, other: DecodeStats) -> DecodeStats:
        parts, counts = {*self.seconds, *other.seconds}, vars(other).items()
        return DecodeStats(
            **{name: getattr(self, name) + n for name, n in counts if isinstance(n, int)},
            drafted_at=_sums(self.drafted_at, other.drafted_at),
            accepted_at=_sums(self.accepted_at, other.accepted_at),
            seconds={p: self.seconds.get(p, 0.0) + other.seconds.get(p, 0.0) for p in parts},
        )

    def __radd__(self, start: int) -> DecodeStats:
        """For `sum`, which starts from 0."""
        return self if start == 0 else NotImplemented

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens a round, the verifier's own included, eos not, as in the table of Xia et al. 2023.

        A round that emits only eos counts as 0, so plain decoding of L tokens has L / (L + 1).
        """
        return (self.emitted - self.eos) / self.rounds if self.rounds else 0.0

    @property
    def mean_emitted_tokens(self) -> float:
        """Tokens a round, eos included: Spec-Bench's mean accepted tokens."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """[i]: of the rounds that drafted position i, the share that kept it."""
        kept = self.accepted_at + [0] * (len(self.drafted_at) - len(self.accepted_at))
        return [k / d for k, d in zip(kept, self.drafted_at, strict=True)]


def _count_leading(counts: list[int], n: int) -> None:
    counts += [0] * (n - len(counts))
    for i in range(n):
        counts[i] += 1


def _sums(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]


class PartTimer:
    """Adds up seconds by part. On an accelerator each part synchronises with the device.

    So it is off there by default. On a CPU, reading the clock needs no synchronisation.
    """

    def __init__(
        self,
        device: torch.device,
        enabled: bool | None = None,  # None = on a CPU only
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._enabled = device.type == "cpu" if enabled is None else enabled
        self._clock = clock
        self._device = device

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the block under `name`. Parts do not nest."""
        if not self._enabled:
            yield
            return
        start = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - start

    def add(self, parts: Iterable[tuple[str, float]]) -> None:
        """Add seconds that were measured elsewhere."""
        if self._enabled:
            for name, seconds in parts:
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds
