"""Turns texts and options into requests for the engine. No asynchronous code here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from specdec_plugins.app.glossary import Glossary
from specdec_plugins.app.planning import How, Part, Plan, Text
from specdec_plugins.decoding.engine import check_request
from specdec_plugins.decoding.requests import SEEDS, DecodeParams
from specdec_plugins.decoding.rules.mixed import GREEDY_TOP_K
from specdec_plugins.errors import located, require
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchRow
from specdec_plugins.text.sentences import whole_lines

# As the engine names them.
_ROW = {"block_size", "beta", "tau", "temperature", "top_k", "top_p"}
_ROW |= {"no_repeat_ngram_size", "repetition_penalty"}


class TextPlan(Plan[BatchRow]):
    """Prepared texts."""

    def __init__(self, texts: Iterable[Text[BatchRow]], seed: int, size: int) -> None:
        """size: their characters."""
        super().__init__(texts)
        self.seed = seed
        self.size = size

    def decoded_with(self, params: DecodeParams) -> TextPlan:
        """The same texts, to be decoded in another way, before they were."""

        def again(part: Part[BatchRow]) -> Part[BatchRow]:
            request, how = part.request, replace(part.how, params=params)
            if request is not None:
                before = request.params
                own = replace(params, max_len=before.max_len, ends_loops=before.ends_loops)
                request = replace(request, params=own)
            return replace(part, how=how, request=request)

        texts = (Text([*map(again, text.parts)], text.end) for text in self.texts)
        return TextPlan(texts, self.seed, self.size)


def make_plan(
    texts: Sequence[str],
    options: Parameters,
    model: ServedModel,
    settings: ServerSettings,
    take: Callable[[int], None],
    copies: int,
) -> TextPlan:
    """copies: how often each sentence will be decoded at once. take: is told how many sentences
    that are, before the longer part of the work, and may raise ServiceError.

    Raises UserError or ServiceError if a text or an option cannot be served.
    """
    how = _how(options, model, settings)
    sentences = list(_sentences(how, texts))
    seed = options.seed or 0
    if options.do_sample and options.seed is None:
        seed = secrets.randbelow(SEEDS)
    num = sum(len(one) // 2 for one in sentences) * copies
    if num > settings.max_waiting:
        fewer = " or ask for no alternatives" if copies > 1 else ""
        raise ServiceError(
            413,
            f"{num} sentences exceed the queue's limit of {settings.max_waiting}; send the text in "
            f"parts{fewer}.",
        )
    take(num)
    names = (f"sentence {number}" for number in count(1))
    # Where several texts are allowed, none is a sample.
    prepared: list[Text[BatchRow]] = [how.opened(one, names, seed) for one in sentences]
    plan = TextPlan(prepared, seed, sum(map(len, texts)))
    for request in plan.requests:
        check_request(request, model.decoder.verifier, model.decoder.method)
    return plan


def _sentences(how: How, texts: Sequence[str]) -> Iterator[list[str]]:
    for number, text in enumerate(texts, 1):
        with located(f"text {number}"):
            found = how.sentences(text)
        yield found


def _how(options: Parameters, model: ServedModel, settings: ServerSettings) -> How:
    """Raises UserError as `row_params`, or if the model lacks a language."""
    limit, asked, own = most_tokens(model, settings), options.max_new_tokens, model.settings
    codec = model.codec.between(options.source_lang, options.target_lang)
    return How(
        codec,
        row_params(options, model, settings),
        longest=model.limits.source,
        room=lambda num_source: own.max_len(num_source, limit) if asked is None else asked,
        is_bounded=asked is not None or own.is_bounded,
        split=codec.splitter if options.split_sentences else whole_lines,
        in_pieces=not codec.reads_texts,
        protects=options.protect and codec.reads_raw,
        glossary=Glossary.of(options.glossary, codec) if options.glossary else None,
        keeps_numbers=options.protect_numbers,
        mends=options.protect and codec.reads_raw,
    )


def most_tokens(model: ServedModel, settings: ServerSettings) -> int:
    """The most target tokens of a sentence, whatever a request asks for."""
    return min(settings.max_new_tokens or model.limits.target, model.limits.target)


def row_params(options: Parameters, model: ServedModel, settings: ServerSettings) -> DecodeParams:
    """The engine's parameters, except the length limit and the seed of each sentence.

    Raises UserError if this server cannot do what is asked.
    """
    can_draft = model.decoder.method.drafter is not None
    require(can_draft or not options.use_drafter, "This server has no drafter; omit use_drafter.")
    limit, asked_len = most_tokens(model, settings), options.max_new_tokens or 1
    told = f"max_new_tokens {asked_len} exceeds this server's limit of {limit}."
    require(asked_len <= limit, told)
    defaults: dict[str, Any] = {"block_size": model.limits.block_size, "tau": settings.tau}
    defaults |= {"min_len": model.settings.minimum, "with_scores": options.details}
    if options.do_sample:
        # The tolerance of greedy requests does not apply to samples.
        defaults |= {"temperature": settings.temperature, "top_p": settings.top_p}
    else:
        defaults |= {"beta": settings.beta, "top_k": GREEDY_TOP_K}
    named = {name: getattr(options, name) for name in _ROW}
    asked = {name: value for name, value in named.items() if value is not None}
    if not can_draft or options.use_drafter is False:
        asked["block_size"] = 0
    if options.size > 1:
        beam = model.settings.search_params(options.size, options.n_best or 1)
        least = max(model.settings.minimum, int(beam.finishing == "fairseq"))  # never empty there
        asked |= {"block_size": 0, "beta": 1, "tau": 0.0, "top_k": 0}
        asked |= {"beam": beam, "min_len": least}
    return DecodeParams(**{**defaults, **asked})
