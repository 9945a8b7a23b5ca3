"""Sessions: requests in, events of rounds out, whatever lane computes the rounds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from specdec_plugins.decoding.contract import Verifier
from specdec_plugins.decoding.lane import Ending, Lane, RowReport, TorchLane
from specdec_plugins.decoding.lane import EngineConfig as EngineConfig
from specdec_plugins.decoding.lane import Method as Method
from specdec_plugins.decoding.native import native_lane
from specdec_plugins.decoding.requests import (
    DecodeParams,
    FinishReason,
    Request,
    RowEvent,
    RowResult,
)
from specdec_plugins.decoding.static import StaticLane, check_static
from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from specdec_plugins.errors import UserError, require

_MANY = 2**30  # rounds: until a row ends
_PLAIN = DecodeParams()
_NOT_DRAWN = _PLAIN.temperature, _PLAIN.top_k, _PLAIN.top_p
_REASONS: dict[int, FinishReason] = {
    Ending.ENDED: FinishReason.EOS,
    Ending.FULL: FinishReason.LENGTH,
    Ending.LOOPED: FinishReason.REPETITION,
    Ending.FAILED: FinishReason.ERROR,
}


class Session:
    """A running batch: rows join, decode at their own pace, and leave.

    Serving, streaming and files all use it: `add` requests at any time, call `step` until it
    has no rows, read the events. One device-to-host copy a round, and one more when rows join.

    Verifier, drafter and schedule belong to this session until it is closed;
    `SpeculativeDecoder.open` lends them.
    """

    def __init__(
        self,
        verifier: Verifier,
        method: Method,
        config: EngineConfig,
        on_close: Callable[[Session], None] = lambda session: None,
        last: Session | None = None,
    ) -> None:
        """on_close: called once, when the parts are empty again. last: a closed session of the same
        parts, whose lanes this one takes over.
        """
        self.stats = DecodeStats()
        self.verifier = verifier
        self.method = method
        self._config = config
        self._on_close = on_close
        self._closed = False
        self._waiting: deque[Request] = deque()
        if last is None:
            self._timer = PartTimer(verifier.device, config.measure_time, config.clock)
            self._lanes = self._open_lanes()
        else:
            self._timer, self._lanes, last._lanes = last._timer, last._lanes, []
        self._timer.seconds = self.stats.seconds

    def _open_lanes(self) -> list[Lane]:
        """Where requests decode: each in the first that takes it."""
        parts = (self.verifier, self.method, self._config, self._timer)
        native = native_lane(*parts)
        own = [] if native is None else [native]
        return [*own, (StaticLane if self._config.static else TorchLane)(*parts)]

    def __len__(self) -> int:
        """Unfinished requests, waiting ones included."""
        return len(self._waiting) + sum(not row.finished for row in self._rows())

    def _rows(self) -> Iterator[RowResult]:
        for lane in self._lanes:
            yield from lane.rows

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests. Raises UserError, and queues none, where one cannot be decoded."""
        requests = list(requests)
        present = [r.id for r in (*requests, *self._waiting)]
        present += [row.id for row in self._rows() if not row.finished]
        require(len(set(present)) == len(present), "Two requests have the same id.")
        for request in requests:
            check_request(request, self.verifier, self.method)
        self._waiting.extend(requests)

    def cancel(self, ids: Collection[str]) -> list[RowEvent]:
        """Drop these requests, waiting or decoding; rows are freed at the next compaction."""
        dropped = [r for r in self._waiting if r.id in ids]
        self._waiting = deque(r for r in self._waiting if r.id not in ids)
        results = [RowResult(r, list(r.forced_ids)) for r in dropped]
        for lane in self._lanes:
            for index, row in enumerate(lane.rows):
                if row.id in ids and not row.finished:
                    lane.stop(index)
                    results.append(row)
        for result in results:
            result.finish_reason = FinishReason.CANCELLED
        return [RowEvent(result.id, [], 0, [], result) for result in results]

    def close(self) -> None:
        """Discard what is left and hand the emptied parts back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        for lane in self._lanes:
            lane.select([])
        self._on_close(self)

    def step(self, most: int = 1) -> list[RowEvent]:
        """One round for every active row; an empty list when nothing is left to do.

        With a larger `most` as many rounds at once, or fewer, until a row ends, where that saves
        time. Of several rounds of a row the events come in their order.
        """
        assert not self._closed, "step after close"
        self._refill(self._config.clock())
        running = [lane for lane in self._lanes if lane.rows]
        most = most if len(running) == 1 else 1
        events = [event for lane in running for event in self._round(lane, most)]
        now = self._config.clock() if running else 0.0
        for event in events:
            if event.result is not None:
                event.result.seconds = now - event.result.joined_at
        return events

    def run(self, most: int = 1) -> Iterator[RowEvent]:
        """Step until everything is decoded, yielding events as they happen."""
        while len(self):
            yield from self.step(most)

    def _refill(self, now: float) -> None:
        """Drop finished rows once there are enough; admit waiting requests if there is room."""
        for lane in self._lanes:
            keep = [i for i, row in enumerate(lane.rows) if not row.finished]
            num_finished = len(lane.rows) - len(keep)
            if num_finished >= max(1.0, self._config.compact_at * len(lane.rows)):
                with self._timer.part("rest"):
                    lane.select(keep)
        room = self._config.max_rows - sum(len(lane.rows) for lane in self._lanes)
        joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        for lane in self._lanes:
            own = [request for request in joining if lane.takes(request)]
            joining = [request for request in joining if not lane.takes(request)]
            if own:
                lane.admit(own, now)

    def _round(self, lane: Lane, most: int) -> list[RowEvent]:
        events = []
        reports = lane.run(most)
        with self._timer.part("rest"):
            for report in reports:
                events.append(self._observe(lane.rows[report.row], report))
                self.stats.observe(events[-1])
        return events

    def _observe(self, row: RowResult, report: RowReport) -> RowEvent:
        """Tell a row what a round did to it."""
        _, draft_ids, emitted_ids, num_accepted, ending, token_scores, length = report
        if not emitted_ids and ending != Ending.FAILED:
            self._refuse_standstill(row)
        reason = _REASONS.get(ending)
        # The limit may force the end of the sentence.
        has_last = self._config.constraints.forced_last is not None
        if ending == Ending.ENDED and has_last and length > row.request.params.max_len:
            reason = FinishReason.LENGTH
        result = None if reason is None else row
        event = RowEvent(row.id, draft_ids, num_accepted, emitted_ids, result, token_scores)
        row.observe(event)
        row.finish_reason = reason
        if ending == Ending.FAILED:
            row.token_ids, row.token_scores = [], []
        return event

    def _refuse_standstill(self, row: RowResult) -> None:
        raise RuntimeError(f"request {row.id!r} made no progress in a round")


class SpeculativeDecoder:
    """Decodes requests for any number of concurrent callers, each in its own session.

    Weights are shared. The next session reuses the emptied parts of a closed one, and with them
    what the schedule has learnt. Thread-safe.
    """

    new_session: ClassVar[Callable[..., Session]] = Session

    def __init__(
        self, verifier: Verifier, method: Method, config: EngineConfig | None = None
    ) -> None:
        """Sessions decode with `fresh` instances of the parts, never with the parts themselves."""
        self.verifier = verifier
        self.method = method
        self.config = config or EngineConfig()
        if self.config.static:
            check_static(verifier, method)
        self.stats = DecodeStats()  # of all closed sessions
        self._lock = threading.Lock()
        self._idle: list[Session] = []  # closed ones

    def open(self) -> Session:
        """A session for one caller; its `close` returns the parts."""
        with self._lock:
            last = self._idle.pop() if self._idle else None
            parts = self._fresh() if last is None else (last.verifier, last.method)
        return self.new_session(*parts, self.config, self._take_back, last)

    def _fresh(self) -> tuple[Verifier, Method]:
        verifier, drafter = self.verifier.fresh(), self.method.drafter
        own = None if drafter is None else drafter.fresh(verifier)
        return verifier, Method(own, self.method.rule, self.method.schedule.fresh())

    def _take_back(self, session: Session) -> None:
        with self._lock:
            self._idle.append(session)
            self.stats += session.stats

    @contextmanager
    def session(self, requests: Sequence[Request]) -> Iterator[Session]:
        """A session with these requests, closed on any exit."""
        session = self.open()
        try:
            session.add(requests)
            yield session
        finally:
            session.close()

    def events(self, requests: Sequence[Request]) -> Iterator[RowEvent]:
        """Events round by round, until all requests are decoded or the caller stops.

        Raises UserError where two requests have the same id, or one cannot be decoded as asked.
        """
        with self.session(requests) as session:
            yield from session.run()

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        """Each result as it is finished."""
        with self.session(requests) as session:
            yield from (event.result for event in session.run(_MANY) if event.result)

    def decode(self, requests: Sequence[Request]) -> list[RowResult]:
        """Results in the order of the requests, whatever order they finish in."""
        results = {result.id: result for result in self.run(requests)}
        return [results[r.id] for r in requests]


def check_request(request: Request, verifier: Verifier, method: Method) -> None:
    """Raises UserError where the parts cannot do what the request asks."""
    params, drafter, forced = request.params, method.drafter, request.forced_ids
    _check_source(request, verifier)
    longest, size, eos = verifier.max_target_positions, verifier.vocab_size, verifier.special.eos
    if params.max_len > longest:
        told = f"max_len {params.max_len} is more than the verifier's {longest} target positions; "
        raise UserError(f"{told}ask for a shorter output.")
    if forced and (eos in forced or not 0 <= min(forced) <= max(forced) < size):
        told = f"Request {request.id!r}: its target prefix must hold token ids below {size} and no "
        raise UserError(f"{told}end of sentence ({eos}).")
    most = None if drafter is None else drafter.max_block_size
    if most is not None and params.block_size > most:
        told = f"The drafter drafts at most {most} tokens; ask for a block size of at most that, "
        raise UserError(f"{told}not {params.block_size}.")
    drawn = params.temperature, params.top_k, params.top_p
    told = "temperature, top_k and top_p need a rule that samples; this one does not."
    require(method.rule.samples or drawn == _NOT_DRAWN, told)


def _check_source(request: Request, verifier: Verifier) -> None:
    ids, longest = request.source_ids, verifier.max_source_positions
    size = verifier.source_vocab_size
    if len(ids) > longest:
        told = f"Request {request.id!r}: its source has {len(ids)} tokens, and the model has "
        raise UserError(f"{told}positions for {longest}; split it.")
    if not 0 <= min(ids) <= max(ids) < size:
        told = f"Request {request.id!r}: its source must hold token ids below {size}."
        raise UserError(told)
