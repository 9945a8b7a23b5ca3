"""From texts to requests and back, for files, Python and the server.

A sentence is decoded whole. One that is too long to read, or whose translation reaches its limit,
is decoded in pieces. One that cannot be read is copied. The results say what is cut or copied.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from specdec_plugins.app.codec import Codec
from specdec_plugins.decoding.types import SEEDS, DecodeParams, FinishReason, Request
from specdec_plugins.errors import UnreadableError, require
from specdec_plugins.formats.text import fault_of

# Where a sentence is cut, the best places first: after a sentence's end, after a clause, or at any
# white space; and how far from its middle, as a share of its length.
_CUTS = (
    (re.compile(r"(?<=[.!?…।؟])\s+|(?<=[。！？])\s*"), 0.25),
    (re.compile(r"(?<=[,;:–—،؛])\s+|(?<=[，、；：])\s*"), 0.25),
    (re.compile(r"\s+|(?<=[。！？，、；：])"), 0.5),
)
# Most target tokens of a piece, by its source tokens. Whatever needs more repeats itself.
_GROWTH, _SLACK = 3, 20
_NEXT_SEED = 0x9E3779B97F4A7C15


class Result(Protocol):
    """What the engine, or the server's worker, made of a request."""

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class How:
    """How sentences become requests."""

    codec: Codec  # between their languages
    params: DecodeParams  # of all, except the length limit and the seed
    longest: int  # most source tokens, the frame included
    room: Callable[[int], int]  # most target tokens for a source of so many, its frame included
    is_bounded: bool = False  # the limit was asked for: a translation that reaches it stays cut
    in_pieces: bool = True  # a sentence may be divided
    copies: bool = True  # copy what cannot be read; False = refuse it
    truncates: bool = False  # read the beginning of what is too long

    def parts(
        self,
        text: str,
        name: str,
        seed: int,
        prefix_ids: Sequence[int] = (),
        tokens: Sequence[str] | None = None,
    ) -> list[Part[R]]:
        """A sentence as one part or, if it is too long, as its pieces.

        name: of its request. tokens: the sentence in the model's tokens, read in place of the text.
        Raises UserError if it is no text, a language must be chosen or the prefix is too long, and
        UnreadableError if it cannot be read and is not to be copied.
        """
        codec, no_text = self.codec, fault_of(text)
        require(not no_text, f"{no_text}; decode it as UTF-8 or UTF-16.")
        try:
            ids = codec.source_ids(text) if tokens is None else codec.source_token_ids(tokens)
        except UnreadableError as error:
            if not self.copies:
                raise
            return [Part(text, self, fault=str(error))]
        if len(ids) <= codec.num_framing:
            return [Part("", self)]
        how = self
        if self.truncates and len(ids) > self.longest:
            end, how = len(ids) - codec.num_behind, replace(self, in_pieces=False)
            ids = [*ids[: self.longest - codec.num_behind], *ids[end:]]
        forced, max_len = [*codec.first_ids, *prefix_ids], self.room(len(ids))
        require(
            len(forced) < max_len,
            f"its target prefix has {len(forced)} tokens, but at most {max_len - 1} leave room for "
            "more; shorten it, or raise --max-len-b.",
        )
        params = replace(self.params, max_len=max_len, seed=seed % SEEDS)
        request = Request(name, ids, params, forced)
        return Part[R](text, how, request).settled()


