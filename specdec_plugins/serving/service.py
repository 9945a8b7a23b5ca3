"""Asynchronous translation of texts through the worker."""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import islice
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from specdec_plugins.app.planning import Translated
from specdec_plugins.app.translator import ranked
from specdec_plugins.decoding.requests import Request
from specdec_plugins.errors import UserError
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import TextPlan, make_plan, row_params
from specdec_plugins.serving.request_ids import current_id
from specdec_plugins.serving.schemas import ErrorResponse, Parameters
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchRow, BatchWorker, RowRound, Submission
from specdec_plugins.text.detection import Guess, detect

T = TypeVar("T")

# Seconds. No text of a permitted size keeps the text thread as long.
_STUCK_AFTER = 10.0
_SHORT = 500  # characters that take less time than a change of threads, or little more


class Service:
    """Prepares texts, sends them through the worker, and counts the results."""

    def __init__(
        self, model: ServedModel, settings: ServerSettings, when_failed: Callable[[], None]
    ) -> None:
        """when_failed: called on the worker's thread if it dies of a bug."""
        self.model = model
        self.settings = settings
        self.metrics = Metrics()
        self.worker = BatchWorker(model.open, settings, self.metrics, when_failed)
        # A text pipeline need not be thread-safe. A long text would hold up every other request on
        # the event loop, so it has a thread; for a short one, going there would take longer.
        self._text_lock = threading.Lock()
        self._text_thread = ThreadPoolExecutor(1, "specdec-text")
        self._text_began: float | None = None  # when it began what it does, on the clock of `time`
        self.is_stopping = False  # still serves, but will not for long
        self.has_ended = False  # no thread is left at work
        self.has_lost_work = False  # which was accepted, as the time to finish it was too short

    @property
    def status(self) -> str:
        """ok, stopping, or failing: no translation can be expected."""
        began = self._text_began
        if began is not None and time.monotonic() - began > _STUCK_AFTER:
            return "failing"
        status = self.worker.status
        return "stopping" if status == "ok" and self.is_stopping else status

    def close(self) -> None:
        """Finish accepted work, as far as time allows."""
        ends = self.worker.close(self.settings.shutdown_timeout)
        last = self._text_thread.submit(int)  # behind what it is doing
        self.has_ended = last in wait([last], _STUCK_AFTER).done and ends
        self._text_thread.shutdown(wait=False, cancel_futures=True)

    def deadline(self) -> float:
        """The deadline of a request that has just been read, on the event loop's clock."""
        return asyncio.get_running_loop().time() + self.settings.request_timeout

    @asynccontextmanager
    async def until(
        self, deadline: float | None, receive: Receive | None = None
    ) -> AsyncIterator[None]:
        """Cancels the block and raises ServiceError if it is not done by the deadline.

        receive: the client's; if it hangs up before that, ClientDisconnect is raised.
        """

        async def watch(receive: Receive) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if not limit.expired():
                limit.reschedule(0.0)

        try:
            async with asyncio.timeout_at(deadline) as limit:
                watcher = asyncio.ensure_future(watch(receive)) if receive else None
                try:
                    yield
                finally:
                    if watcher is not None:
                        watcher.cancel()
                if deadline is not None and asyncio.get_running_loop().time() > deadline:
                    raise TimeoutError  # it has not paused since
        except TimeoutError as error:
            if watcher is not None and not watcher.cancelled() and watcher.done():
                raise ClientDisconnect from error
            seconds = self.settings.request_timeout
            message = f"The translation took longer than {seconds:g} seconds."
            raise ServiceError(504, message) from error

    def check_key(self, given: bytes) -> None:
        """Raises ServiceError if the server has a key, and this is another one."""
        key = self.settings.api_key
        if key is not None and not hmac.compare_digest(given, key.encode()):
            message = "This server needs an API key; send it as 'api_key' or as a bearer token."
            raise ServiceError(403, message)

    def refusal(self, error: ServiceError) -> ErrorResponse:
        """Count an error; returns the answer to the current request."""
        self.metrics.failures.labels(error.kind).inc()
        return ErrorResponse(
            error=error.message, error_type=error.kind, request_id=current_id.get()
        )

    async def plan(self, texts: Sequence[str], options: Parameters, copies: int = 1) -> TextPlan:
        """To be decoded at once, as nothing keeps its places in the queue.

        copies: how often each sentence will be decoded. Raises ServiceError if a text or an option
        cannot be served.
        """
        settings, num_characters = self.settings, sum(map(len, texts))
        if len(texts) > settings.max_texts:
            message = f"{len(texts)} texts exceed the limit of {settings.max_texts} a request."
            raise ServiceError(413, message)
        if num_characters > settings.max_characters:
            raise ServiceError(
                413,
                f"{num_characters} characters exceed the limit of {settings.max_characters} a "
                "request; send the text in parts.",
            )
        with self._refusing(400):
            self.model.codec.between(options.source_lang, options.target_lang)
        with self._refusing(), self.worker.places() as take:
            return await self.with_text(
                lambda: make_plan(texts, options, self.model, settings, take, copies),
                num_characters,
            )

    @contextmanager
    def _refusing(self, status: int = 422) -> Iterator[None]:
        """Raises ServiceError in place of UserError."""
        try:
            yield
        except UserError as error:
            raise ServiceError(status, str(error)) from error

    async def detect(self, text: str, known: Sequence[str]) -> list[Guess]:
        """As `text.detection.detect`. Raises ServiceError if it is not installed."""
        try:
            return await self.with_text(lambda: detect(text, known), len(text))
        except UserError as error:
            raise ServiceError(501, f"{error}.") from error

    async def source_of(self, source: str, texts: Sequence[str]) -> tuple[str | None, list[Guess]]:
        """The source language that is asked for or, for 'auto', the one that texts are in.

        Also what was detected. Raises ServiceError if it must be detected and cannot be.
        """
        if source != "auto":
            return source, []
        known, default = self.model.codec.languages.sources, self.model.codec.source_lang
        try:
            only_known, text = len(known) > 1, "\n".join(texts)
            found = await self.with_text(lambda: detect(text, known, only_known), len(text))
        except UserError as error:
            if default is None:
                message = f"The source 'auto' cannot be told ({error}); name the language."
                raise ServiceError(400, message) from error
            return None, []
        return (found[0].code if found and len(known) > 1 else None), found

    async def translate(
        self, texts: Sequence[str], options: Parameters, num: int = 0
    ) -> tuple[list[Translated], list[list[str]]]:
        """The translation of each text, and up to `num` others, the best of a beam search.

        Fewer if it finds fewer that differ.
        """
        plan, size = await self.plan(texts, options, 1 + bool(num)), num + 1
        plans = [plan]
        if num:
            wide = {"num_beams": max(size, options.size), "n_best": size, "details": False}
            search = options.model_copy(update=wide)
            plans.append(plan.decoded_with(row_params(search, self.model, self.settings)))
        await self.decode(*plans)

        def read() -> tuple[list[Translated], list[list[str]]]:
            best = [*map(Translated.of, plan.texts)]
            if not num:
                return best, [[] for _ in best]
            found = [[one.text for one in ranked(text, size)] for text in plans[1].texts]
            both = zip(best, found, strict=True)
            return best, [[text for text in own if text != one.text][:num] for one, own in both]

        return await self.with_text(read, plan.size)

    async def decode(self, *plans: TextPlan) -> None:
        """Decode what plans wait for, and count it. Cancelling this frees their rows."""
        await self.finish(*plans)
        for text in [text for plan in plans for text in plan.texts]:
            for row in text.results:
                self.metrics.answered(len(row.token_ids), len(row.events), row.decode_seconds)
            for part in text.parts:
                self.metrics.incomplete.labels("truncated").inc(part.is_cut)
                self.metrics.incomplete.labels("unreadable").inc(bool(part.fault))

    async def finish(self, *plans: TextPlan) -> None:
        while requests := [request for plan in plans for request in plan.requests]:
            with closing(Subscription(self.worker, requests)) as subscription:
                for row in range(len(requests)):
                    async for _ in subscription.rounds(row):
                        pass
            await self.take(plans, subscription.rows)

    async def take(self, plans: Sequence[TextPlan], rows: Sequence[BatchRow]) -> None:
        """Give plans the rows that they wait for, in order."""
        left = iter(rows)

        def take() -> None:
            for plan in plans:
                plan.take([*islice(left, len(plan.requests))])

        await self.with_text(take, sum(plan.size for plan in plans))

    async def with_text(self, work: Callable[[], T], size: int) -> T:
        """The result of `work` on texts of so many characters."""
        if size <= _SHORT and self._text_lock.acquire(blocking=False):
            try:
                return work()
            finally:
                self._text_lock.release()

        def timed() -> T:
            with self._text_lock:
                self._text_began = time.monotonic()
                try:
                    return work()
                finally:
                    self._text_began = None

        return await asyncio.get_running_loop().run_in_executor(self._text_thread, timed)


