"""Answers in text-generation-inference's shapes, whole and as a stream; clients may hang up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specdec_plugins.app.codec import RunningText
from specdec_plugins.decoding.types import FinishReason, RowEvent
from specdec_plugins.serving.errors import Gone, ServiceError
from specdec_plugins.serving.planning import Options, TextPlan
from specdec_plugins.serving.queue import RowUpdate
from specdec_plugins.serving.schemas import (
    Details,
    ErrorResponse,
    GenerateResponse,
    Piece,
    RoundInfo,
    Speculation,
    StreamResponse,
    Token,
)
from specdec_plugins.serving.service import Deadline, Outcome, Service, Subscription

T = TypeVar("T")

_FINISH = {FinishReason.EOS: "eos_token", FinishReason.LENGTH: "length"}


async def generate(
    service: Service, text: str, options: Options, details: bool
) -> GenerateResponse:
    """The translation of one text."""
    plan = await service.plan([text], options)
    outcomes = await service.decode(plan)
    lines = await service.texts([outcome.token_ids for outcome in outcomes])
    answer = GenerateResponse(generated_text=plan.join(lines)[0])
    if details:
        answer.details = make_details(plan, outcomes, options)
        answer.details.tokens = [
            token
            for outcome, gap in zip(outcomes, plan.texts[0].gaps, strict=False)
            for token in await GrowingSentence(service, gap).add(outcome.token_ids)
        ]
    return answer


def make_details(plan: TextPlan, outcomes: Sequence[Outcome], options: Options) -> Details:
    """How a text's sentences came about."""
    cut = any(outcome.finish_reason is FinishReason.LENGTH for outcome in outcomes)
    return Details(
        finish_reason=_FINISH[FinishReason.LENGTH if cut else FinishReason.EOS],
        generated_tokens=sum(len(outcome.token_ids) for outcome in outcomes),
        seed=plan.seed if options.sample else None,
        speculation=[_speculation(outcome) for outcome in outcomes],
    )


