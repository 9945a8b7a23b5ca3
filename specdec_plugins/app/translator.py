"""The translator behind the command line and the Python interface."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, count
from threading import Lock
from typing import Any, TypedDict, Unpack, cast, overload

import torch

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.glossary import Glossary
from specdec_plugins.app.loading import build_decoder, load_parts
from specdec_plugins.app.planning import How, Part, Plan, R, Text, Translated, joined
from specdec_plugins.app.settings import BY_SENTENCE, Settings
from specdec_plugins.app.types import (
    EMPTY,
    FORCED,
    UNREADABLE,
    Decoder,
    Limits,
    RankedText,
    Score,
    Sentence,
    Translation,
)
from specdec_plugins.corpus.cli import arguments, parameters
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import (
    BeamParams,
    DecodeParams,
    FinishReason,
    Hypothesis,
    Request,
    RowResult,
)
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import UserError, located, renaming, require
from specdec_plugins.text.sentences import whole_lines

Terms = Mapping[str, str] | str | os.PathLike[str]  # of a glossary, or the name of its file
_PARAMETERS = parameters(Settings)  # what messages call flags here


class _Asked(TypedDict, total=False):
    """What a call of `translate` may ask for."""

    source_lang: str | None
    target_lang: str | None
    beam: int | None
    n_best: int | None
    glossary: Terms | None


class SpeculativeTranslator:
    """Translates sentences with the strategy that it was loaded with."""

    def __init__(
        self,
        settings: Settings,
        codec: Codec,
        decoder: Decoder,
        limits: Limits,
        glossary: Glossary | None = None,
        with_scores: bool = False,
    ) -> None:
        """with_scores: see `from_pretrained`."""
        self.settings, self._with_scores = settings, with_scores
        self.codec = codec
        self.decoder = decoder
        self.limits = limits
        self.glossary = glossary
        self._lock = Lock()
        self._searcher: SpeculativeDecoder | None = None  # for calls that ask for a beam

    @classmethod
    def from_pretrained(
        cls, data: str | None = None, *, scores: bool = True, **settings: Any
    ) -> SpeculativeTranslator:
        """Load a translator from a bundle (default: the bundled pair) or a folder.

        The folder holds dictionaries, or is one of a model from transformers.

        scores: give translations and their tokens log-probabilities, which costs a little time.
        Any field of `Settings`, given by name, overrides the bundle. Raises UserError if a file is
        missing or a setting is invalid. Examples: `from_pretrained(batch=8)`,
        `from_pretrained("data", verifier="v.pt", drafter_checkpoint="d.pt")`.
        """
        with renaming(_PARAMETERS):
            given = {**BY_SENTENCE, **arguments(Settings, {"data": data, **settings})}
            return load_translator(make_settings(given), with_scores=scores)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its settings: whoever unpickles it loads the same files."""
        return load_translator, (self.settings, self._with_scores)

    @property
    def stats(self) -> DecodeStats:
        """Counts of everything decoded so far, with their rates as properties."""
        searcher = self._searcher
        return self.decoder.stats if searcher is None else self.decoder.stats + searcher.stats

    @overload  # a string is an iterable of strings
    def translate(self, lines: str, **asked: Unpack[_Asked]) -> Translation: ...  # type: ignore[overload-overlap]

    @overload
    def translate(self, lines: Iterable[str], **asked: Unpack[_Asked]) -> list[Translation]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        beam: int | None = None,
        n_best: int | None = None,
        glossary: Terms | None = None,
    ) -> Translation | list[Translation]:
        """Translations of texts, in order, or of one; white space is kept.

        Sentences are translated one by one and spans such as placeholders are kept, unless the
        settings `split` and `protect` are False: then a line is one sentence, read as it is.

        source_lang, target_lang: override the translator's own, for a model with several languages.
        beam, n_best: search with a beam of that size, whatever the translator's strategy, and give
        so many translations of each text in `Translation.n_best`.
        glossary: translations that terms must have, or the name of a file of them (`--glossary`);
        without a beam it means one of 5.

        With a rule that samples, line n of a call draws with `seed` + n, whatever the batch. Raises
        UserError before anything is decoded if a line is no text or a language must be chosen and,
        with `on_unreadable` "fail", if a line cannot be read.
        """
        given = [lines] if isinstance(lines, str) else lines
        sentences = number_sentences(given, source_lang, target_lang)
        with renaming(_PARAMETERS):
            is_asked = not (beam is None and n_best is None and glossary is None)
            translator = self._searching(beam, n_best, glossary) if is_asked else self
            done = translator.translate_sentences(sentences)
        return done[0] if isinstance(lines, str) else done

    def _searching(
        self, beam: int | None, n_best: int | None, terms: Terms | None
    ) -> SpeculativeTranslator:
        """A translator that searches with the same verifier; None = as this one does."""
        decoder, settings = self._engine("search with a beam"), self.settings
        told = f"Strategy {settings.strategy!r} cannot search with a beam; use specdec or AR."
        require(settings.strategy in ("specdec", "AR"), told)
        asked: dict[str, Any] = {"strategy": "AR", "beta": 1, "tau": 0.0, "drafter_dtype": None}
        if terms is not None and not settings.searches:
            asked["beam"] = BeamParams.size
        asked |= {} if beam is None else {"beam": beam}
        asked |= {} if n_best is None else {"n_best": n_best}
        settings, glossary = replace(settings, **asked), self.glossary
        if terms is not None:
            require(settings.searches, "a glossary needs a beam search; ask for a beam above 1.")
            glossary = Glossary.of(terms, self.codec)
        if not self.settings.searches and settings.searches:
            with self._lock:
                if self._searcher is None:
                    own = decoder.verifier, decoder.method, decoder.config.constraints
                    self._searcher = cast(SpeculativeDecoder, build_decoder(settings, *own))
            decoder = self._searcher
        scores = self._with_scores
        return SpeculativeTranslator(settings, self.codec, decoder, self.limits, glossary, scores)

    async def atranslate(
        self, lines: str | Iterable[str], **options: Any
    ) -> Translation | list[Translation]:
        """`translate` in a thread, for asynchronous programs: the event loop goes on meanwhile."""
        return await asyncio.to_thread(lambda: self.translate(lines, **options))

    def translate_tokens(self, sources: Iterable[Sequence[str]]) -> list[Translation]:
        """Translate sentences that are given as the model's tokens (subwords).

        For callers with their own tokeniser; `Translation.tokens` are the target tokens. A token
        that is not in the dictionary is read as `<unk>`. Raises UserError as `translate` does, and
        for a sentence that is a string.
        """
        require(isinstance(sources, Iterable), f"must be lists of tokens, not {sources!r}.")
        given = [*sources]
        for number, tokens in enumerate(given, 1):
            told = f"sentence {number}: must be a list of tokens, not {tokens!r}."
            require(not isinstance(tokens, str) and isinstance(tokens, Collection), told)
            require(all(isinstance(one, str) for one in tokens), told)
        numbered = number_sentences(" ".join(tokens) for tokens in given)
        with renaming(_PARAMETERS):
            return self.translate_sentences(
                [replace(s, tokens=tokens) for s, tokens in zip(numbered, given, strict=True)]
            )

    def stream(
        self, line: str, *, source_lang: str | None = None, target_lang: str | None = None
    ) -> Iterator[str]:
        """The text of one translation after each round; the last text is complete.

        A later text may change the end of an earlier one, where a word continues or punctuation
        joins it. Raises UserError for strategies that have no rounds to stream.
        """
        [sentence] = number_sentences([line], source_lang, target_lang)
        with renaming(_PARAMETERS):
            yield from self._stream(sentence)

    def _stream(self, sentence: Sentence) -> Iterator[str]:
        decoder = self._engine("stream")
        opened, last = self._open(sentence), None
        plan = Plan([opened])
        while waiting := plan.waiting:
            for part in waiting:
                assert part.request is not None
                before = joined(opened.parts[: opened.parts.index(part)])
                before += part.gap or " " * part.continues
                tokens = self.codec.tokens(part.request.forced_ids)
                for event in decoder.events([part.request]):
                    tokens += self.codec.tokens(event.emitted_ids)
                    last = before + part.filled(part.unfilled(tokens))
                    part.result = event.result
                    yield last
            plan.settle()
        if opened.translation != last:
            yield opened.translation

    def _engine(self, what: str) -> SpeculativeDecoder:
        """The decoder, if it works in rounds. Raises UserError for other strategies."""
        if not isinstance(self.decoder, SpeculativeDecoder):
            raise UserError(
                f"Strategy {self.settings.strategy!r} cannot {what}; use specdec or AR."
            )
        return self.decoder

    def translate_sentences(
        self, sentences: Sequence[Sentence], on_done: Callable[[], None] = lambda: None
    ) -> list[Translation]:
        """Translations in the order of the sentences, whatever order they finish in.

        Every sentence is checked before the first is decoded. Sentences of similar length decode
        together. `on_done` is called once for each, after its first attempt.
        """
        opened = [self._open(sentence) for sentence in sentences]
        plan = Plan(opened)
        firsts = {part.request.id for text in opened for part in text.waiting[:1] if part.request}
        for _ in range(len(sentences) - len(firsts)):
            on_done()
        while requests := plan.requests:
            results = dict[str, RowResult]()
            # The longest first, so that what does not fit into memory fails early.
            by_length = sorted(requests, key=lambda request: len(request.source_ids), reverse=True)
            for result in self.decoder.run(by_length):
                results[result.id] = result
                if result.id in firsts:
                    on_done()
            plan.take(results[request.id] for request in requests)
        return [
            self._translation(sentence, text)
            for sentence, text in zip(sentences, opened, strict=True)
        ]

    def prepare(self, sentence: Sentence) -> Request | None:
        """The request of a sentence; None if it is not decoded, or in pieces.

        Raises UserError, naming the line, as `translate` does.
        """
        parts = self._open(sentence).parts
        return parts[0].request if len(parts) == 1 else None

    def _open(self, sentence: Sentence) -> Text[RowResult]:
        """A sentence to decode. Raises UserError, naming the line."""
        forced_ids, ends = self._forced_ids(sentence)
        with located(sentence.where):
            codec = self.codec.between(sentence.source_lang, sentence.target_lang)
            how, prefix = self._how(sentence, codec), [] if ends else forced_ids
            names = (f"{sentence.number}{end}" for end in chain([""], map("-{}".format, count(2))))
            seed = self.settings.seed + sentence.number
            text: Text[RowResult] = how.opened(
                how.sentences(sentence.text), names, seed, prefix, sentence.tokens
            )
            if ends and text.parts:
                ids = [*codec.first_ids, *forced_ids]
                unread = Request("", [0], DecodeParams(0, len(ids) + 1))
                done = RowResult(unread, ids, finish_reason=FinishReason.EOS)
                text = Text([Part(codec.text(codec.tokens(ids)), how, result=done)])
        return text

    def _how(self, sentence: Sentence, codec: Codec) -> How:
        settings, limits = self.settings, self.limits
        is_raw = codec.reads_raw and sentence.tokens is None and sentence.prefix is None
        params = settings.decode_params(1, block_size=limits.block_size)
        return How(
            codec,
            replace(params, with_scores=self._with_scores),
            longest=limits.source,
            room=lambda num_source: settings.max_len(num_source, limits.target),
            is_bounded=settings.is_bounded,
            split=(codec.splitter if settings.split else whole_lines) if is_raw else None,
            in_pieces=sentence.tokens is None and not codec.reads_texts,
            protects=bool(settings.protect) and is_raw,
            keeps_numbers=settings.protect_numbers,
            mends=bool(settings.protect) and is_raw,
            copies=settings.on_unreadable == "copy",
            truncates=settings.truncate_source,
            glossary=self.glossary,
        )

    def _forced_ids(self, sentence: Sentence) -> tuple[list[int], bool]:
        """The forced target ids, and whether they end the sentence.

        With `prefix_size` the prefix is a reference of which so many tokens are forced; its end
        counts as a token, as in fairseq.
        """
        if sentence.prefix is None:
            return [], False
        with located(f"{sentence.where}: target prefix"):
            ids, size = self.codec.target_ids(sentence.prefix), self.settings.prefix_size
            # A reference may have what the model cannot write, and so may tokens.
            is_writable = bool(size) or not self.codec.reads_raw or self.codec.unk not in ids
            require(is_writable, "has what the model cannot write; correct it.")
        return (ids[:size], size > len(ids)) if size else (ids, False)

    def _translation(self, sentence: Sentence, text: Text[RowResult]) -> Translation:
        results, done, settings = text.results, Translated.of(text), self.settings
        kept = [] if done.has_failed else results
        reason = done.finish_reason
        if not any(part.request for part in text.parts):
            reason = FORCED if results else EMPTY
        told = done.fault and UNREADABLE if not done.has_failed else ""
        return Translation(
            sentence.number,
            done.text,
            [token for row in kept for token in self.codec.tokens(row.token_ids)],
            **self._scores(done, kept),
            rounds=sum(result.rounds for result in results),
            drafted=[num for result in results for num in result.drafted_per_round],
            accepted=[num for result in results for num in result.accepted_per_round],
            emitted=[num for result in results for num in result.emitted_per_round],
            finish_reason=told or reason,
            seconds=sum(result.seconds for result in results),
            fault=done.fault,
            n_best=ranked(text, settings.n_best) if settings.searches and not told else [],
        )

    def _scores(self, done: Translated, rows: Sequence[RowResult]) -> dict[str, Any]:
        """The fields of a translation that say how probable it is."""
        if not done.scores or done.has_failed or done.fault:
            return {}
        score, each = Score([pair for one in done.scores for pair in one.tokens]), list[Any]()
        for row in rows:
            forced = [None] * (len(row.token_ids) - len(row.token_scores))
            both = zip(row.token_ids, [*forced, *row.token_scores], strict=True)
            each += [value for one, value in both for _ in self.codec.tokens([one])]
        token, least = score.least
        named = {"score": score.total, "mean_score": score.mean, "token_scores": each}
        return {**named, "least_token": token, "least_score": least}


