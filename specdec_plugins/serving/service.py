"""Texts in, translations out: the asynchronous side of the worker, without HTTP."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from specdec_plugins.decoding.types import SEEDS, FinishReason, Request, RowEvent
from specdec_plugins.errors import UserError
from specdec_plugins.serving.errors import Invalid, TimedOut, TooLarge
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import Options, TextPlan, make_plan
from specdec_plugins.serving.queue import RowUpdate, Submission
from specdec_plugins.serving.request_ids import current_id
from specdec_plugins.serving.schemas import Info
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchWorker

T = TypeVar("T")

# Samples are drawn in lots of as many as alternatives were asked for, each lot at so many times the
# temperature: a model that is sure of itself says the same again and again.
_HEAT = (1.0, 1.25, 1.5)


@dataclass
class Outcome:
    """One decoded sentence."""

    token_ids: list[int] = field(default_factory=list)  # eos included
    rounds: list[RowEvent] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.EOS
    queue_seconds: float = 0.0  # from submission until it joined the batch
    decode_seconds: float = 0.0  # from then until it was done

    def add(self, update: RowUpdate, seconds: float) -> None:
        """A round of this sentence, so many seconds after it was submitted."""
        assert update.event is not None
        self.token_ids += update.event.emitted_ids
        self.rounds.append(update.event)
        self.decode_seconds = update.at - update.joined_at
        self.queue_seconds = seconds - self.decode_seconds
        if update.event.result is not None:
            self.finish_reason = update.event.result.finish_reason or FinishReason.LENGTH


class Service:
    """Prepares texts, sends them through the worker, and counts what comes of them."""

    def __init__(
        self, model: ServedModel, worker: BatchWorker, settings: ServerSettings, metrics: Metrics
    ) -> None:
        self.model = model
        self.worker = worker
        self.settings = settings
        self.metrics = metrics
        # One thread, because a text pipeline need not be safe for more; its own, because
        # tokenising a long text would hold up every other request on the event loop.
        self._text_thread = ThreadPoolExecutor(1, "specdec-text")

    def close(self) -> None:
        self._text_thread.shutdown()

    def info(self) -> Info:
        """Models, limits and defaults."""
        model, settings = self.model, self.settings
        drafter = model.method.drafter
        return Info(
            model_id=model.name,
            model_dtype=model.dtype,
            model_device_type=model.verifier.device.type,
            kernels=model.kernels,
            max_concurrent_requests=settings.max_waiting,
            max_batch_size=settings.max_rows,
            max_input_tokens=model.max_source,
            max_total_tokens=min(settings.max_new_tokens, model.max_target),
            max_input_characters=settings.max_characters,
            max_alternatives=settings.max_alternatives if model.can_sample else 0,
            version=version(),
            source=model.source_lang,
            target=model.target_lang,
            drafter=model.drafter_name,
            schedule=model.schedule_name,
            block_size=model.block_size,
            max_block_size=drafter.max_block_size if drafter is not None else None,
            beta=settings.beta,
            tau=settings.tau,
            guarantee=model.method.rule.guarantee(settings.beta).value,
            can_sample=model.can_sample,
            needs_api_key=settings.api_key is not None,
        )

    def deadline(self) -> Deadline:
        """Of a request that has just been read."""
        return Deadline(self.settings.request_timeout)

    async def plan(self, texts: Sequence[str], options: Options) -> TextPlan:
        """Raises ServiceError where a text or an option cannot be served."""
        settings = self.settings
        if len(texts) > settings.max_texts:
            raise TooLarge(f"{len(texts)} texts are more than the {settings.max_texts} a request.")
        num_characters = sum(map(len, texts))
        if num_characters > settings.max_characters:
            raise TooLarge(
                f"{num_characters} characters are more than the {settings.max_characters} "
                "that a request may have; send the text in parts."
            )
        try:
            return await self.with_text(lambda: make_plan(texts, options, self.model, settings))
        except UserError as error:
            raise Invalid(str(error)) from error

    async def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """What a user reads of each row's target tokens."""
        codec = self.model.codec
        return await self.with_text(lambda: [codec.text(codec.tokens(ids)) for ids in rows])

    async def translate(self, texts: Sequence[str], options: Options) -> list[str]:
        """Translations of some texts."""
        plan = await self.plan(texts, options)
        outcomes = await self.decode(plan)
        return plan.join(await self.texts([outcome.token_ids for outcome in outcomes]))

    async def alternatives(
        self, texts: Sequence[str], options: Options, num: int
    ) -> tuple[list[str], list[list[str]]]:
        """The translation of each text, and up to `num` samples that differ from it and among
        each other. Fewer where so many draws in a row give nothing new.
        """
        first = options.seed
        if first is None:
            first = (await self.plan([], options)).seed
        temperature = options.temperature or self.settings.temperature
        drawn = [
            replace(options, sample=True, seed=(first + 1 + i) % SEEDS, temperature=heat)
            for i, heat in enumerate(temperature * heat for heat in _HEAT for _ in range(num))
        ]
        # The first lot decodes beside the translation itself; more only where something is short.
        best, *samples = await gather(
            [
                self.translate(texts, replace(options, seed=first)),
                *(self.translate(texts, sample) for sample in drawn[:num]),
            ]
        )
        chosen = [_distinct(best[i], [s[i] for s in samples], num) for i in range(len(texts))]
        for sample in drawn[num:]:
            short = [i for i, found in enumerate(chosen) if len(found) < num and texts[i].strip()]
            if not short:
                break
            more = await self.translate([texts[i] for i in short], sample)
            for i, text in zip(short, more, strict=True):
                chosen[i] = _distinct(best[i], [*chosen[i], text], num)
        return best, chosen

    async def decode(self, plan: TextPlan) -> list[Outcome]:
        """All sentences of a plan. Cancelling this frees their rows."""
        outcomes = [Outcome() for _ in plan.requests]
        with closing(self.submit(plan)) as rounds:
            async for update, seconds in rounds:
                outcomes[update.row].add(update, seconds)
        self.finished(outcomes)
        return outcomes

    def submit(self, plan: TextPlan) -> Subscription:
        """Put a plan in line. Raises QueueFull, Stopping or Failed."""
        return Subscription(self.worker, plan.requests)

    def finished(self, outcomes: Sequence[Outcome]) -> None:
        """Count sentences that were answered."""
        for outcome in outcomes:
            self.metrics.sentence(outcome.rounds, outcome.decode_seconds)

    async def with_text(self, work: Callable[[], T]) -> T:
        """What `work` makes on the thread of texts."""
        return await asyncio.get_running_loop().run_in_executor(self._text_thread, work)


