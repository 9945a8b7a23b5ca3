"""Text to token ids and back, in the languages of a model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from specdec_plugins.errors import UnreadableError, UserError, require
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.pretrained.languages import Languages
from specdec_plugins.formats.pretrained.tokenizer import PLAIN, PretrainedTokenizer
from specdec_plugins.formats.text import PROTECTED, TextPipeline, composed
from specdec_plugins.text.sentences import Split, sentence_splitter, whole_lines
from specdec_plugins.text.spans import stand_ins

_SUBWORD_NMT = ("subword_nmt", "@@ ", "@@")
_MOST_UNKNOWN = 0.1  # largest share of unknown pieces in a text
_SAMPLED = 300  # lines checked for unknown pieces
_WORD = re.compile(r"\S+")
_PART = re.compile(r"(?:[^\W\d_][\u0300-\u036f]*)+|.")  # of a word: letters, or something else
_JOINED = ("Mn", "Me", "Cf", "Sk")  # categories of characters that change the one before them
_MOST_PARTS = 100_000  # remembered
# Ligatures as PDF files have them, and letters and digits that are wide, bold and the like.
_FORMS = re.compile("[\ufb00-\ufb06\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d7ff]+")


def join_subwords(tokens: str, symbol: str | None) -> str:
    """Space-separated tokens with subwords joined, as fairseq's `--remove-bpe` joins them.

    symbol: the mark at the end of a subword whose word continues ('@@' means '@@ '),
    'sentencepiece', or None to leave tokens alone.
    """
    if symbol is None:
        return tokens
    if symbol == "sentencepiece":
        return tokens.replace(" ", "").replace("\u2581", " ").strip()
    return (tokens + " ").replace(_bpe_mark(symbol), "").rstrip()


def spelt(text: str) -> str:
    """The text as vocabularies have it: letters and their accents in one, and forms of letters as
    the letters themselves (NFKC).
    """
    return composed(_FORMS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text))


def _bpe_mark(symbol: str) -> str:
    return "@@ " if symbol in _SUBWORD_NMT else symbol


class Codec:
    """Converts between lines of text and token ids of a model."""

    num_framing = 1  # source tokens that are not text: eos
    num_behind = 1  # how many of these are at the end
    first_ids: Sequence[int] = ()  # target tokens that every translation begins with
    reads_texts = False  # not single sentences; true for summarisers
    lowers_capitals = True  # of sentences in capitals, of which training texts have few

    def __init__(
        self,
        source: Dictionary,
        target: Dictionary,
        text: TextPipeline | None = None,
        remove_bpe: str | None = "@@ ",
    ) -> None:
        """text: for raw text; None if lines are tokens. remove_bpe: see `join_subwords`."""
        self._source = source
        self._target = target
        self._text = text
        self._remove_bpe = remove_bpe
        self._spells_part = lru_cache(_MOST_PARTS)(self._spells)
        # The languages that the model reads and writes, if known
        self.source_lang, self.target_lang = source.language, target.language
        sides = [(side.language,) if side.language else () for side in (source, target)]
        self.languages = Languages("this model", sides[0], sides[1])

    def between(self, source_lang: str | None, target_lang: str | None) -> Codec:
        """The codec for these languages; None = the default.

        Raises UserError if the model does not have them.
        """
        self.languages.choose(source_lang, target_lang)
        return self

    def source_ids(self, line: str) -> list[int]:
        """Ids of a source line, framed: with eos at the end.

        Raises UnreadableError if the model cannot read it.
        """
        tokens = line if self._text is None else self._text.encode(line)
        return self._readable(self._source.encode_line(tokens))

    def _readable(self, ids: list[int]) -> list[int]:
        if self._source.pad in ids:
            raise UnreadableError(
                "the text contains the padding token, which the model would ignore; write it in "
                "another way, for instance with spaces between its characters."
            )
        return ids

    @property
    def reads_raw(self) -> bool:
        """True if lines are sentences of raw text: they may be divided, and spans kept."""
        return self._text is not None

    @cached_property
    def splitter(self) -> Split:
        return whole_lines if self.reads_texts else sentence_splitter(self.source_lang)

    @property
    def unk(self) -> int:
        """The id of what the model does not know, on either side."""
        return self._source.unk

    def symbols(self, text: str) -> Iterable[str]:
        """What the model is to read in place of the spans of a text that it must copy.

        Those of PROTECTED if it was trained with them.
        """
        known = (self._source.index(s) != self.unk != self._target.index(s) for s in PROTECTED)
        return PROTECTED if all(known) else stand_ins(text)

    @cached_property
    def unread(self) -> frozenset[int]:
        """Source tokens that the model does not know, or so little that they are copied."""
        return self._source.rare | {self.unk}

    def unknown(self, text: str) -> list[tuple[int, int]]:
        """Begin and end of what the vocabulary cannot spell, in order: whole words, signs alone."""
        runs = list[tuple[int, int]]()
        for word in _WORD.finditer(text):
            begin, end = word.span()
            if self._spells(word[0]):
                continue
            parts = (part.span() for part in _PART.finditer(text, begin, end))
            bad = [(at, stop) for at, stop in parts if not self._spells_part(text[at:stop])]
            for at, stop in bad or [(begin, end)]:
                while stop < end and unicodedata.category(text[stop]) in _JOINED:
                    stop += 1
                if runs and runs[-1][1] >= at:
                    at, _ = runs.pop()
                runs.append((at, stop))
        return runs

    def _spells(self, piece: str) -> bool:
        try:
            return self.unread.isdisjoint(self.source_ids(spelt(piece)))
        except UnreadableError:
            return False

    def separates(self, line: str, begin: int, end: int) -> bool:
        """True if the white space line[begin:end] is between words, not between subwords."""
        mark = self._remove_bpe
        if self._text is not None or mark is None:
            return True
        if mark == "sentencepiece":
            return line.startswith("\u2581", end)
        return not line.endswith(_bpe_mark(mark).rstrip(), 0, begin)

    def source_token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of source tokens, whatever the form of the input; framed, too."""
        return self._source.encode_line(" ".join(tokens))

    @cached_property
    def joining(self) -> frozenset[int]:
        """Target tokens whose word goes on with the next token."""
        mark = _bpe_mark(self._remove_bpe or _SUBWORD_NMT[0]).rstrip()
        return frozenset(i for i, s in enumerate(self._target.symbols) if s.endswith(mark))

    def target_ids(self, line: str) -> list[int]:
        """Ids of target text, without eos."""
        tokens = line if self._text is None else self._text.encode_target(line)
        return self._target.encode_line(tokens, append_eos=False)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The target tokens of some ids, up to eos and without `<s>`, as in fairseq's output."""
        stop = ids.index(self._target.eos) if self._target.eos in ids else len(ids)
        return [self._target.symbols[i] for i in ids[:stop] if i != self._target.bos]

    def symbol(self, token_id: int) -> str:
        """The name of a target token, eos and the like included."""
        return self._target.symbols[token_id]

    def text(self, tokens: Sequence[str], source: str = "") -> str:
        """The line that a user reads. It never contains a line end.

        source: what the tokens translate, if known.
        """
        joined = " ".join(tokens)
        if self._text is not None:
            text = self._text.decode(joined, source)
        else:
            text = join_subwords(joined, self._remove_bpe)
        return _one_line(text)  # a dictionary may contain line ends


