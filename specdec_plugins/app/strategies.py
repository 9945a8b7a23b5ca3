"""What --strategy names: the engine, the drafter by itself, fairseq's beam search."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.app.types import Clock
from specdec_plugins.decoding.alone import DrafterDecoder
from specdec_plugins.decoding.engine import EngineConfig, Method, Session
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import FinishReason, Request, RowEvent, RowResult, Verifier

if TYPE_CHECKING:  # fairseq takes seconds to import
    from specdec_plugins.formats.fairseq_search import FairseqSearch


@dataclass
class EngineDecoder:
    """Speculative decoding, or one token at a time where the method has no drafter."""

    verifier: Verifier
    method: Method
    config: EngineConfig
    clock: Clock = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        joined: dict[str, float] = {}
        with self._session(requests) as session:
            while len(session):
                before = self.clock()
                events = session.step()
                now = self.clock()
                for event in events:
                    joined.setdefault(event.id, before)
                    if event.result is not None:
                        event.result.seconds = now - joined.pop(event.id)
                        yield event.result

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

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        for start in range(0, len(requests), self.max_rows):
            before = self.clock()
            results = self.decode_batch(requests[start : start + self.max_rows])
            seconds = self.clock() - before
            for result in results:
                result.seconds = seconds
                yield result


@dataclass
class BeamSearch:
    """The best hypothesis of fairseq's search; it has no rounds, so it counts none."""

    search: FairseqSearch
    max_rows: int = 1  # sentences decoded at once
    clock: Clock = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        for start in range(0, len(requests), self.max_rows):
            rows = requests[start : start + self.max_rows]
            before = self.clock()
            found = self.search.search([r.source_ids for r in rows], [r.forced_ids for r in rows])
            seconds = self.clock() - before
            self.stats += DecodeStats(rows=len(rows), seconds={"search": seconds})
            for request, hypotheses in zip(rows, found, strict=True):
                best = hypotheses[0]
                # fairseq appends eos to what it cuts, one token behind the limit.
                is_cut = len(best.token_ids) > request.params.max_len
                result = RowResult(request.id, best.token_ids)
                result.score = best.score * len(best.token_ids) ** self.search.config.lenpen
                result.finish_reason = FinishReason.LENGTH if is_cut else FinishReason.EOS
                result.seconds = seconds
                yield result
