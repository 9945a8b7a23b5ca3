"""From texts to requests and back, for files, Python and the server.

A text is split into sentences, and a sentence is decoded whole, with a symbol in place of each span
that must be kept, and once more without markup, which its words do without. One that is too long to
read, or whose translation reaches its limit, is decoded in pieces, and so is one whose translation
does not keep its spans. What cannot be read is copied. The results say what is cut or copied.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from specdec_plugins.app.codec import Codec, spelt
from specdec_plugins.app.glossary import Glossary
from specdec_plugins.app.types import Ended, Score
from specdec_plugins.decoding.extend import loop_end
from specdec_plugins.decoding.requests import SEEDS, DecodeParams, FinishReason, Hypothesis, Request
from specdec_plugins.errors import UnreadableError, require
from specdec_plugins.formats.text import PROTECTED, fault_of
from specdec_plugins.text.markup import Markup, markup_of
from specdec_plugins.text.sentences import Split, halves, in_small_letters, segment
from specdec_plugins.text.spans import Masked, around, masked, measures_of, spans_of, united

# Most target tokens of a piece, by its source tokens. Whatever needs more repeats itself.
_GROWTH, _SLACK = 3, 20
NEXT_SEED = 0x9E3779B97F4A7C15  # from a sentence to the next
CUT = (FinishReason.LENGTH, FinishReason.REPETITION)  # the end is missing
_GRAVEST = (FinishReason.ERROR, *CUT)  # of the reasons of a text's sentences
_NO_REPEAT = 4  # size of n-grams that do not repeat when a loop is decoded again
_LOUD = 5  # letters of a sentence in capitals, and more than most abbreviations have
_SHOWN = 20  # characters of what cannot be read


class Result(Protocol):
    """What the engine, or the server's worker, made of a request."""

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def token_scores(self) -> list[float]: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...

    @property
    def hypotheses(self) -> list[Hypothesis]: ...  # of a beam search


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class How:
    """How sentences become requests."""

    codec: Codec  # between their languages
    params: DecodeParams  # of all, except the length limit and the seed
    longest: int  # most source tokens, the frame included
    room: Callable[[int], int]  # most target tokens for a source of so many, its frame included
    is_bounded: bool = False  # the limit was asked for: a translation that reaches it stays cut
    split: Split | None = None  # a line into sentences; None = a text is one sentence
    in_pieces: bool = True  # a sentence may be divided
    protects: bool = False  # spans that a translation must keep
    keeps_numbers: bool = False  # that have units, as such spans
    mends: bool = False  # what has `<unk>`, or repeats itself, is decoded once more
    copies: bool = True  # copy what cannot be read; False = refuse it
    truncates: bool = False  # read the beginning of what is too long
    glossary: Glossary | None = None  # terms whose translations must be there

    def sentences(self, text: str) -> list[str]:
        """Sentences with the white space around them, as from `segment`.

        Raises UserError if it is no text.
        """
        no_text = fault_of(text)
        require(not no_text, f"{no_text}; decode it as UTF-8 or UTF-16.")
        if self.split is not None:
            return segment(text, self.split)
        return ["", text, ""] if text.strip() else [text]

    def opened(
        self,
        sentences: Sequence[str],
        names: Iterator[str],
        seed: int = 0,
        prefix_ids: Sequence[int] = (),
        tokens: Sequence[str] | None = None,
    ) -> Text[R]:
        """A text to decode, as `sentences` gives it; the other arguments are those of `parts`.

        names: of the requests of its sentences.
        """
        *rest, end = sentences
        text = Text[R]([], end)
        for number, (gap, sentence) in enumerate(zip(rest[::2], rest[1::2], strict=True)):
            own = seed + number * NEXT_SEED
            parts: list[Part[R]] = self.parts(sentence, next(names), own, prefix_ids, tokens)
            parts[0].gap = gap
            text.parts += parts
        return text

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
        Raises UserError if a language must be chosen or the prefix is too long, and
        UnreadableError if it cannot be read and is not to be copied.
        """
        codec, how = self.codec, self
        if tokens is not None or prefix_ids:
            how = replace(self, protects=False, mends=False)
        try:
            read = how._read(text) if tokens is None else Reading(codec.source_token_ids(tokens))
        except UnreadableError as error:
            if not self.copies:
                raise
            return [Part(text, self, fault=str(error))]
        ids = read.ids
        if len(ids) <= codec.num_framing:
            return [Part(text if read.spans else "", self)]
        if self.truncates and len(ids) > self.longest:
            end, how = len(ids) - codec.num_behind, replace(how, in_pieces=False)
            ids = [*ids[: self.longest - codec.num_behind], *ids[end:]]
        forced, max_len = [*codec.first_ids, *prefix_ids], self.room(len(ids))
        told = f"its target prefix has {len(forced)} tokens, but at most {max_len - 1} leave room "
        require(len(forced) < max_len, told + "for more; shorten it, or raise --max-len-b.")
        ends_loops = how.mends and loop_end(ids) is None
        own = replace(self.params, max_len=max_len, seed=seed % SEEDS, ends_loops=ends_loops)
        required = how._required(text if read.mask is None else read.mask.text)
        request = Request(name, ids, own, forced, required, codec.joining if required else ())
        return Part[R](text, how, request, read=read).settled()

    def _required(self, text: str) -> list[list[int]]:
        """What the glossary demands for a sentence, as it is read."""
        targets = [] if self.glossary is None else self.glossary.targets(text)
        return [self.codec.target_ids(target) for target in targets]

    def _read(self, text: str) -> Reading:
        """How the model reads a sentence. Raises UnreadableError if it cannot."""
        codec = self.codec
        if not self.protects:
            return Reading(codec.source_ids(text))
        numbers = measures_of(text) if self.keeps_numbers else []
        spans, fault = united(spans_of(text), numbers), ""
        try:
            read = self._masked(text, spans)
        except UnreadableError as error:
            read, fault = Reading([codec.unk]), str(error)
        if codec.unread.isdisjoint(read.ids):
            return read
        has_letters, lacking = codec.unk in read.ids, codec.unknown(text)
        if (terms := self.glossary) is not None:  # which says what becomes of them
            lacking = [place for place in lacking if not terms.targets(text[slice(*place)])]
        read = self._masked(text, united(spans, lacking))
        has_letters &= any(one.isalpha() for place in lacking for one in text[slice(*place)])
        # Names in letters that it knows, and signs, need no translation.
        if has_letters and len(read.ids) <= codec.num_framing:
            shown = text[slice(*lacking[0])][:_SHOWN]
            raise UnreadableError(fault or f"the model has no letters for {shown!r} and the like.")
        return read

    def _masked(self, text: str, spans: Sequence[tuple[int, int]]) -> Reading:
        """The reading of a sentence that must keep these spans."""
        mask, read = None, text
        if spans:
            mask = masked(text, spans, self.codec.symbols(text))
            has_words = any(is_text for _, _, is_text in around(text, spans))
            read = mask.text if has_words else ""
        num_letters = sum(map(str.isalpha, read))
        is_loud = self.codec.lowers_capitals and read.isupper() and num_letters >= _LOUD
        if is_loud:
            read = in_small_letters(read, self.codec.source_lang)
        read = spelt(read)
        markup = None if mask is None else markup_of(mask)
        return Reading(self.codec.source_ids(read), mask, spans, is_loud, markup)


@dataclass(frozen=True)
class Reading:
    """What a model reads of a sentence."""

    ids: list[int]  # framed
    mask: Masked | None = None  # None = the sentence as it is
    spans: Sequence[tuple[int, int]] = ()  # begin and end of those that are kept
    is_loud: bool = False  # it is in capitals, and was read as if it were not
    markup: Markup | None = None  # without which it is to be read, too


@dataclass(eq=False)
class Part(Generic[R]):
    """A sentence, or a piece of one, and what became of it."""

    text: str
    how: How
    request: Request | None = None  # None = nothing to decode: the text is copied
    fault: str = ""  # why it cannot be read
    read: Reading = Reading([])
    gap: str = ""  # the white space before it
    continues: bool = False  # the sentence of the part before it
    result: R | None = None
    said: str | None = None  # the translation, if the result was turned into text already
    marking: Marking[R] | None = None  # if it is read without markup

    @property
    def is_cut(self) -> bool:
        """True if the translation reached its limit, or repeated itself."""
        return self.result is not None and self.result.finish_reason in CUT

    @property
    def score(self) -> Score | None:
        """How probable the translation is; None if nobody asked, or nothing was decoded."""
        if self.result is None or not self.result.token_scores:
            return None
        scores, codec = self.result.token_scores, self.how.codec
        tokens = map(codec.symbol, self.result.token_ids[-len(scores) :])
        return Score([*zip(tokens, scores, strict=True)])

    @property
    def translation(self) -> str:
        """The text in the target language; empty until it is decoded."""
        if self.request is None:
            return self.text
        if self.result is None or self.said is not None:
            return self.said or ""
        return self.text_of(self.result.token_ids)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of target tokens, which may be those of another hypothesis."""
        if self.marking is None:
            return self.filled(self._text(ids))
        words, (markup, marked) = self._kept(ids), self.marking.known
        said = None if words is None else markup.merged(marked, words, "")
        return said or self.said or ""

    def unfilled(self, tokens: Sequence[str]) -> str:
        """The text of target tokens, with symbols in place of spans."""
        mask = self.read.mask
        text = self.how.codec.text(tokens, self.text if mask is None else mask.text)
        return text.upper() if self.read.is_loud else text

    def filled(self, text: str) -> str:
        """The text of target tokens, with those spans that it keeps."""
        mask = self.read.mask
        return text if mask is None else mask.head + mask.filled(text)[0] + mask.tail

    def _text(self, ids: Sequence[int]) -> str:
        return self.unfilled(self.how.codec.tokens(ids))

    def _kept(self, ids: Sequence[int]) -> str | None:
        """The text of target tokens with all spans; None if it does not keep them."""
        text, mask = self._text(ids), self.read.mask
        return text if mask is None else mask.restored(text)

    def _loses_spans(self) -> bool:
        mask, result = self.read.mask, self.result
        if mask is None or result is None or self.said is not None:
            return False
        if result.finish_reason is not FinishReason.EOS:
            return False
        self.said = self._kept(result.token_ids)
        return self.said is None

    def settled(self) -> list[Part[R]]:
        """The part or, if it does not fit as it is or loses spans, its pieces.

        Raises UnreadableError if it can be neither read nor divided, and is not to be copied.
        """
        how, request, spans = self.how, self.request, self.read.spans
        if request is None:
            return [self]
        if how.mends and (again := self._again()) is not None:
            return [again]
        if self.marking is not None:
            return self._with_markup(self.marking)
        is_too_long = len(request.source_ids) > how.longest
        halve = is_too_long or len(spans) > len(PROTECTED) or (self.is_cut and not how.is_bounded)
        if how.in_pieces and halve:
            found = halves(self.text, how.codec.separates, spans)
            if found is not None:
                left, gap, right = found
                return [*self._half(0, left, self.gap), *self._half(1, right, gap)]
        is_lost = how.in_pieces and spans and (halve or self._loses_spans())
        if how.in_pieces and not halve and (plain := self._without_markup()) is not None:
            return [plain]
        if is_lost:
            return self._around_spans()
        return [self._too_long() if is_too_long else self]

    def _again(self) -> Part[R] | None:
        """The part to be decoded once more, if it has `<unk>`, or says one thing again and again.

        With `<unk>` banned that is the greedy translation of a model that has no `<unk>`.
        """
        result, request = self.result, self.request
        if result is None or request is None or result.finish_reason is FinishReason.ERROR:
            return None
        ids, asked, unk = result.token_ids, request.params, self.how.codec.unk
        if unk in ids and unk not in asked.banned:
            asked = replace(asked, banned=(*asked.banned, unk))
        is_loop = loop_end(ids) is not None and loop_end(request.source_ids) is None
        if is_loop and not asked.no_repeat_ngram_size:
            asked = replace(asked, no_repeat_ngram_size=_NO_REPEAT)
        if asked == request.params:
            return None
        request = replace(request, id=f"{request.id}~", params=asked)
        return replace(self, request=request, result=None, said=None)

    def _without_markup(self) -> Part[R] | None:
        """The sentence without its markup, to be decoded; None if it has none."""
        markup, result = self.read.markup, self.result
        if markup is None or result is None or result.finish_reason is not FinishReason.EOS:
            return None
        return self._reading(markup.plain, Marking(markup, self))

    def _reading(self, text: str, marking: Marking[R]) -> Part[R] | None:
        """The sentence as another text, to be decoded; None if it cannot be read whole."""
        assert self.request is not None
        how, request = replace(self.how, copies=True), self.request
        parts: list[Part[R]] = how.parts(text, f"{request.id}^", request.params.seed)
        if len(parts) > 1 or parts[0].request is None:
            return None
        return replace(parts[0], gap=self.gap, continues=self.continues, marking=marking)

    def _with_markup(self, marking: Marking[R]) -> list[Part[R]]:
        """The part, or what is to be decoded in its place to know where its markup belongs."""
        result, plain, (markup, marked) = self.result, marking.plain, marking.known
        if result is None or self.said is not None:
            return [self]
        is_whole, said = result.finish_reason is FinishReason.EOS, None
        words = self._kept(result.token_ids) if is_whole else None
        if plain is not None:
            said = markup.merged(marked, plain.said or "", words or "")
        elif words is not None:
            plain, said = replace(self, said=words), markup.merged(marked, words)
            if said is None and markup.quoted is not None:
                again = self._reading(markup.quoted, replace(marking, plain=plain))
                if again is not None:
                    return [again]
                said = markup.merged(marked, words, "")
        if plain is not None and said is not None:
            return [replace(plain, said=said)]
        first = marking.first
        return replace(first, read=replace(first.read, markup=None)).settled()

    def _around_spans(self) -> list[Part[R]]:
        """The spans, which are copied, and what is between them, which is decoded."""
        assert self.request is not None
        how, parts, whole = replace(self.how, protects=False), list[Part[R]](), self.request
        for gap, piece, is_text in around(self.text, self.read.spans):
            name, seed = f"{whole.id}.{len(parts)}", whole.params.seed + len(parts) * NEXT_SEED
            new: list[Part[R]] = how.parts(piece, name, seed) if is_text else [Part(piece, how)]
            new[0].gap = gap
            parts += new
        parts[0].gap, parts[0].continues = self.gap + parts[0].gap, self.continues
        return parts

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
        name, seed = f"{whole.id}.{number + 1}", whole.params.seed + number * NEXT_SEED
        parts: list[Part[R]] = short.parts(text, name, seed, forced)
        parts[0] = replace(parts[0], gap=gap, continues=self.continues or number > 0)
        return parts


