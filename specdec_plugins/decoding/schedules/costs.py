"""What a round costs by the width of its draft, measured while sentences are decoded."""

from __future__ import annotations

from collections import deque
from statistics import median_low

_REMEMBERED = 9  # latest rounds of each width
_PLAIN, _HALF, _WHOLE = 0.0, 0.5, 1.0  # kinds of rounds: shares of the block that they draft


class RoundCosts:
    """Seconds of a round without a draft, and a straight line through those of rounds with one.

    The line goes through medians: a machine that does something else for a moment makes a round
    longer and never shorter. It holds for a block drafter (one pass, any width) as for an assistant
    (a pass for each token).
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}  # of the latest rounds, by width
        self._observed: set[int] = set()  # widths, since others were forgotten

    def observe(self, width: int, seconds: float) -> None:
        """One round that drafted `width` tokens for its widest row."""
        self._seconds.setdefault(width, deque(maxlen=_REMEMBERED)).append(seconds)
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
        drafted = [median_low(found) for width, found in self._seconds.items() if width > 0]
        return min(drafted) / max(median_low(self._seconds[0]), 1e-9)

    def by_width(self, widest: int) -> list[float]:
        """Seconds of a round by the width of its draft, 0..widest; only where `known`."""
        points = [(k, median_low(s), len(s)) for k, s in self._seconds.items() if k > 0]
        weight = sum(n for _, _, n in points)
        mean_width = sum(n * k for k, _, n in points) / weight
        mean_seconds = sum(n * seconds for _, seconds, n in points) / weight
        variance = sum(n * (k - mean_width) ** 2 for k, _, n in points)
        covariance = sum(n * (k - mean_width) * (s - mean_seconds) for k, s, n in points)
        slope = max(covariance / variance, 0.0) if variance > 0 else 0.0
        line = [mean_seconds + slope * (k - mean_width) for k in range(1, widest + 1)]
        plain = median_low(self._seconds[0])
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
        return self._due[0] if self._due else None

    def observe(self, width: int, seconds: float | None) -> None:
        """One round that drafted `width` tokens for its widest row."""
        asked = self._due.pop(0) if self._due else None
        if asked in self._cold and (width > 0) == (asked > 0):
            self._cold.remove(asked)
        elif seconds is not None:
            self.costs.observe(width, seconds)
        if asked is not None:
            return
        self._num_rounds += 1
        if width > 0 and not self._has_drafted:
            self._has_drafted = True
            self._due = [_WHOLE, _WHOLE] if _WHOLE in self._cold else [_WHOLE]
        elif self._num_rounds >= self._rest:
            self._begin_again()

    def _begin_again(self) -> None:
        if self._has_drafted or not self.costs.known:
            self._rest = min(2 * self._rest, self._every)
            self._due = [_PLAIN, _PLAIN, _HALF]
            self.costs.forget_others()
        else:
            self._rest = int(self._every * max(1.0, self.costs.ratio))
            self._due = [_HALF]
        self._num_rounds, self._has_drafted = 0, False