class PretrainedCodec(Codec):
    """A codec with a transformers tokenizer, between two of its languages."""

    lowers_capitals = False  # its texts are to be those of transformers

    def __init__(
        self,
        tokenizer: PretrainedTokenizer,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> None:
        """Raises UserError if the model does not have these languages."""
        super().__init__(tokenizer.source, tokenizer.target)
        self.tokenizer, self.languages = tokenizer, tokenizer.languages
        self._chosen = self.languages.choose(source_lang, target_lang)
        self.source_lang, self.target_lang = self._chosen
        self.reads_texts = tokenizer.kind is PLAIN

    @property
    def reads_raw(self) -> bool:
        return not self.reads_texts

    @property
    def num_framing(self) -> int:  # type: ignore[override]
        return sum(map(len, self.tokenizer.frame(*self._chosen)))

    @property
    def num_behind(self) -> int:  # type: ignore[override]
        return len(self.tokenizer.frame(*self._chosen)[1])

    @property
    def first_ids(self) -> Sequence[int]:  # type: ignore[override]
        """Raises UserError if a target language must be chosen."""
        return self.tokenizer.first_ids(self.target_lang)

    def between(self, source_lang: str | None, target_lang: str | None) -> PretrainedCodec:
        if source_lang is None and target_lang is None:
            return self
        both = source_lang or self.source_lang, target_lang or self.target_lang
        return PretrainedCodec(self.tokenizer, *both)

    def source_ids(self, line: str) -> list[int]:
        """Ids of a source line, framed as the model expects.

        Raises UserError if a language must be chosen, and UnreadableError if the tokenizer cannot
        encode the text.
        """
        ids = self.tokenizer.encode(line) if line.strip() else []
        return self.tokenizer.framed(self._readable(ids), *self._chosen)

    def separates(self, line: str, begin: int, end: int) -> bool:
        """True except after MarianMT's `>>deu<<`, which only the first of two pieces would have."""
        return not (self.tokenizer.kind.target_opens_source and line.startswith(">>"))

    def source_token_ids(self, tokens: Sequence[str]) -> list[int]:
        ids = [self._source.index(token) for token in tokens]
        return self.tokenizer.framed(ids, *self._chosen)

    @property
    def joining(self) -> frozenset[int]:
        """None: the marks of its tokens are where words begin."""
        return frozenset()

    def target_ids(self, line: str) -> list[int]:
        return self.tokenizer.encode_target(line)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The target tokens of some ids, up to eos and without special and language tokens."""
        stop = ids.index(self._target.eos) if self._target.eos in ids else len(ids)
        return [self._target.symbols[i] for i in ids[:stop] if not self.tokenizer.is_mark(i)]

    def text(self, tokens: Sequence[str], source: str = "") -> str:
        return _one_line(self.tokenizer.decode([self._target.index(token) for token in tokens]))


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def check_language(path: Path, lines: Sequence[str], codec: Codec) -> None:
    """Raises UserError if the model does not know the text, or a language must be chosen."""
    codec.source_ids("")
    _ = codec.first_ids
    num_pieces, num_unknown = 1, 0
    for line in lines[:_SAMPLED]:
        try:
            ids = codec.source_ids(line)
        except UserError:  # the tokenizer knows none of its letters
            ids = [Dictionary.unk]
        num_pieces += len(ids)
        num_unknown += ids.count(Dictionary.unk)
    share = num_unknown / num_pieces
    require(
        share <= _MOST_UNKNOWN,
        f"{path}: the model does not know {share:.0%} of its subwords; give text in the model's "
        f"source language{f' ({codec.source_lang})' if codec.source_lang else ''}.",
    )
