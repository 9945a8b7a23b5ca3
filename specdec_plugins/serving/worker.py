"""The thread that owns the running batch: it steps while others queue, cancel and listen."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from specdec_plugins.decoding.engine import Session
from specdec_plugins.decoding.types import FinishReason
from specdec_plugins.errors import UserError
from specdec_plugins.serving.errors import Failed, Invalid, QueueFull, ServiceError, Stopping
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.queue import BatchRow, FairQueue, RowUpdate, Submission, tell
from specdec_plugins.serving.settings import ServerSettings

log = logging.getLogger("specdec.serving")

_STOPPED = "The server is shutting down; try another one."
_UNDECODABLE = "This sentence could not be decoded; the server's log has the reason."
_DIED = "The engine of this server has failed; try another one, or later."
_LOST_AFTER = 3  # rows that failed on their own, one after the other: the device is likely lost


class BatchWorker:
    """Continuous batching: sentences join as rows come free, and are answered as they finish."""

    def __init__(
        self,
        new_session: Callable[[], Session],
        settings: ServerSettings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        when_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """settings: of which `max_rows` and `max_waiting` bound the batch and the line before it.

        when_failed: called on the worker's thread where that dies of a bug.
        """
        self.clock = clock
        self._when_failed = when_failed
        self._new_session = new_session
        self._settings = settings
        self._metrics = metrics
        self._session = new_session()
        self._seconds: dict[str, float] = {}  # by part, of the present session, counted already
        self._rows: dict[str, BatchRow] = {}  # in the session, by id
        self._apart: deque[list[BatchRow]] = deque()  # groups that must decode by themselves
        self._is_apart = False  # the session holds such a group
        self._num_lost = 0
        # Shared with callers, under the lock:
        self._wake = threading.Condition()
        self._queue = FairQueue()
        self._hung_up: set[Submission] = set()
        self._failed = False
        self._closing = False
        self._out_of_time = False  # closing, and what is left is failed
        self._pace = 0.05  # seconds between two finished sentences, smoothed
        self._thread = threading.Thread(target=self._run, name="specdec-batch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_healthy(self) -> bool:
        """True while rounds can be expected to succeed."""
        return not self._failed and self._thread.is_alive() and self._num_lost < _LOST_AFTER

    @property
    def has_failed(self) -> bool:
        """The thread has died of a bug: nothing will be decoded any more."""
        return self._failed

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def num_rows(self) -> int:
        """Sentences that are decoding."""
        return len(self._rows)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def submit(self, submission: Submission) -> None:
        """Put a submission in line. Raises QueueFull, Stopping or Failed, and queues nothing."""
        with self._wake:
            if self._failed:
                raise Failed(_DIED)
            if self._closing:
                raise Stopping(_STOPPED)
            waiting = len(self._queue)
            if waiting + len(submission.rows) > self._settings.max_waiting:
                raise QueueFull(
                    f"{waiting} sentences are waiting already; try again later.",
                    retry_after=waiting * self._pace,
                )
            submission.submitted_at = self.clock()
            self._queue.push(submission)
            self._metrics.queued(len(self._queue))
            self._wake.notify()

    def cancel(self, submission: Submission) -> None:
        """Forget a submission wherever it is and free its rows; nothing where it is finished."""
        with self._wake:
            self._queue.remove(submission)
            self._metrics.queued(len(self._queue))
            self._hung_up.add(submission)
            self._wake.notify()

    def close(self, timeout: float | None = None) -> bool:
        """Take no new work, finish what was accepted, end the thread; False if time ran out.

        timeout: seconds; None = as long as it takes. What is left after it is failed as soon as
        the round under way is over, and the thread ends.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            return True
        with self._wake:
            self._out_of_time = True
            self._wake.notify()
        return False

    def _run(self) -> None:
        error: ServiceError = Stopping(_STOPPED)
        try:
            while self._take_turn():
                pass
        except BaseException:
            log.exception("the batch worker died")
            error = Failed(_DIED)
            with self._wake:
                self._failed = True
            self._when_failed()
            raise
        finally:
            self._fail_all(error)

    def _fail_all(self, error: ServiceError) -> None:
        """Answer every row there is with an error."""
        with self._wake:
            waiting = [self._queue.pop() for _ in range(len(self._queue))]
        rows = [*waiting, *self._rows.values(), *(r for group in self._apart for r in group)]
        self._rows.clear()
        tell([self._failure(row, error) for row in rows], rows)

    def _take_turn(self) -> bool:
        """Wait for something to do, and do it; False when nothing more is to be done."""
        with self._wake:
            while not (self._queue or self._rows or self._apart or self._hung_up):
                if self._closing:
                    return False
                self._wake.wait()
            if self._out_of_time:
                return False
            hung_up, self._hung_up = self._hung_up, set()
            joining = [] if self._apart or self._is_apart else self._next_rows()
            self._metrics.queued(len(self._queue))
        self._drop(hung_up)
        self._join(joining or self._next_group())
        if self._rows:
            self._step()
        if not self._rows:
            self._rest()
        return True

    def _next_rows(self) -> list[BatchRow]:
        room = self._settings.max_rows - len(self._rows)
        return [self._queue.pop() for _ in range(min(room, len(self._queue)))]

    def _next_group(self) -> list[BatchRow]:
        if self._rows or not self._apart:
            return []
        self._is_apart = True
        return self._apart.popleft()

    def _drop(self, submissions: Collection[Submission]) -> None:
        if not submissions:
            return
        ids = {key for key, row in self._rows.items() if row.submission in submissions}
        self._session.cancel(ids)
        for key in ids:
            del self._rows[key]
        groups = (
            [row for row in group if row.submission not in submissions] for group in self._apart
        )
        self._apart = deque(group for group in groups if group)

    def _join(self, rows: Sequence[BatchRow]) -> None:
        now = self.clock()
        for row in rows:
            if not row.joined_at:
                row.joined_at = now
                self._metrics.joined(now - row.submission.submitted_at)
            try:
                self._session.add([row.remaining()])
            except UserError as error:
                tell([self._failure(row, Invalid(str(error)))], [row])
            else:
                self._rows[row.request.id] = row

    def _step(self) -> None:
        num_rows, before = len(self._rows), self.clock()
        try:
            events = self._session.step()
        except Exception as error:
            self._separate(error)
            return
        now = self.clock()
        self._num_lost = 0
        self._metrics.stepped(events, num_rows, self._new_seconds())
        updates, rows = [], []
        for event in events:
            row = self._rows[event.id]
            row.emitted += event.emitted_ids
            updates.append(RowUpdate(row.index, event, now, row.joined_at, num_rows))
            rows.append(row)
            if event.result is not None:
                del self._rows[event.id]
                if event.result.finish_reason is FinishReason.ERROR:
                    request_id = row.submission.request_id
                    log.error("request_id=%s cannot be decoded: logits are not numbers", request_id)
                    updates[-1] = self._failure(row, Failed(_UNDECODABLE))
        num_done = num_rows - len(self._rows)
        if num_done:
            self._pace += 0.1 * ((now - before) / num_done - self._pace)
        tell(updates, rows)

    def _rest(self) -> None:
        """The batch is empty: let go of what its finished rows still hold."""
        self._is_apart = False
        try:
            self._session.step()
        except Exception:
            log.exception("the batch could not be emptied; a new one is begun")
            self._renew()
        self._metrics.rested()

    def _separate(self, error: Exception) -> None:
        """A round failed, and nobody knows through which row: halve the batch until it shows.

        The halves decode one after the other before anyone else joins, each row from where it
        was; a row that fails on its own is the culprit and is answered with an error.
        """
        rows = list(self._rows.values())
        self._renew()
        if len(rows) == 1:
            request_id = rows[0].submission.request_id
            log.error("request_id=%s cannot be decoded", request_id, exc_info=error)
            self._num_lost += 1
            tell([self._failure(rows[0], Failed(_UNDECODABLE))], rows)
            return
        ids = " ".join(sorted({f"request_id={row.submission.request_id}" for row in rows}))
        log.warning("a round failed; looking for its cause (%r) in %s", error, ids)
        half = len(rows) // 2
        self._apart.extendleft([rows[half:], rows[:half]])

    def _renew(self) -> None:
        self._rows.clear()
        with suppress(Exception):  # what failed may fail again; then its state is given up
            self._session.close()
        self._session = self._new_session()
        self._seconds = {}

    def _new_seconds(self) -> dict[str, float]:
        total = dict(self._session.stats.seconds)
        new = {part: value - self._seconds.get(part, 0.0) for part, value in total.items()}
        self._seconds = total
        return new

    def _failure(self, row: BatchRow, error: Exception) -> RowUpdate:
        return RowUpdate(row.index, None, self.clock(), row.joined_at, error=error)
