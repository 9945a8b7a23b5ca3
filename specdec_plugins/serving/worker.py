"""The queue of sentences, and the thread that owns the running batch."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specdec_plugins.decoding.beam import Lanes
from specdec_plugins.decoding.engine import Session
from specdec_plugins.decoding.requests import FinishReason, Hypothesis, Request, RowEvent, RowResult
from specdec_plugins.errors import UserError
from specdec_plugins.serving.errors import STOPPED, ServiceError
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.settings import ServerSettings

log = logging.getLogger("specdec.serving")

_UNDECODABLE = (500, "This sentence could not be decoded; the server's log has the reason.")
_DIED = (500, "The engine of this server has failed; try another server, or try again later.")
_LOST_AFTER = 3  # consecutive rows that failed alone: the device is likely lost
_AT_ONCE = 0.005  # seconds of rounds in one call, which a sentence that comes meanwhile waits
_numbers = itertools.count()


class RowRound(NamedTuple):
    """What one round did to one sentence, and when."""

    event: RowEvent
    seconds: float  # since the sentence was queued
    queue_seconds: float  # of these, until it joined the batch
    batch_size: int  # rows that decoded in this round


class Submission(ABC):
    """Sentences that one caller asked for together."""

    def __init__(
        self, requests: Sequence[Request], request_id: str = "-", streams: bool = False
    ) -> None:
        """request_id: its name in the log. streams: deliver every round, not only the last."""
        number = next(_numbers)
        self.request_id = request_id
        self.streams = streams
        self.submitted_at = 0.0  # the worker's clock, seconds
        self.rows = [
            BatchRow(self, index, replace(request, id=f"{number}.{index}"))
            for index, request in enumerate(requests)
        ]
        self.waiting = deque(self.rows)

    @abstractmethod
    def deliver(self, row: int, news: RowRound | Exception) -> None:
        """Called on the worker's thread with rounds of a row, or the error that ends it."""


@dataclass(eq=False)
class BatchRow:
    """One sentence of a submission; the worker owns it until its last round is delivered."""

    submission: Submission
    index: int
    request: Request
    joined_at: float = 0.0  # when it joined the batch first; 0 = not yet
    ended_at: float = 0.0  # its last round so far, by the same clock
    events: list[RowEvent] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """Tokens emitted so far, eos included."""
        return [token_id for event in self.events for token_id in event.emitted_ids]

    @property
    def token_scores(self) -> list[float]:
        """Their log-probabilities, if asked for."""
        return [score for event in self.events for score in event.token_scores]

    @property
    def result(self) -> RowResult | None:
        """None = it is still decoding."""
        return self.events[-1].result if self.events else None

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """What a beam search has found, the best first, without what was forced."""
        num_forced = len(self.request.forced_ids)
        found = [] if self.result is None else self.result.hypotheses
        return [
            replace(
                one,
                token_ids=one.token_ids[num_forced:],
                token_scores=one.token_scores[num_forced:],
            )
            for one in found
        ]

    @property
    def finish_reason(self) -> FinishReason | None:
        """None = it is still decoding."""
        return None if self.result is None else self.result.finish_reason

    @property
    def queue_seconds(self) -> float:
        """Until it joined the batch."""
        return self.joined_at - self.submission.submitted_at

    @property
    def decode_seconds(self) -> float:
        """From when it joined the batch until its last round."""
        return self.ended_at - self.joined_at

    def remaining(self) -> Request:
        """What is left to decode: the request, with all tokens emitted so far forced.

        A row that restarts in a new batch resumes where it was, so a stream sends nothing twice.
        Random numbers are keyed by position, so the row draws what it would have drawn.
        """
        if not self.events:
            return self.request
        return replace(self.request, forced_ids=[*self.request.forced_ids, *self.token_ids])

    def add(self, event: RowEvent, now: float, batch_size: int) -> None:
        """Record a round that has just ended, and deliver it if it is wanted."""
        self.events.append(event)
        self.ended_at = now
        if self.submission.streams or event.result is not None:
            since = now - self.submission.submitted_at
            self.tell(RowRound(event, since, self.queue_seconds, batch_size))

    def tell(self, news: RowRound | Exception) -> None:
        self.submission.deliver(self.index, news)