def version() -> str:
    """Of the installed package; unknown where it runs from a folder that was not installed."""
    try:
        return importlib.metadata.version("specdec")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


async def gather(parts: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """Results in order; where one fails, the others are cancelled and have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _distinct(best: str, samples: Sequence[str], num: int) -> list[str]:
    """The first `num` samples that are neither the best translation nor one another."""
    return [text for text in dict.fromkeys(samples) if text != best][:num]


class Deadline:
    """Begins where it is made, on a running event loop; all work of a request shares it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = asyncio.get_running_loop().time() + seconds

    async def bound(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises TimedOut, after cancelling it, where it is not done then."""
        try:
            async with asyncio.timeout_at(self._end):
                return await work
        except TimeoutError as error:
            raise TimedOut(
                f"The translation took longer than {self._seconds:g} seconds."
            ) from error

    async def each(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items, each with the work that goes into it bound; closes `items` in any case.

        Bound one by one, because what happens between them is the reader's: an end that came
        there would cancel the reader.
        """
        async with aclosing(items):
            while True:
                try:
                    item = await self.bound(anext(items))
                except StopAsyncIteration:
                    return
                yield item


class Subscription:
    """Iterate over it for the rounds of all rows as they happen; `close` it in any case.

    No generator, whose clean-up would not run where nobody has begun to iterate.
    """

    def __init__(self, worker: BatchWorker, requests: Sequence[Request]) -> None:
        """Submits the requests; raises QueueFull, Stopping or Failed."""
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._updates: asyncio.Queue[RowUpdate] = asyncio.Queue()
        self._submission = Submission(requests, self._deliver, current_id.get())
        if requests:
            worker.submit(self._submission)
        self._num_left = len(requests)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> tuple[RowUpdate, float]:
        """A round, and the seconds since submission. Raises the error of a sentence that failed."""
        if not self._num_left:
            raise StopAsyncIteration
        update = await self._updates.get()
        if update.error is not None:
            raise update.error
        self._num_left -= update.is_last
        return update, update.at - self._submission.submitted_at

    def close(self) -> None:
        """Free the rows that are not done."""
        if self._num_left:
            self._num_left = 0
            self._worker.cancel(self._submission)

    def _deliver(self, updates: Sequence[RowUpdate]) -> None:
        """On the worker's thread. A loop that has closed has nobody left to tell."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, updates)

    def _put(self, updates: Sequence[RowUpdate]) -> None:
        for update in updates:
            self._updates.put_nowait(update)