class Subscription(Submission):
    """Delivers rows' rounds to the event loop as they happen; always `close` it."""

    def __init__(
        self, worker: BatchWorker, requests: Sequence[Request], streams: bool = False
    ) -> None:
        """Raises ServiceError if the requests cannot be queued."""
        super().__init__(requests, current_id.get(), streams)
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._news: list[asyncio.Queue[RowRound | Exception]] = [asyncio.Queue() for _ in requests]
        self._num_left = len(requests)
        if requests:
            worker.submit(self)

    async def rounds(self, row: int) -> AsyncIterator[RowRound]:
        """Those rounds of one sentence that are delivered.

        Raises the error of whichever sentence failed first.
        """
        while True:
            news = await self._news[row].get()
            if isinstance(news, Exception):
                raise news
            yield news
            if news.event.result is not None:
                return

    def close(self) -> None:
        """Free the unfinished rows."""
        if self._num_left:
            self._num_left = 0
            self._worker.cancel(self)

    def deliver(self, row: int, news: RowRound | Exception) -> None:
        # A closed loop has no listeners.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, row, news)

    def _put(self, row: int, news: RowRound | Exception) -> None:
        if isinstance(news, Exception):
            for queue in self._news:
                queue.put_nowait(news)
            return
        self._news[row].put_nowait(news)
        self._num_left -= news.event.result is not None
