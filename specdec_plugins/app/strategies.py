"""Ways to decode a list of requests: with the engine, or by the drafter alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch, collate
from specdec_plugins.decoding.config import EngineConfig
from specdec_plugins.decoding.engine import Method, Session
from specdec_plugins.decoding.extend import Extension, extend
from specdec_plugins.decoding.interfaces import (
    Draft,
    Drafter,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
    Verdict,
    Verifier,
)
from specdec_plugins.decoding.request import FinishReason, Request, RowEvent, RowResult
from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from specdec_plugins.errors import UserError

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


@dataclass
class DrafterAlone:
    """The drafter's blocks as they are, one after the other: nothing is verified."""

    drafter: Drafter
    special: SpecialTokens
    device: torch.device
    max_rows: int = 1  # sentences decoded at once
    clock: Clock = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)

    def run(self, requests: Sequence[Request]) -> Iterator[Decoded]:
        for start in range(0, len(requests), self.max_rows):
            before = self.clock()
            results = self._decode(requests[start : start + self.max_rows])
            seconds = self.clock() - before
            yield from (Decoded(result, seconds) for result in results)

    @torch.inference_mode()
    def _decode(self, requests: Sequence[Request]) -> list[RowResult]:
        timer = PartTimer(self.device, clock=self.clock)
        source = collate(requests, self.special.pad, self.special.start, self.device)
        with timer.part("encode"):
            self._admit(source)
        batch = Batch.open(requests, source)
        while not all(row.finished for row in batch.rows):
            with timer.part("draft"):
                draft = self._propose(batch)
            with timer.part("rest"):
                self._report(batch, draft, self._take(batch, draft))
        self.stats += DecodeStats(seconds=timer.seconds)
        return [row.result for row in batch.rows]

    def _admit(self, source: SourceBatch) -> None:
        self.drafter.select(torch.zeros(0, dtype=torch.int64, device=self.device))
        self.drafter.admit(source)

    def _propose(self, batch: Batch) -> Draft:
        prefix, params = batch.prefix, batch.params
        room = params.max_len - (prefix.lengths - 1)  # the start token is no output
        budget = torch.minimum(params.block_size, room) * prefix.active
        width = int(budget.max())
        draft = self.drafter.propose(prefix, budget, width, params, batch.random)
        if bool((draft.lengths[prefix.active] == 0).any()):
            raise UserError(
                "The drafter proposed nothing, so it cannot decode alone; "
                "use --strategy specdec with it."
            )
        return draft

    def _take(self, batch: Batch, draft: Draft) -> Extension:
        """Append every drafted token: the last one stands where a verifier's own would."""
        last = (draft.lengths - 1).clamp(min=0)
        verdict = Verdict(last, draft.tokens.gather(1, last[:, None])[:, 0])
        extension = extend(batch.prefix, draft, verdict, batch.params, self.special.eos)
        nothing = draft.tokens.new_zeros(len(batch.rows), 1, 0, dtype=torch.float32)
        self.drafter.commit(batch.prefix, Round(draft, Scores(nothing), verdict))
        return extension

    def _report(self, batch: Batch, draft: Draft, extension: Extension) -> None:
        def host(values: Tensor) -> list[int]:
            return values.tolist()

        counts = zip(
            batch.rows,
            host(draft.lengths),
            host(extension.lengths),
            host(extension.ended),
            host(batch.prefix.active),
            extension.tokens.tolist(),
            draft.tokens.tolist(),
            strict=True,
        )
        for row, drafted, emitted, ended, active, tokens, drafted_ids in counts:
            if row.finished:
                continue
            row.result.observe(drafted, emitted, tokens[:emitted])
            if not active:
                row.finished = True
                row.result.finish_reason = FinishReason.EOS if ended else FinishReason.LENGTH
            done = row.result if row.finished else None
            self.stats.observe(
                RowEvent(row.request.id, drafted_ids[:drafted], emitted, tokens[:emitted], done)
            )
        batch.prefix.width = int(batch.prefix.lengths.max())
