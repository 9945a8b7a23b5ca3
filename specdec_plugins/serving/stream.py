"""Answers in text-generation-inference's format, whole or streamed; clients may hang up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import zip_longest

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from specdec_plugins.app.planning import Part, Text, Translated
from specdec_plugins.app.translator import ranked
from specdec_plugins.app.types import Score
from specdec_plugins.decoding.requests import RowEvent
from specdec_plugins.serving import schemas
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import TextPlan
from specdec_plugins.serving.schemas import Parameters, StreamResponse, Token
from specdec_plugins.serving.service import Service, Subscription
from specdec_plugins.serving.worker import BatchRow, RowRound

_INCOMPLETE = "\ufffd"


async def generate(service: Service, text: str, options: Parameters) -> schemas.GenerateResponse:
    plan = await service.plan([text], options)
    await service.decode(plan)
    return await service.with_text(lambda: _response(service.model, plan, options), plan.size)


def _response(model: ServedModel, plan: TextPlan, options: Parameters) -> schemas.GenerateResponse:
    """The answer for a plan of one text that is decoded."""
    [text] = plan.texts
    done = Translated.of(text)
    answer = schemas.GenerateResponse(
        generated_text=done.text, truncated=done.is_cut, unreadable=done.fault or None
    )
    if options.n_best:
        answer.n_best = [
            schemas.Hypothesis(generated_text=one.text, score=one.score, logprob=one.log_prob)
            for one in ranked(text, options.n_best)
        ]
    if options.details:
        answer.details = _details(plan, options, done)
        answer.details.tokens = []
        for part in text.parts:
            ids, scores = (row.token_ids, row.token_scores) if (row := part.result) else ([], [])
            answer.details.tokens += GrowingSentence(model, part).add(ids, scores)
    return answer


def _details(plan: TextPlan, options: Parameters, done: Translated) -> schemas.Details:
    [text] = plan.texts
    every = [pair for one in done.scores for pair in one.tokens]
    return schemas.Details(
        finish_reason=done.finish_reason if done.is_cut else "eos_token",
        generated_tokens=sum(len(row.token_ids) for row in text.results),
        seed=plan.seed if options.do_sample else None,
        score=schemas.Score.of(Score(every)) if every else None,
        speculation=[_speculation(part.result, part.score) for part in text.parts if part.result],
    )


def _speculation(row: BatchRow, score: Score | None) -> schemas.Speculation:
    events = row.events
    return schemas.Speculation(
        rounds=len(events),
        drafted=[len(event.draft_ids) for event in events],
        accepted=[event.num_accepted for event in events],
        emitted=[len(event.emitted_ids) for event in events],
        queue_ms=_ms(row.queue_seconds),
        decode_ms=_ms(row.decode_seconds),
        score=schemas.Score.of(score) if score else None,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class GrowingSentence:
    """A sentence that grows token by token, each with what it adds to the text so far.

    One with spans adds nothing: it may yet be decoded again, in pieces, if it loses some.
    """

    def __init__(self, model: ServedModel, part: Part[BatchRow]) -> None:
        self._model = model
        self._tokens: list[str] = []
        # Sent with the first token.
        self._gap = part.gap or " " * part.continues
        self._part = part
        self._shown = ""  # the text, without an incomplete character at its end
        self.text = ""

    def add(self, ids: Sequence[int], scores: Sequence[float]) -> list[Token]:
        """Append the next tokens; a sentence that is copied is one token, of no number.

        scores: their log-probabilities; none if nobody asked for them.

        A token that changes text that was already sent adds nothing: the last event's text is the
        one to keep.
        """
        codec = self._model.codec
        if self._part.request is None:
            copied = self._gap + self._part.text
            return [Token(id=codec.unk, text=copied, special=False)]
        tokens = []
        for token_id, score in zip_longest(ids, scores):
            self._tokens += codec.tokens([token_id])
            text = self._part.unfilled(self._tokens)
            shown = text.rstrip(_INCOMPLETE)
            added = shown[len(self._shown) :] if shown.startswith(self._shown) else ""
            told = "" if self._part.read.mask else self._gap + added
            special = token_id == self._model.eos
            tokens.append(Token(id=token_id, text=told, logprob=score, special=special))
            self.text, self._shown, self._gap = self._part.filled(text), shown, ""
        return tokens


async def events_of(
    service: Service, plan: TextPlan, options: Parameters, subscription: Subscription
) -> AsyncIterator[list[StreamResponse]]:
    """The tokens of each round of a plan of one text, sentence after sentence.

    Sentences decode concurrently, but a reader joins tokens as they come. So the tokens of a later
    sentence wait until the earlier ones are complete. What must then be divided is not streamed.
    Raises the error of a sentence that failed.
    """
    [text], num_tokens = plan.texts, 0
    parts, rows = [*text.parts], {part: row for row, part in enumerate(plan.waiting)}

    async def ended(event: StreamResponse) -> None:
        left = [subscription.rows[row] for row in rows.values()]
        await _end(service, plan, options, left, event)

    for part in parts:
        sentence, index, row = GrowingSentence(service.model, part), 0, rows.get(part, 0)
        async for one in _copied() if part.request is None else subscription.rounds(row):
            ids, scores = (one.event.emitted_ids, one.event.token_scores) if one else ([], [])
            is_last = one is None or one.event.result is not None
            tokens = await service.with_text(partial(sentence.add, ids, scores), len(part.text))
            if part.read.mask is None:
                part.said = sentence.text
            elif is_last:
                part.result = subscription.rows[rows.pop(part)]
                tokens[-1].text = await _whole(service, text, part)
            events = [StreamResponse(index=i, token=t) for i, t in enumerate(tokens, num_tokens)]
            if one is not None:
                events[0].round = _round_info(service, one, row, index, sentence.text)
            num_tokens, index = num_tokens + len(tokens), index + 1
            if part is parts[-1] and is_last:
                await ended(events[-1])
            yield events
    if not parts:  # no words, no tokens, but clients wait for one
        blank = StreamResponse(index=0, token=Token(id=service.model.eos, text="", special=True))
        await ended(blank)
        yield [blank]


async def _end(
    service: Service,
    plan: TextPlan,
    options: Parameters,
    rows: Sequence[BatchRow],
    last: StreamResponse,
) -> None:
    """Complete a plan of one text, given the rows that it waits for, and its last event."""
    [text] = plan.texts
    await service.take([plan], rows)
    await service.decode(plan)
    done = await service.with_text(lambda: Translated.of(text), plan.size)
    last.token.text += text.end
    last.generated_text, last.truncated = done.text, done.is_cut
    last.unreadable, last.details = done.fault or None, _details(plan, options, done)


async def _whole(service: Service, text: Text[BatchRow], part: Part[BatchRow]) -> str:
    """The translation of a decoded part of a text, with all its spans."""
    alone = TextPlan([Text([part])], 0, len(part.text))
    await service.with_text(alone.settle, alone.size)
    await service.finish(alone)
    at, [done] = text.parts.index(part), alone.texts
    text.parts[at : at + 1] = done.parts
    return await service.with_text(lambda: done.translation, alone.size)


async def _copied() -> AsyncIterator[RowRound | None]:
    """The rounds of a sentence that is copied."""
    yield None


def _round_info(
    service: Service, one: RowRound, row: int, index: int, text: str
) -> schemas.RoundInfo:
    event = one.event
    return schemas.RoundInfo(
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


def _subwords(service: Service, ids: Sequence[int]) -> list[schemas.Subword]:
    eos, tokens = service.model.eos, service.model.codec.tokens
    return [schemas.Subword(id=i, text="</s>" if i == eos else " ".join(tokens([i]))) for i in ids]


def _own(event: RowEvent) -> str | None:
    """The kind of the verifier's own token; None if the row ended within its draft."""
    if len(event.emitted_ids) == event.num_accepted:
        return None
    if not event.draft_ids:
        return "step"
    return "bonus" if event.num_accepted == len(event.draft_ids) else "correction"