@dataclass(frozen=True, eq=False)
class Marking(Generic[R]):
    """What is known of a sentence that has markup, while it is read in other ways."""

    markup: Markup
    first: Part[R]  # with symbols in place of markup, decoded
    plain: Part[R] | None = None  # without markup, decoded; None = that is what is being decoded

    @property
    def known(self) -> tuple[Markup, str]:
        """The markup, and the translation with symbols."""
        assert self.first.result is not None
        return self.markup, self.first._text(self.first.result.token_ids)


@dataclass
class Text(Generic[R]):
    """A text as its sentences."""

    parts: list[Part[R]]
    end: str = ""  # the white space after them

    @property
    def translation(self) -> str:
        return joined(self.parts) + self.end

    @property
    def fault(self) -> str:
        """Why a part cannot be read; empty if all can."""
        return next((part.fault for part in self.parts if part.fault), "")

    @property
    def waiting(self) -> list[Part[R]]:
        return [part for part in self.parts if part.request is not None and part.result is None]

    @property
    def results(self) -> list[R]:
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
class Translated(Ended):
    """A text's translation, and what it lacks."""

    text: str  # empty if it has failed
    finish_reason: str
    fault: str = ""  # why a part of it was copied
    scores: Sequence[Score] = ()  # of its sentences, if asked for

    @staticmethod
    def of(text: Text[R]) -> Translated:
        reasons = {result.finish_reason for result in text.results}
        reason = next((one for one in _GRAVEST if one in reasons), FinishReason.EOS)
        words = "" if reason is FinishReason.ERROR else text.translation
        scores = [part.score for part in text.parts]
        return Translated(words, reason.value, text.fault, [one for one in scores if one])


class Plan(Generic[R]):
    """Texts, and what is left to decode of them."""

    def __init__(self, texts: Iterable[Text[R]]) -> None:
        self.texts = list(texts)

    @property
    def waiting(self) -> list[Part[R]]:
        return [part for text in self.texts for part in text.waiting]

    @property
    def requests(self) -> list[Request]:
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
