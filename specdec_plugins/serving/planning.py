"""Turns texts and options into requests for the engine. No asynchronous code here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.planning import How, Part, Plan, Result, Text, Translated
from specdec_plugins.decoding.engine import check_request
from specdec_plugins.decoding.rules.mixed import GREEDY_TOP_K
from specdec_plugins.decoding.types import SEEDS, DecodeParams, RowResult
from specdec_plugins.errors import require
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.model import ServedModel, Split, whole_lines
from specdec_plugins.serving.settings import ServerSettings

if TYPE_CHECKING:
    from specdec_plugins.serving.schemas import Parameters

R = TypeVar("R", bound=Result)

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_ROW = {"block_size", "beta", "tau", "temperature", "top_k", "top_p"}  # as the engine names them


@dataclass(frozen=True)
class Wishes:
    """How to decode, as in `Parameters`, which needs pydantic."""

    source_lang: str | None = None
    target_lang: str | None = None
    split_sentences: bool = True
    max_new_tokens: int | None = None
    do_sample: bool = False
    seed: int | None = None
    use_drafter: bool | None = None
    block_size: int | None = None
    beta: int | None = None
    tau: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class TextPlan(Plan[R]):
    """Prepared texts."""

    def __init__(self, texts: Iterable[Text[R]], seed: int) -> None:
        super().__init__(texts)
        self.seed = seed

    def only(self, chosen: Sequence[int]) -> TextPlan[R]:
        """The plan of some of its texts."""
        return TextPlan([self.texts[i] for i in chosen], self.seed)

    def decoded_with(self, params: DecodeParams, seed: int) -> TextPlan[R]:
        """The same texts, to be decoded in another way; each sentence has a seed of its own."""
        seeds = ((seed + number * 0x9E3779B97F4A7C15) % SEEDS for number in count())

        def again(part: Part[R]) -> Part[R]:
            request, how = part.request, replace(part.how, params=params)
            if request is not None:
                # The first sentence has the request's seed.
                own = replace(params, max_len=request.params.max_len, seed=next(seeds))
                request = replace(request, params=own)
            return replace(part, how=how, request=request, result=None, said=None)

        return TextPlan((Text([*map(again, t.parts)], t.end) for t in self.texts), seed)


def make_plan(
    texts: Sequence[str],
    options: Parameters | Wishes,
    model: ServedModel,
    settings: ServerSettings,
    take: Callable[[int], None] = lambda num: None,
    copies: int = 1,
) -> TextPlan[R]:
    """copies: how often each sentence will be decoded at once. take: is told how many sentences
    that are, before the longer part of the work, and may raise ServiceError.

    Raises UserError or ServiceError if a text or an option cannot be served.
    """
    params = row_params(options, model, settings)
    codec = model.codec.between(options.source_lang, options.target_lang)
    split = (model.splitter if options.split_sentences else whole_lines)(codec.source_lang)
    parts = [segment(text, split) for text in texts]
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
    num = sum(len(part) // 2 for part in parts) * copies
    if num > settings.max_waiting:
        fewer = " or ask for fewer alternatives" if copies > 1 else ""
        raise ServiceError(
            413,
            f"{num} sentences exceed the queue's limit of {settings.max_waiting}; send the text in "
            f"parts{fewer}.",
        )
    take(num)
    how = _how(codec, params, options, model, settings)
    prepared: Iterator[Text[R]] = _prepared(parts, how)
    plan = TextPlan(prepared, seed).decoded_with(params, seed)
    for request in plan.requests:
        check_request(request, model.decoder.verifier, model.decoder.method)
    return plan


def _prepared(texts: Sequence[Sequence[str]], how: How) -> Iterator[Text[R]]:
    """Texts as `segment` cuts them, to be decoded so."""
    numbers = count(1)
    for *rest, end in texts:
        text = Text[R]([], end)
        for gap, sentence in zip(rest[::2], rest[1::2], strict=True):
            pieces: list[Part[R]] = how.parts(sentence, f"sentence {next(numbers)}", seed=0)
            pieces[0].gap = gap
            text.parts += pieces
        yield text


def _how(
    codec: Codec,
    params: DecodeParams,
    options: Parameters | Wishes,
    model: ServedModel,
    settings: ServerSettings,
) -> How:
    limit, asked = most_tokens(model, settings), options.max_new_tokens
    own = model.settings
    return How(
        codec,
        params,
        longest=model.limits.source,
        room=lambda num_source: own.max_len(num_source, limit) if asked is None else asked,
        is_bounded=asked is not None or own.is_bounded,
        in_pieces=not codec.reads_texts,
    )


def most_tokens(model: ServedModel, settings: ServerSettings) -> int:
    """The most target tokens of a sentence, whatever a request asks for."""
    return min(settings.max_new_tokens or model.limits.target, model.limits.target)


def row_params(
    options: Parameters | Wishes, model: ServedModel, settings: ServerSettings
) -> DecodeParams:
    """The engine's parameters, except the length limit and the seed of each sentence.

    Raises UserError if this server cannot do what is asked.
    """
    can_draft = model.decoder.method.drafter is not None
    require(
        model.can_sample or not options.do_sample,
        "This server cannot sample; omit do_sample and alternatives.",
    )
    require(can_draft or not options.use_drafter, "This server has no drafter; omit use_drafter.")
    limit, asked_len = most_tokens(model, settings), options.max_new_tokens or 1
    told = f"max_new_tokens {asked_len} exceeds this server's limit of {limit}."
    require(asked_len <= limit, told)
    defaults: dict[str, Any] = {"block_size": model.limits.block_size, "tau": settings.tau}
    defaults["min_len"] = model.settings.minimum
    if options.do_sample:
        # The tolerance of greedy requests does not apply to samples.
        defaults |= {"temperature": settings.temperature, "top_p": settings.top_p}
    else:
        defaults |= {"beta": settings.beta, "top_k": GREEDY_TOP_K if model.can_sample else 0}
    named = {name: getattr(options, name) for name in _ROW}
    asked = {name: value for name, value in named.items() if value is not None}
    if not can_draft or options.use_drafter is False:
        asked["block_size"] = 0
    return DecodeParams(**{**defaults, **asked})


def translate_texts(
    texts: Sequence[str], options: Parameters | Wishes, model: ServedModel, settings: ServerSettings
) -> list[Translated]:
    """Translate as the server does, in this thread.

    Raises UserError or ServiceError if a text or an option cannot be served.
    """
    plan: TextPlan[RowResult] = make_plan(texts, options, model, settings)
    while requests := plan.requests:
        plan.take(model.decoder.decode(requests))
    return [*map(Translated.of, plan.texts)]


def segment(text: str, split: Split) -> list[str]:
    """The text as gap, sentence, gap, ..., sentence, gap.

    Split at line ends, and each line with `split`. Gaps are line ends and spaces, or empty;
    sentences have no white space at either end.
    """
    parts, end = list[str](), 0
    for line in _LINE.finditer(text):
        for start, stop in _sentences(line, split):
            parts += [text[end:start], text[start:stop]]
            end = stop
    return [*parts, text[end:]]


def _sentences(line: re.Match[str], split: Split) -> Iterator[tuple[int, int]]:
    """Start and end of a line's sentences in the text.

    A splitter may change white space but no other character, so counting the other characters
    finds the sentences again.
    """
    visible = [line.start() + i for i, char in enumerate(line[0]) if not char.isspace()]
    lengths = [sum(not char.isspace() for char in part) for part in split(line[0])]
    if sum(lengths) != len(visible):
        lengths = [len(visible)]
    at = 0
    for length in lengths:
        if length:
            yield visible[at], visible[at + length - 1] + 1
        at += length
