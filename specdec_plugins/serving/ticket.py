"""A submitted job as the event loop sees it: rounds to wait for, and the right to give up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specdec_plugins.decoding.types import Request
from specdec_plugins.serving.job import Deliver, Job, RowUpdate
from specdec_plugins.serving.request_ids import current_id
from specdec_plugins.serving.worker import BatchWorker


class Ticket:
    """Iterate over it for the rounds of all rows as they happen; `close` it in any case.

    No generator, whose clean-up would not run where nobody has begun to iterate.
    """

    def __init__(self, worker: BatchWorker, requests: Sequence[Request]) -> None:
        """Submits the requests; raises QueueFull, Stopping or Failed."""
        self._worker = worker
        self._news: asyncio.Queue[RowUpdate] = asyncio.Queue()
        deliver = _onto_loop(asyncio.get_running_loop(), self._news)
        self._job = Job(requests, deliver, current_id.get())
        if requests:
            worker.submit(self._job)
        self._num_left = len(requests)

    def __aiter__(self) -> Ticket:
        return self

    async def __anext__(self) -> tuple[RowUpdate, float]:
        """A round, and the seconds since submission. Raises the error of a sentence that failed."""
        if not self._num_left:
            raise StopAsyncIteration
        update = await self._news.get()
        if update.error is not None:
            raise update.error
        self._num_left -= update.is_last
        return update, update.at - self._job.submitted_at

    def close(self) -> None:
        """Free the rows that are not done."""
        if self._num_left:
            self._num_left = 0
            self._worker.cancel(self._job)


def _onto_loop(loop: asyncio.AbstractEventLoop, news: asyncio.Queue[RowUpdate]) -> Deliver:
    """Delivers from the worker's thread. A loop that has closed has nobody left to tell."""

    def put(updates: Sequence[RowUpdate]) -> None:
        for update in updates:
            news.put_nowait(update)

    def deliver(updates: Sequence[RowUpdate]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(put, updates)

    return deliver