def ranked(text: Text[R], num: int) -> list[RankedText]:
    """The best translations of a text: the first of all sentences, the second of all, and so on.

    A sentence with fewer is in its last one. None is there twice: hypotheses of other tokens may be
    the same text.
    """
    found = dict[str, RankedText]()
    most = max((len(part.result.hypotheses) for part in text.parts if part.result), default=0)
    for rank in range(max(1, most)):
        if len(found) == num:
            break
        chosen, parts = list[tuple[Hypothesis, Codec]](), list[Part[R]]()
        for part in text.parts:
            if part.result is not None and (best := part.result.hypotheses):
                one = best[min(rank, len(best) - 1)]
                chosen.append((one, part.how.codec))
                if one is not best[0]:
                    part = replace(part, said=part.text_of(one.token_ids))
            parts.append(part)
        said = Text(parts, text.end).translation
        if said not in found:
            found[said] = _ranked(said, chosen)
    return [*found.values()]


def _ranked(said: str, chosen: Sequence[tuple[Hypothesis, Codec]]) -> RankedText:
    """A text, given the hypotheses of its sentences."""
    scored = [
        (token, score)
        for one, codec in chosen
        for token_id, score in zip(one.token_ids, one.token_scores, strict=True)
        for token in codec.tokens([token_id])  # none of the end
    ]
    return RankedText(
        said,
        [token for token, _ in scored],
        sum(one.score for one, _ in chosen),
        sum(sum(one.token_scores) for one, _ in chosen),
        [score for _, score in scored],
    )