class BatchWorker:
    """Continuous batching: sentences join as rows become free, and are answered as they finish."""

    def __init__(
        self,
        new_session: Callable[[], Session | Lanes],
        settings: ServerSettings,
        metrics: Metrics,
        when_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """settings: `max_rows` bounds the batch, and `max_waiting` the places in its queue.

        when_failed: called on the worker's thread if it dies of a bug.
        """
        self._when_failed = when_failed
        self._new_session = new_session
        self._settings = settings
        self._metrics = metrics
        self._session = new_session()
        self._rows: dict[str, BatchRow] = {}  # in the session, by id
        self._apart: deque[list[BatchRow]] = deque()  # groups that must decode by themselves
        self._is_apart = False  # the session holds such a group
        self._num_lost = 0
        # Shared with callers, under the lock:
        self._wake = threading.Condition()
        self._line: deque[Submission] = deque()  # with waiting sentences, in turn
        self._num_reserved = 0  # places for sentences that are being prepared
        self._hung_up: set[Submission] = set()
        self.has_died = False  # of a bug: nothing more will be decoded
        self.is_closing = False
        self._out_of_time = False  # closing, and remaining rows fail
        self._pace = 0.05  # seconds between two finished sentences, smoothed
        self._round = 1.0  # seconds of the last round
        self._thread = threading.Thread(target=self._run, name="specdec-batch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def status(self) -> str:
        """ok, stopping, or failing: no round can be expected to succeed."""
        if self.is_closing and not self.has_died:
            return "stopping"
        works = self._thread.is_alive() and not self.has_died and self._num_lost < _LOST_AFTER
        return "ok" if works else "failing"

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def num_waiting(self) -> int:
        with self._wake:
            return sum(len(submission.waiting) for submission in self._line)

    @contextmanager
    def places(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that reserves places in the queue until the block ends.

        It may be called in any thread, before a submission of so many sentences is prepared. Raises
        ServiceError if there is no room, or if the block has ended.
        """
        num_taken, is_open = 0, True

        def take(num: int) -> None:
            nonlocal num_taken
            with self._wake:
                waiting = self.num_waiting + self._num_reserved
                if not is_open or waiting + num > self._settings.max_waiting:
                    message = f"{waiting} sentences are waiting already; try again later."
                    retry_after = max(1, math.ceil(waiting * self._pace))
                    raise ServiceError(429, message, {"Retry-After": str(retry_after)})
                num_taken += num
                self._num_reserved += num

        try:
            yield take
        finally:
            with self._wake:
                is_open = False
                self._num_reserved -= num_taken

    def submit(self, submission: Submission) -> None:
        """Queue a submission, which `places` has made room for.

        Raises ServiceError and queues nothing if nothing will be decoded any more.
        """
        with self._wake:
            if self.has_died:
                raise ServiceError(*_DIED)
            if self.is_closing:
                raise ServiceError(*STOPPED)
            submission.submitted_at = time.monotonic()
            self._line.append(submission)
            self._metrics.queue_size.set(self.num_waiting)
            self._wake.notify()

    def cancel(self, submission: Submission) -> None:
        """Drop a submission and free its rows; does nothing if it is finished."""
        with self._wake:
            if submission in self._line:
                self._line.remove(submission)
            self._metrics.queue_size.set(self.num_waiting)
            self._hung_up.add(submission)
            self._wake.notify()

    def close(self, timeout: float) -> bool:
        """Take no new work, finish what was accepted, end the thread; False if time ran out.

        timeout: seconds. When it is over, remaining rows fail after the current round, and the
        thread ends.
        """
        with self._wake:
            self.is_closing = True
            self._wake.notify()
        self._thread.join(timeout)
        with self._wake:
            self._out_of_time = True
            self._wake.notify()
        return not self._thread.is_alive()

    def _run(self) -> None:
        reason = STOPPED
        try:
            while self._take_turn():
                pass
        except BaseException:
            log.exception("the batch worker died")
            reason = _DIED
            with self._wake:
                self.has_died = True
            self._when_failed()
            raise
        finally:
            self._fail_all(*reason)

    def _fail_all(self, status: int, message: str) -> None:
        """Answer all rows with an error."""
        with self._wake:
            waiting = [row for submission in self._line for row in submission.waiting]
            self._line.clear()
        rows = [*waiting, *self._rows.values(), *(row for group in self._apart for row in group)]
        self._rows.clear()
        for row in rows:
            row.tell(ServiceError(status, message))

    def _take_turn(self) -> bool:
        """Wait for work and do a turn of it; False when there will be no more."""
        with self._wake:
            while not (self._line or self._rows or self._apart or self._hung_up):
                if self.is_closing:
                    return False
                self._wake.wait()
            if self._out_of_time:
                return False
            hung_up, self._hung_up = self._hung_up, set()
            joining = [] if self._apart or self._is_apart else self._next_rows()
            self._metrics.queue_size.set(self.num_waiting)
        self._drop(hung_up)
        if self._apart and not self._rows:
            self._is_apart = True
            joining = self._apart.popleft()
        self._join(joining)
        if self._rows:
            self._step()
        if not self._rows:
            self._rest()
        return True

    def _next_rows(self) -> list[BatchRow]:
        """First come, first served; a submission gives way after each of its sentences."""
        rows: list[BatchRow] = []
        while self._line and len(self._rows) + len(rows) < self._settings.max_rows:
            submission = self._line.popleft()
            rows.append(submission.waiting.popleft())
            if submission.waiting:
                self._line.append(submission)
        return rows

    def _drop(self, submissions: Collection[Submission]) -> None:
        if not submissions:
            return
        ids = {key for key, row in self._rows.items() if row.submission in submissions}
        self._session.cancel(ids)
        for key in ids:
            del self._rows[key]
        for group in self._apart:
            group[:] = [row for row in group if row.submission not in submissions]

    def _join(self, rows: Sequence[BatchRow]) -> None:
        now = time.monotonic()
        for row in rows:
            if not row.joined_at:
                row.joined_at = now
                self._metrics.queue_seconds.observe(now - row.submission.submitted_at)
            try:
                self._session.add([row.remaining()])
            except UserError as error:
                row.tell(ServiceError(422, str(error)))
            else:
                self._rows[row.request.id] = row

    def _step(self) -> None:
        num_rows, before = len(self._rows), time.monotonic()
        is_watched = any(row.submission.streams for row in self._rows.values())
        try:
            events = self._session.step(1 if is_watched else max(1, int(_AT_ONCE / self._round)))
        except Exception as error:
            self._separate(error)
            return
        now = time.monotonic()
        self._num_lost = 0
        seconds = self._session.stats.seconds
        num_rounds = -(-len(events) // num_rows)
        self._round = max(1e-6, (now - before) / max(1, num_rounds))
        self._metrics.stepped(events, num_rows, num_rounds, seconds)
        seconds.clear()  # counted
        for event in events:
            row = self._rows[event.id]
            if event.result is not None:
                del self._rows[event.id]
            if event.result is not None and event.result.finish_reason is FinishReason.ERROR:
                self._refuse(row, "request_id=%s cannot be decoded: logits are not numbers")
            else:
                row.add(event, now, num_rows)
        num_done = num_rows - len(self._rows)
        if num_done:
            self._pace += 0.1 * ((now - before) / num_done - self._pace)

    def _refuse(self, row: BatchRow, reason: str, error: Exception | None = None) -> None:
        log.error(reason, row.submission.request_id, exc_info=error)
        row.tell(ServiceError(*_UNDECODABLE))

    def _rest(self) -> None:
        """The batch is empty: release what its finished rows still hold."""
        self._is_apart = False
        try:
            self._session.step()
        except Exception:
            log.exception("the batch could not be emptied; starting a new one")
            self._renew()
        self._metrics.batch_rows.set(0)

    def _separate(self, error: Exception) -> None:
        """A round failed because of an unknown row: halve the batch until the row is found.

        The halves decode one after the other before other rows join, each row from where it was. A
        row that fails on its own is the cause and is answered with an error.
        """
        rows = list(self._rows.values())
        self._renew()
        if len(rows) == 1:
            self._num_lost += 1
            self._refuse(rows[0], "request_id=%s cannot be decoded", error)
            return
        ids = " ".join(sorted({f"request_id={row.submission.request_id}" for row in rows}))
        log.warning("a round failed (%.300r); looking for its cause in %s", error, ids)
        half = len(rows) // 2
        self._apart.extendleft([rows[half:], rows[:half]])

    def _renew(self) -> None:
        self._rows.clear()
        with suppress(Exception):  # this may fail, too; then its state is given up
            self._session.close()
        self._session = self._new_session()