@dataclass(eq=False)
class Part(Generic[R]):
    """A sentence, or a piece of one, and what became of it."""

    text: str
    how: How
    request: Request | None = None  # None = nothing to decode: the text is copied
    fault: str = ""  # why it cannot be read
    gap: str = ""  # the white space before it
    continues: bool = False  # the sentence of the part before it
    result: R | None = None
    said: str | None = None  # the translation, if the result was turned into text already

    @property
    def is_cut(self) -> bool:
        """True if the translation reached its limit."""
        return self.result is not None and self.result.finish_reason is FinishReason.LENGTH

    @property
    def translation(self) -> str:
        """The text in the target language; empty until it is decoded."""
        if self.request is None:
            return self.text
        if self.result is None or self.said is not None:
            return self.said or ""
        codec = self.how.codec
        return codec.text(codec.tokens(self.result.token_ids))

    def settled(self) -> list[Part[R]]:
        """The part or, if it does not fit as it is, its pieces.

        Raises UnreadableError if it can be neither read nor divided, and is not to be copied.
        """
        how, request = self.how, self.request
        is_too_long = request is not None and len(request.source_ids) > how.longest
        divides = how.in_pieces and (is_too_long or (self.is_cut and not how.is_bounded))
        found = halves(self.text, how.codec) if divides else None
        if found is not None:
            left, gap, right = found
            return [*self._half(0, left, self.gap), *self._half(1, right, gap)]
        return [self._too_long() if is_too_long else self]

    def _too_long(self) -> Part[R]:
        assert self.request is not None
        framing, num_tokens = self.how.codec.num_framing, len(self.request.source_ids)
        fault = (
            f"has {num_tokens - framing} tokens, more than the {self.how.longest - framing} that "
            "the model has positions for; split it."
        )
        if not self.how.copies:
            raise UnreadableError(fault)
        return replace(self, request=None, fault=fault)

    def _half(self, number: int, text: str, gap: str) -> list[Part[R]]:
        """The first (0) or second (1) half. Only the first begins as the whole was to begin."""
        whole, how = self.request, self.how
        assert whole is not None
        forced = whole.forced_ids[len(how.codec.first_ids) :] if number == 0 else []
        least = max(whole.params.min_len + _SLACK, len(whole.forced_ids) + 1)
        short = replace(how, room=lambda n: min(how.room(n), _GROWTH * n + least))
        name, seed = f"{whole.id}.{number + 1}", whole.params.seed + number * _NEXT_SEED
        parts: list[Part[R]] = short.parts(text, name, seed, forced)
        parts[0] = replace(parts[0], gap=gap, continues=self.continues or number > 0)
        return parts


def halves(text: str, codec: Codec) -> tuple[str, str, str] | None:
    """The text in two, and the white space between; None if there is no place to cut it."""
    middle = len(text) / 2
    for pattern, reach in _CUTS:
        places = (place.span() for place in pattern.finditer(text))
        near = [place for place in places if abs(place[1] - middle) <= reach * len(text)]
        for begin, end in sorted(near, key=lambda place: abs(place[1] - middle)):
            if begin > 0 and end < len(text) and codec.separates(text, begin, end):
                return text[:begin], text[begin:end], text[end:]
    return None


@dataclass
class Text(Generic[R]):
    """A text as its sentences."""

    parts: list[Part[R]]
    end: str = ""  # the white space after them

    @property
    def translation(self) -> str:
        return joined(self.parts) + self.end

    @property
    def is_cut(self) -> bool:
        """True if the translation of a part reached its limit."""
        return any(part.is_cut for part in self.parts)

    @property
    def has_failed(self) -> bool:
        """True if the scores of a part are not numbers."""
        return any(result.finish_reason is FinishReason.ERROR for result in self.results)

    @property
    def fault(self) -> str:
        """Why a part cannot be read; empty if all can."""
        return next((part.fault for part in self.parts if part.fault), "")

    @property
    def results(self) -> list[R]:
        """Those of the parts that are decoded."""
        return [part.result for part in self.parts if part.result is not None]


def joined(parts: Sequence[Part[R]]) -> str:
    """The translations of parts, with the white space between them.

    Pieces of a sentence are a space apart, except after Chinese characters and the like.
    """
    text = ""
    for part in parts:
        gap = part.gap
        if part.continues:
            is_wide = unicodedata.east_asian_width(text[-1:] or " ") in "WF"
            gap = "" if is_wide else gap or " "
        text += gap + part.translation
    return text


@dataclass(frozen=True)
class Translated:
    """A text's translation, and what it lacks."""

    text: str  # empty if it has failed
    is_cut: bool = False  # at its length limit
    fault: str = ""  # why a part of it was copied
    has_failed: bool = False  # as scores are not numbers

    @staticmethod
    def of(text: Text[R]) -> Translated:
        has_failed = text.has_failed
        words = "" if has_failed else text.translation
        return Translated(words, text.is_cut, text.fault, has_failed)


class Plan(Generic[R]):
    """Texts, and what is left to decode of them."""

    def __init__(self, texts: Iterable[Text[R]]) -> None:
        self.texts = list(texts)

    @property
    def waiting(self) -> list[Part[R]]:
        """The parts that are to be decoded."""
        parts = (part for text in self.texts for part in text.parts)
        return [part for part in parts if part.request is not None and part.result is None]

    @property
    def requests(self) -> list[Request]:
        """Those of the waiting parts."""
        return [part.request for part in self.waiting if part.request is not None]

    def take(self, results: Iterable[R]) -> None:
        """Results of the waiting parts, in order; raises as `settle`."""
        for part, result in zip(self.waiting, results, strict=True):
            part.result = result
        self.settle()

    def settle(self) -> None:
        """Divide the parts that are cut; afterwards their pieces wait.

        Raises UnreadableError if a piece cannot be read and is not to be copied.
        """
        for text in self.texts:
            text.parts = [new for part in text.parts for new in part.settled()]
