"""Ways to decode a list of requests: with the engine, or by the drafter alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from specdec_plugins.decoding.alone import DrafterDecoder
from specdec_plugins.decoding.engine import EngineConfig, Method, Session
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import Request, RowEvent, RowResult, Verifier

Clock = Callable[[], float]


@dataclass(frozen=True)
class Decoded:
    """A finished sentence."""

    result: RowResult
    seconds: float  # from when it joined a batch until it was done


class Strategy(Protocol):
    """Decodes requests; yields each as it finishes, in any order."""

    @property
    def stats(self) -> DecodeStats:
        """Of everything decoded so far."""
        ...

    def run(self, requests: Sequence[Request]) -> Iterator[Decoded]: ...


@dataclass
class EngineStrategy:
    """Speculative decoding, or one token at a time where the method has no drafter."""

    verifier: Verifier
    method: Method
    config: EngineConfig
    clock: Clock = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)

    def run(self, requests: Sequence[Request]) -> Iterator[Decoded]:
        joined: dict[str, float] = {}
        with self._session(requests) as session:
            while len(session):
                before = self.clock()
                events = session.step()
                now = self.clock()
                for event in events:
                    joined.setdefault(event.id, before)
                    if event.result is not None:
                        yield Decoded(event.result, now - joined.pop(event.id))

    def events(self, request: Request) -> Iterator[RowEvent]:
        """One request, round by round."""
        with self._session([request]) as session:
            yield from session.run()

    @contextmanager
    def _session(self, requests: Sequence[Request]) -> Iterator[Session]:
        session = Session(self.verifier, self.method, self.config)
        session.add(requests)
        try:
            yield session
        finally:
            # What an interrupted run has done still counts.
            self.stats += session.stats


class DrafterAlone(DrafterDecoder):
    """The drafter's blocks as they are, one after the other: nothing is verified."""

    def run(self, requests: Sequence[Request]) -> Iterator[Decoded]:
        for start in range(0, len(requests), self.max_rows):
            before = self.clock()
            results = self.decode_batch(requests[start : start + self.max_rows])
            seconds = self.clock() - before
            yield from (Decoded(result, seconds) for result in results)
