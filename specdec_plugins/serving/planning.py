"""From texts and options to the requests that the engine decodes. No asynchronous code here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specdec_plugins.decoding.engine import check_request
from specdec_plugins.decoding.types import SEEDS, DecodeParams, Request
from specdec_plugins.errors import require
from specdec_plugins.serving.errors import TooLarge
from specdec_plugins.serving.model import GREEDY_TOP_K, ServedModel, Split
from specdec_plugins.serving.settings import ServerSettings

T = TypeVar("T")

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Options:
    """What one request asks for; None = the server's default."""

    use_drafter: bool | None = None
    block_size: int | None = None
    beta: int | None = None
    tau: float | None = None
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_new_tokens: int | None = None
    split_sentences: bool = True


@dataclass(frozen=True)
class TextPlan:
    """Texts made ready: their sentences, and a request for each, in one order."""

    texts: list[Segments]
    requests: list[Request]
    seed: int

    def join(self, translations: Sequence[str]) -> list[str]:
        """The texts with their sentences translated, white space as it was."""
        left = iter(translations)
        return [text.join([next(left) for _ in text.sentences]) for text in self.texts]


def make_plan(
    texts: Sequence[str], options: Options, model: ServedModel, settings: ServerSettings
) -> TextPlan:
    """Raises UserError or TooLarge where a text or an option cannot be served."""
    check_options(options, model, settings)
    split = model.split if options.split_sentences else whole
    parts = [segment(text, split) for text in texts]
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
    sentences = [sentence for part in parts for sentence in part.sentences]
    if len(sentences) > settings.max_waiting:
        raise TooLarge(
            f"{len(sentences)} sentences are more than the {settings.max_waiting} that "
            "may wait; send the text in parts."
        )
    requests = []
    for index, sentence in enumerate(sentences):
        params = row_params(options, sentence_seed(seed, index), model, settings)
        request = Request(
            f"sentence {index + 1}", checked_source_ids(sentence, model), params=params
        )
        check_request(request, model.verifier, model.method)
        requests.append(request)
    return TextPlan(parts, requests, seed)


def checked_source_ids(sentence: str, model: ServedModel) -> list[int]:
    """Source token ids. Raises TooLarge where the model has no positions for them."""
    source_ids = model.codec.source_ids(sentence)
    if len(source_ids) > model.max_source:
        start = sentence[:40] + ("..." if len(sentence) > 40 else "")
        raise TooLarge(
            f"The sentence {start!r} has {len(source_ids) - 1} tokens, more than the "
            f"{model.max_source - 1} that the model reads; split it."
        )
    return source_ids


def check_options(options: Options, model: ServedModel, settings: ServerSettings) -> None:
    """Raises UserError where this server cannot do what is asked."""
    require(
        model.can_sample or not options.sample,
        "This server cannot sample; omit do_sample and alternatives.",
    )
    require(
        model.method.drafter is not None or not options.use_drafter,
        "This server has no drafter; omit use_drafter.",
    )
    limit = min(settings.max_new_tokens, model.max_target)
    require(
        options.max_new_tokens is None or options.max_new_tokens <= limit,
        f"max_new_tokens {options.max_new_tokens} is more than the {limit} of this server.",
    )


def row_params(
    options: Options, seed: int, model: ServedModel, settings: ServerSettings
) -> DecodeParams:
    """What the engine is asked for. Raises UserError where a value is impossible."""
    drafts = model.method.drafter is not None and options.use_drafter is not False
    limit = min(settings.max_new_tokens, model.max_target)
    sampling = options.sample
    greedy_top_k = GREEDY_TOP_K if model.can_sample else 0
    return DecodeParams(
        block_size=_or(options.block_size, model.block_size) if drafts else 0,
        max_len=_or(options.max_new_tokens, limit),
        # A sample owes nothing to the tolerance of greedy requests.
        beta=_or(options.beta, 1 if sampling else settings.beta),
        tau=_or(options.tau, settings.tau),
        temperature=_or(options.temperature, settings.temperature) if sampling else 1.0,
        top_k=_or(options.top_k, 0) if sampling else greedy_top_k,
        top_p=_or(options.top_p, settings.top_p) if sampling else 1.0,
        seed=seed,
    )


def sentence_seed(seed: int, index: int) -> int:
    """A seed of its own for each sentence; the first has the request's."""
    return (seed + index * 0x9E3779B97F4A7C15) % SEEDS


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


@dataclass(frozen=True)
class Segments:
    """`gaps[0] sentences[0] gaps[1] ... gaps[n]` is the text, to the character."""

    sentences: list[str]  # without white space at either end, never empty
    gaps: list[str]  # one more than there are sentences; white space only

    def join(self, translations: Sequence[str]) -> str:
        """The text with its sentences replaced."""
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        return "".join(parts)


def whole(line: str) -> list[str]:
    """Does not split: every line is one sentence."""
    return [line]


def segment(text: str, split: Split) -> Segments:
    """Split at line ends, and each line with `split`; line ends and spaces become gaps."""
    spans = [span for line in _LINE.finditer(text) for span in _sentences(line, split)]
    sentences, gaps, end = [], [], 0
    for start, stop in spans:
        gaps.append(text[end:start])
        sentences.append(text[start:stop])
        end = stop
    return Segments(sentences, [*gaps, text[end:]])


def _sentences(line: re.Match[str], split: Split) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line stand in the text.

    A splitter may change white space but no other character, so the sentences are found again
    by counting the others.
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