class EventStream(StreamingResponse):
    """Server-sent events: the tokens of a round are written in one piece; an error ends them.

    Starlette's own streaming notices a hang-up only at its next write, which may be much later for
    a queued request. sse-starlette patches uvicorn's class and cuts streams off when the server is
    asked to stop; this class finishes accepted work.
    """

    media_type = "text/event-stream"

    def __init__(
        self, service: Service, texts: AsyncIterator[str], subscription: Subscription
    ) -> None:
        """subscription: closed when the stream ends, in any way, even before it began."""
        super().__init__(texts, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._service = service
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._service.until(None, receive):
                await self.stream_response(send)
        except OSError as error:
            raise ClientDisconnect from error
        finally:
            self._subscription.close()


async def written(
    service: Service, events: AsyncIterator[list[StreamResponse]], deadline: float
) -> AsyncIterator[str]:
    """Each list of events as text; an error, such as a missed deadline, ends them."""
    try:
        while True:
            # Outside this block the reader takes its time: no deadline interrupts it.
            async with service.until(deadline):
                records = await anext(events, None)
            if records is None:
                return
            yield _text_of(records)
    except ServiceError as error:
        yield _text_of([service.refusal(error)])


def _text_of(records: Sequence[BaseModel]) -> str:
    return "".join(f"data:{record.model_dump_json()}\n\n" for record in records)
