"""Turns texts and options into requests for the engine. No asynchronous code here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from specdec_plugins.app.codec import Codec
from specdec_plugins.decoding.engine import check_request
from specdec_plugins.decoding.rules.mixed import GREEDY_TOP_K
from specdec_plugins.decoding.types import SEEDS, DecodeParams, FinishReason, Request
from specdec_plugins.errors import require
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.model import ServedModel, Split, whole_lines
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ServerSettings

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_ROW = {"block_size", "beta", "tau", "temperature", "top_k", "top_p"}  # as the engine names them


@dataclass(frozen=True)
class TextPlan:
    """Prepared texts, and a request for each of their sentences, in the same order."""

    texts: list[list[str]]  # as `segment` cuts them
    requests: list[Request]
    seed: int

    def join(self, translations: Sequence[str]) -> list[str]:
        """The texts with their sentences translated and white space unchanged."""
        left = iter(translations)
        return [
            "".join(next(left) if i % 2 else gap for i, gap in enumerate(parts))
            for parts in self.texts
        ]

    def only(self, chosen: Sequence[int]) -> TextPlan:
        """The plan of some of its texts."""
        left = iter(self.requests)
        requests = [[*islice(left, len(parts) // 2)] for parts in self.texts]
        chosen_requests = [request for i in chosen for request in requests[i]]
        return TextPlan([self.texts[i] for i in chosen], chosen_requests, self.seed)

    def decoded_with(self, params: DecodeParams, seed: int) -> TextPlan:
        """The same texts, to be decoded in another way; each sentence has a seed of its own."""
        requests = [
            # The first sentence has the request's seed.
            replace(r, params=replace(params, seed=(seed + index * 0x9E3779B97F4A7C15) % SEEDS))
            for index, r in enumerate(self.requests)
        ]
        return TextPlan(self.texts, requests, seed)


def make_plan(
    texts: Sequence[str],
    options: Parameters,
    model: ServedModel,
    settings: ServerSettings,
    take: Callable[[int], None] = lambda num: None,
    copies: int = 1,
) -> TextPlan:
    """copies: how often each sentence will be decoded at once. take: is told how many sentences
    that are, before the longer part of the work, and may raise ServiceError.

    Raises UserError or ServiceError if a text or an option cannot be served.
    """
    params = row_params(options, model, settings)
    codec = model.codec.between(options.source_lang, options.target_lang)
    split = (model.splitter if options.split_sentences else whole_lines)(codec.source_lang)
    parts = [segment(text, split) for text in texts]
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
    sentences = [sentence for part in parts for sentence in part[1::2]]
    num = len(sentences) * copies
    if num > settings.max_waiting:
        fewer = " or ask for fewer alternatives" if copies > 1 else ""
        raise ServiceError(
            413,
            f"{num} sentences exceed the queue's limit of {settings.max_waiting}; send the text in "
            f"parts{fewer}.",
        )
    take(num)
    requests = []
    for index, sentence in enumerate(sentences):
        source_ids = _source_ids(sentence, codec, model.limits.source)
        name = f"sentence {index + 1}"
        requests.append(Request(name, source_ids, params, [*codec.first_ids]))
        check_request(requests[-1], model.decoder.verifier, model.decoder.method)
    return TextPlan(parts, requests, seed).decoded_with(params, seed)


def _source_ids(sentence: str, codec: Codec, longest: int) -> list[int]:
    """Raises ServiceError if there are more than the model reads, and UserError as the codec."""
    source_ids = codec.source_ids(sentence)
    num_tokens, most = len(source_ids) - codec.num_framing, longest - codec.num_framing
    if num_tokens > most:
        start = sentence[:40] + ("..." if len(sentence) > 40 else "")
        raise ServiceError(
            413,
            f"The sentence {start!r} has {num_tokens} tokens, more than the {most} that the model "
            "reads; split it.",
        )
    return source_ids


def row_params(options: Parameters, model: ServedModel, settings: ServerSettings) -> DecodeParams:
    """The engine's parameters, except the seed of each sentence.

    Raises UserError if this server cannot do what is asked.
    """
    can_draft = model.decoder.method.drafter is not None
    require(
        model.can_sample or not options.do_sample,
        "This server cannot sample; omit do_sample and alternatives.",
    )
    require(can_draft or not options.use_drafter, "This server has no drafter; omit use_drafter.")
    limit = min(settings.max_new_tokens, model.limits.target)
    max_len = limit if options.max_new_tokens is None else options.max_new_tokens
    require(max_len <= limit, f"max_new_tokens {max_len} exceeds this server's limit of {limit}.")
    defaults: dict[str, Any] = {"block_size": model.limits.block_size, "tau": settings.tau}
    defaults["min_len"] = model.settings.minimum
    if options.do_sample:
        # The tolerance of greedy requests does not apply to samples.
        defaults |= {"temperature": settings.temperature, "top_p": settings.top_p}
    else:
        defaults |= {"beta": settings.beta, "top_k": GREEDY_TOP_K if model.can_sample else 0}
    asked = options.model_dump(include=_ROW, exclude_none=True)
    if not can_draft or options.use_drafter is False:
        asked["block_size"] = 0
    return DecodeParams(max_len=max_len, **{**defaults, **asked})


def translate_texts(
    texts: Sequence[str], options: Parameters, model: ServedModel, settings: ServerSettings
) -> list[str | None]:
    """Translate as the server does, in this thread; None if a sentence's scores are not numbers.

    Raises UserError or ServiceError if a text or an option cannot be served.
    """
    plan = make_plan(texts, options, model, settings)
    codec, results = model.codec, model.decoder.decode(plan.requests)
    joined = plan.join([codec.text(codec.tokens(result.token_ids)) for result in results])
    left = (result.finish_reason is FinishReason.ERROR for result in results)
    failed = [any([*islice(left, len(parts) // 2)]) for parts in plan.texts]
    return [None if bad else text for bad, text in zip(failed, joined, strict=True)]


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
