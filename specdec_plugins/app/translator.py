"""The translator behind the command line and the Python interface."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from specdec_plugins.app.codec import Codec, RunningText
from specdec_plugins.app.loading import load_parts, make_settings
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.types import (
    FORCED,
    BlockTranslation,
    Decoder,
    Limits,
    Sentence,
    Span,
    Translation,
)
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import SEEDS, FinishReason, Request, RowResult
from specdec_plugins.errors import UserError, located


class SpeculativeTranslator:
    """Translates sentences with the strategy that it was loaded with."""

    def __init__(self, settings: Settings, codec: Codec, decoder: Decoder, limits: Limits):
        self.settings = settings
        self.codec = codec
        self.decoder = decoder
        self.limits = limits

    @classmethod
    def from_pretrained(
        cls, data: str | None = None, *, scores: bool = True, **settings: Any
    ) -> SpeculativeTranslator:
        """Load a translator from a bundle (default: the bundled pair) or a folder.

        The folder holds dictionaries, or is one of a model from transformers.

        scores: give each translation the verifier's log-probability, which costs a little time.
        Any field of `Settings`, given by name, overrides the bundle. Raises UserError if a file is
        missing or a setting is invalid. Examples: `from_pretrained(batch=8)`,
        `from_pretrained("data", verifier="v.pt", drafter_checkpoint="d.pt")`.
        """
        return load_translator(make_settings({"data": data, **settings}), with_scores=scores)

    @property
    def stats(self) -> DecodeStats:
        """Counts of everything decoded so far, with their rates as properties."""
        return self.decoder.stats

    def translate(
        self,
        lines: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> list[Translation]:
        """Translations of lines, in order; an empty line has an empty translation.

        source_lang, target_lang: override the translator's own, for a model with several languages.

        With a rule that samples, line n of a call draws with `seed` + n, whatever the batch. Raises
        UserError before anything is decoded if a line is longer than the model's positions.
        """
        sentences = [
            replace(sentence, source_lang=source_lang, target_lang=target_lang)
            for sentence in number_sentences(lines)
        ]
        return self.translate_sentences(sentences)

    def translate_tokens(self, sources: Sequence[Sequence[str]]) -> list[Translation]:
        """Translate sentences that are given as the model's tokens (subwords).

        For callers with their own tokeniser; `Translation.tokens` are the target tokens. A token
        that is not in the dictionary is read as `<unk>`. Raises UserError as `translate` does.
        """
        numbered = number_sentences([""] * len(sources))
        return self.translate_sentences(
            [replace(s, tokens=tokens) for s, tokens in zip(numbered, sources, strict=True)]
        )

    def stream(
        self, line: str, *, source_lang: str | None = None, target_lang: str | None = None
    ) -> Iterator[str]:
        """The text of one translation after each round; the last text is complete.

        A later text may change the end of an earlier one, where a word continues or punctuation
        joins it. Raises UserError for strategies that have no rounds to stream.
        """
        decoder = self._engine("stream")
        sentence = Sentence(1, line, source_lang=source_lang, target_lang=target_lang)
        request = self.prepare(sentence)
        if isinstance(request, Translation):
            yield request.text
            return
        running = RunningText(self.codec)
        running.add(self.codec.tokens(request.forced_ids))
        for event in decoder.events([request]):
            yield running.add(self.codec.tokens(event.emitted_ids))

    def translate_in_blocks(self, line: str) -> BlockTranslation:
        """A translation and which of its parts were drafted. Raises UserError as `stream` does."""
        decoder = self._engine("report its blocks")
        began = time.perf_counter()
        request = self.prepare(Sentence(1, line))
        if isinstance(request, Translation):
            return BlockTranslation([], 0, 0, 0.0)
        events = list(decoder.events([request]))
        seconds = time.perf_counter() - began
        running, texts = RunningText(self.codec), list[tuple[str, bool]]()
        num_tokens = 0
        for event in events:
            ids, num_accepted = event.emitted_ids, event.num_accepted
            for part, is_drafted in ((ids[:num_accepted], True), (ids[num_accepted:], False)):
                tokens = self.codec.tokens(part)
                num_tokens += len(tokens)
                texts.append((running.add(tokens), is_drafted))
        return BlockTranslation(_spans(texts), num_tokens, len(events), seconds)

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
        together. `on_done` is called once for each.
        """
        done: dict[int, Translation] = {}
        requests: list[Request] = []
        for sentence in sentences:
            prepared = self.prepare(sentence)
            if isinstance(prepared, Request):
                requests.append(prepared)
            else:
                done[sentence.number] = prepared
                on_done()
        # The longest first, so that what does not fit into memory fails early.
        requests.sort(key=lambda request: len(request.source_ids), reverse=True)
        for result in self.decoder.run(requests):
            done[int(result.id)] = self._translation(result)
            on_done()
        return [done[sentence.number] for sentence in sentences]

    def prepare(self, sentence: Sentence) -> Request | Translation:
        """A request, or the translation if there is nothing to decode.

        Raises UserError, naming the line, if the sentence does not fit.
        """
        with located(sentence.where):
            codec = self.codec.between(sentence.source_lang, sentence.target_lang)
            if sentence.tokens is None:
                source_ids = codec.source_ids(sentence.text)
            else:
                source_ids = codec.source_token_ids(sentence.tokens)
            first_ids = [*codec.first_ids]
        if len(source_ids) <= codec.num_framing:
            return Translation(sentence.number, "")
        source_ids = self._fit_source(source_ids, codec, sentence.where)
        forced_ids, ends = self._forced_ids(sentence)
        forced_ids = first_ids + forced_ids
        if ends:
            tokens = self.codec.tokens(forced_ids)
            text = self.codec.text(tokens)
            return Translation(sentence.number, text, tokens, finish_reason=FORCED)
        max_len = self.settings.max_len(len(source_ids), self.limits.target)
        if len(forced_ids) >= max_len:
            raise UserError(
                f"{sentence.where}: its target prefix has {len(forced_ids)} tokens, but at most "
                f"{max_len - 1} leave room for more; shorten it, or raise --max-len-b."
            )
        params = self.settings.decode_params(
            max_len, (self.settings.seed + sentence.number) % SEEDS, self.limits.block_size
        )
        return Request(str(sentence.number), source_ids, params, forced_ids)

    def _forced_ids(self, sentence: Sentence) -> tuple[list[int], bool]:
        """The forced target ids, and whether they end the sentence.

        With `prefix_size` the prefix is a reference of which so many tokens are forced; its end
        counts as a token, as in fairseq.
        """
        if sentence.prefix is None:
            return [], False
        with located(f"{sentence.where}: target prefix"):
            ids = self.codec.target_ids(sentence.prefix)
        size = self.settings.prefix_size
        return (ids[:size], size > len(ids)) if size else (ids, False)

    def _fit_source(self, source_ids: list[int], codec: Codec, where: str) -> list[int]:
        longest, framing = self.limits.source, codec.num_framing
        if len(source_ids) <= longest:
            return source_ids
        if self.settings.truncate_source:
            end = len(source_ids) - codec.num_behind
            return [*source_ids[: longest - codec.num_behind], *source_ids[end:]]
        raise UserError(
            f"{where}: has {len(source_ids) - framing} tokens, more than the {longest - framing} "
            "that the model has positions for; split the sentence, or add --truncate-source."
        )

    def _translation(self, result: RowResult) -> Translation:
        tokens = self.codec.tokens(result.token_ids)
        return Translation(
            *(int(result.id), self.codec.text(tokens), tokens, result.score, result.rounds),
            drafted=result.drafted_per_round,
            accepted=result.accepted_per_round,
            emitted=result.emitted_per_round,
            finish_reason=(result.finish_reason or FinishReason.LENGTH).value,
            seconds=result.seconds,
        )


def _spans(texts: Sequence[tuple[str, bool]]) -> list[Span]:
    """Split the last of some growing texts into what each text adds, with its origin."""
    whole, spans, at = texts[-1][0], list[Span](), 0
    for so_far, is_drafted in texts:
        # Later tokens may change the end of a text, which is not final then.
        end = len(os.path.commonprefix([so_far, whole]))
        if end > at:
            spans.append(Span(whole[at:end], is_drafted))
            at = end
    return spans


def load_translator(settings: Settings, with_scores: bool = False) -> SpeculativeTranslator:
    """Load everything that the settings name.

    with_scores: sum the verifier's log-probabilities, which costs a little time. Raises UserError
    if a file is missing or does not fit the others.
    """
    return SpeculativeTranslator(settings, *load_parts(settings, with_scores))


def number_sentences(lines: Sequence[str]) -> list[Sentence]:
    """Sentences numbered from 1."""
    return [Sentence(n, line, where=f"sentence {n}") for n, line in enumerate(lines, 1)]