@cache
def _survive_forks() -> None:
    """A fork of this process computes in one thread: it would wait for ever for this one's."""
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def load_translator(settings: Settings, with_scores: bool = False) -> SpeculativeTranslator:
    """Raises UserError if a file is missing or does not fit the others.

    with_scores: give translations log-probabilities, which costs a little time.
    """
    _survive_forks()
    codec, decoder, limits = load_parts(settings)
    least, most = settings.minimum, settings.max_len(limits.source, limits.target)
    told = f"--min-len {least} is longer than a translation may be, {most} tokens; ask for fewer, "
    require(least <= most, f"{told}or raise --max-len-b.")
    glossary = None if settings.glossary is None else Glossary.of(settings.glossary, codec)
    return SpeculativeTranslator(settings, codec, decoder, limits, glossary, with_scores)


def number_sentences(
    lines: Iterable[str], source_lang: str | None = None, target_lang: str | None = None
) -> list[Sentence]:
    """Sentences numbered from 1. Raises UserError for what is no string."""
    is_list = isinstance(lines, Iterable) and not isinstance(lines, bytes)
    require(is_list, f"the lines must be strings, not {lines!r}.")
    sentences = []
    for number, line in enumerate(lines, 1):
        where = f"sentence {number}"
        require(isinstance(line, str), f"{where}: must be a string, not {line!r}.")
        sentences.append(Sentence(number, line, None, where, None, source_lang, target_lang))
    return sentences
