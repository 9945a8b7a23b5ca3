"""Answers in text-generation-inference's shapes, whole and as a stream; clients may hang up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specdec_plugins.app.codec import RunningText
from specdec_plugins.decoding.types import FinishReason, RowEvent
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.planning import TextPlan
from specdec_plugins.serving.queue import BatchRow, RowRound
from specdec_plugins.serving.schemas import (
    Details,
    GenerateResponse,
    Parameters,
    RoundInfo,
    Speculation,
    StreamResponse,
    Subword,
    Token,
)
from specdec_plugins.serving.service import Service, Subscription

T = TypeVar("T")


async def generate(service: Service, text: str, options: Parameters) -> GenerateResponse:
    """The translation of one text."""
    plan = await service.plan([text], options)
    rows = await service.decode(plan)
    answer = GenerateResponse(generated_text=(await service.join(plan, rows))[0])
    if options.details:
        answer.details = make_details(plan, rows, options)
        answer.details.tokens = [
            token
            for row, gap in zip(rows, plan.texts[0][0::2], strict=False)
            for token in await GrowingSentence(service, gap).add(row.token_ids)
        ]
    return answer


def make_details(plan: TextPlan, rows: Sequence[BatchRow], options: Parameters) -> Details:
    """How a text's sentences came about."""
    ends = [row.rounds[-1].event.result for row in rows]
    was_cut = any(end is not None and end.finish_reason is FinishReason.LENGTH for end in ends)
    return Details(
        finish_reason="length" if was_cut else "eos_token",
        generated_tokens=sum(len(row.token_ids) for row in rows),
        seed=plan.seed if options.do_sample else None,
        speculation=[_speculation(row) for row in rows],
    )


def _speculation(row: BatchRow) -> Speculation:
    events = [one.event for one in row.rounds]
    return Speculation(
        rounds=len(events),
        drafted=[len(event.draft_ids) for event in events],
        accepted=[event.num_accepted for event in events],
        emitted=[len(event.emitted_ids) for event in events],
        queue_ms=_ms(row.rounds[-1].queue_seconds),
        decode_ms=_ms(row.decode_seconds),
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

    async def add(self, ids: Sequence[int]) -> list[Token]:
        """The next tokens.

        Where one changes text that an earlier one has settled, it adds nothing: the last event's
        text is the one to keep.
        """
        codec, eos = self._service.model.codec, self._service.model.eos
        texts = await self._service.with_text(
            lambda: [self._running.add(codec.tokens([token_id])) for token_id in ids]
        )
        tokens = []
        for token_id, text in zip(ids, texts, strict=True):
            added = text[len(self.text) :] if text.startswith(self.text) else ""
            tokens.append(Token(id=token_id, text=self._gap + added, special=token_id == eos))
            self.text, self._gap = text, ""
        return tokens


async def events_of(
    service: Service, plan: TextPlan, options: Parameters, subscription: Subscription
) -> AsyncGenerator[list[StreamResponse], None]:
    """The tokens of each round of a plan of one text, sentence after sentence.

    Sentences decode side by side, but a reader joins tokens as they come; so what belongs to a
    later sentence waits until the earlier ones are complete. Raises the error of a sentence that
    failed.
    """
    [[*parts, last_gap]], num_tokens = plan.texts, 0
    sentences = [GrowingSentence(service, gap) for gap in parts[0::2]]

    def end(last: StreamResponse) -> None:
        service.metrics.answered(subscription.rows)
        last.token.text += last_gap
        [last.generated_text] = plan.join([sentence.text for sentence in sentences])
        last.details = make_details(plan, subscription.rows, options)

    for row, sentence in enumerate(sentences):
        index = 0
        async for one in subscription.rounds(row):
            tokens = await sentence.add(one.event.emitted_ids)
            events = [StreamResponse(index=i, token=t) for i, t in enumerate(tokens, num_tokens)]
            events[0].round = _round_info(service, one, row, index, sentence.text)
            num_tokens, index = num_tokens + len(tokens), index + 1
            if one.event.result is not None and row == len(sentences) - 1:
                end(events[-1])
            yield events
    if not sentences:  # no words, no tokens; clients wait for one all the same
        blank = StreamResponse(index=0, token=Token(id=service.model.eos, text="", special=True))
        end(blank)
        yield [blank]


def _round_info(service: Service, one: RowRound, row: int, index: int, text: str) -> RoundInfo:
    event = one.event
    return RoundInfo(
        sentence=row,
        index=index,
        drafted=_subwords(service, event.draft_ids),
        accepted=event.num_accepted,
        emitted=_subwords(service, event.emitted_ids),
        own=_own(event),
        text=text,
        ms=_ms(one.seconds),
        queue_ms=_ms(one.queue_seconds),
        batch_size=one.batch_size,
    )


def _subwords(service: Service, ids: Sequence[int]) -> list[Subword]:
    eos, tokens = service.model.eos, service.model.codec.tokens
    return [Subword(id=i, text="</s>" if i == eos else " ".join(tokens([i]))) for i in ids]


def _own(event: RowEvent) -> str | None:
    """What the verifier's own token is called; None where the row ended within its draft."""
    if len(event.emitted_ids) == event.num_accepted:
        return None
    if not event.draft_ids:
        return "step"
    return "bonus" if event.num_accepted == len(event.draft_ids) else "correction"


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; ClientDisconnect cancels it, and is raised, where it comes first."""
    task = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(_hang_up(request.receive))
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in (task, listener):
            future.cancel()
        await asyncio.gather(task, listener, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events: the tokens of a round are written in one piece; an error ends them.

    Starlette's own streaming notices a hang-up only when it next writes, which may be long after
    for a request that waits in line. sse-starlette cuts streams off when the server is asked to
    stop, where this one finishes accepted work, and changes uvicorn's class to notice that.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        events: AsyncGenerator[list[StreamResponse], None],
        subscription: Subscription,
        deadline: float,
    ) -> None:
        """subscription: closed when the stream is over, however it ends, even before it began."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._events = events
        self._subscription = subscription
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(Request(scope, receive), self._write(send))
        except OSError as error:
            raise ClientDisconnect from error
        finally:
            self._subscription.close()

    async def _write(self, send: Send) -> None:
        async def write(*records: BaseModel) -> None:
            text = "".join(f"data:{record.model_dump_json()}\n\n" for record in records)
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with self._service.until(self._deadline), aclosing(self._events) as rounds:
                async for events in rounds:
                    await write(*events)
        except ServiceError as error:
            await write(self._service.refusal(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