def _speculation(outcome: Outcome) -> Speculation:
    return Speculation(
        rounds=len(outcome.rounds),
        drafted=[len(event.draft_ids) for event in outcome.rounds],
        accepted=[event.num_accepted for event in outcome.rounds],
        emitted=[len(event.emitted_ids) for event in outcome.rounds],
        queue_ms=_ms(outcome.queue_seconds),
        decode_ms=_ms(outcome.decode_seconds),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class GrowingSentence:
    """One sentence as its tokens come, each with what it adds to the text so far."""

    def __init__(self, service: Service, gap: str) -> None:
        """gap: what stands before the sentence; it goes with the first token."""
        self._service = service
        self._running = RunningText(service.model.codec)
        self._gap = gap
        self.text = ""
        self.outcome = Outcome()
        self.held: list[tuple[RowUpdate, float]] = []  # rounds that may not be sent yet
        self.is_done = False

    async def add(self, ids: Sequence[int]) -> list[Token]:
        """The next tokens.

        Where one changes text that an earlier one has settled, it adds nothing: the last event's
        text is the one to keep.
        """
        codec, eos = self._service.model.codec, self._service.model.verifier.special.eos
        texts = await self._service.with_text(
            lambda: [self._running.add(codec.tokens([token_id])) for token_id in ids]
        )
        tokens = []
        for token_id, text in zip(ids, texts, strict=True):
            added = text[len(self.text) :] if text.startswith(self.text) else ""
            tokens.append(Token(id=token_id, text=self._gap + added, special=token_id == eos))
            self.text, self._gap = text, ""
        return tokens


class TokenStream:
    """The rounds of a plan as events, sentence after sentence.

    Sentences decode side by side, but a reader joins tokens as they come; so what belongs to a
    later sentence is held back until the earlier ones are complete.
    """

    def __init__(self, service: Service, plan: TextPlan, options: Options) -> None:
        self._service = service
        self._plan = plan
        self._options = options
        gaps = plan.texts[0].gaps[: len(plan.requests)]
        self._sentences = [GrowingSentence(service, gap) for gap in gaps]
        self._texts: list[str] = []  # of complete sentences
        self._num_tokens = 0

    async def events(
        self, rounds: Subscription, deadline: Deadline, request_id: str
    ) -> AsyncGenerator[str, None]:
        """Server-sent events, the tokens of a round in one piece; an error ends them."""
        try:
            async for text in deadline.each(self._events(rounds)):
                yield text
        except ServiceError as error:
            self._service.metrics.failures.labels(error.kind).inc()
            body = ErrorResponse(error=error.message, error_type=error.kind, request_id=request_id)
            yield f"data:{body.model_dump_json()}\n\n"

    async def _events(self, rounds: Subscription) -> AsyncGenerator[str, None]:
        """The same in its own time. Raises the error of a sentence that failed."""
        async for update, seconds in rounds:
            self._sentences[update.row].held.append((update, seconds))
            async for text in self._release():
                yield text
        if not self._sentences:
            yield _sent([self._blank()])

    async def _release(self) -> AsyncIterator[str]:
        """What may be sent now."""
        while len(self._texts) < len(self._sentences):
            sentence = self._sentences[len(self._texts)]
            held, sentence.held = sentence.held, []
            for update, seconds in held:
                yield _sent(await self._round(sentence, update, seconds))
            if not sentence.is_done:
                return

    async def _round(
        self, sentence: GrowingSentence, update: RowUpdate, seconds: float
    ) -> list[StreamResponse]:
        event, outcome = update.event, sentence.outcome
        assert event is not None
        outcome.add(update, seconds)
        events = []
        for token in await sentence.add(event.emitted_ids):
            events.append(StreamResponse(index=self._num_tokens, token=token))
            self._num_tokens += 1
        text = sentence.text
        events[0].round = self._info(update, outcome, seconds, text)
        if event.result is not None:
            sentence.is_done = True
            self._texts.append(text)
            if len(self._texts) == len(self._sentences):
                self._end(events[-1])
        return events

    def _end(self, last: StreamResponse) -> None:
        outcomes = [sentence.outcome for sentence in self._sentences]
        self._service.finished(outcomes)
        last.token.text += self._plan.texts[0].gaps[-1]
        last.generated_text = self._plan.join(self._texts)[0]
        last.details = make_details(self._plan, outcomes, self._options)

    def _blank(self) -> StreamResponse:
        """A text without words has no tokens; clients wait for one all the same."""
        text = self._plan.join([])[0]
        eos = self._service.model.verifier.special.eos
        return StreamResponse(
            index=0,
            token=Token(id=eos, text=text, special=True),
            generated_text=text,
            details=make_details(self._plan, [], self._options),
        )

    def _info(self, update: RowUpdate, outcome: Outcome, seconds: float, text: str) -> RoundInfo:
        event = update.event
        assert event is not None
        return RoundInfo(
            sentence=update.row,
            index=len(outcome.rounds) - 1,
            drafted=self._pieces(event.draft_ids),
            accepted=event.num_accepted,
            emitted=self._pieces(event.emitted_ids),
            own=_own(event),
            text=text,
            ms=_ms(seconds),
            queue_ms=_ms(outcome.queue_seconds),
            batch_size=update.batch_size,
        )

    def _pieces(self, ids: Sequence[int]) -> list[Piece]:
        model = self._service.model
        eos = model.verifier.special.eos
        return [
            Piece(id=i, text="</s>" if i == eos else " ".join(model.codec.tokens([i]))) for i in ids
        ]


def _own(event: RowEvent) -> str | None:
    """What the verifier's own token is called; None where the row ended within its draft."""
    if len(event.emitted_ids) == event.num_accepted:
        return None
    if not event.draft_ids:
        return "step"
    return "bonus" if event.num_accepted == len(event.draft_ids) else "correction"


def _sent(events: Sequence[StreamResponse]) -> str:
    return "".join(f"data:{event.model_dump_json()}\n\n" for event in events)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises Gone, after cancelling it, where the client hangs up first."""
    try:
        return await _while_open(work, request.receive)
    except Gone:
        request.state.hung_up = True
        raise


async def _while_open(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    task = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone("The client hung up.")
        return task.result()
    finally:
        for future in (task, listener):
            future.cancel()
        await asyncio.gather(task, listener, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events; each item of the generator is written at once.

    Starlette's own streaming notices a hang-up only when it next writes, which may be long after
    for a request that waits in line. sse-starlette cuts streams off when the server is asked to
    stop, where this one finishes accepted work, and changes uvicorn's class to notice that.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], close: Callable[[], None]) -> None:
        """close: called when the stream is over, however it ends, even before it began."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _while_open(self._write(send), receive)
        except (Gone, OSError):
            scope["state"]["hung_up"] = True
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._events) as events:
            await send(start)
            async for text in events:
                body = text.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
