"""Raw text to BPE tokens and back: the one pipeline for preparation, decoding and serving.

Training data and live input must agree to the character, or the model reads tokens that it never
saw. So no other code in the project tokenises, applies or joins BPE, or detokenises.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from specdec_plugins.errors import UserError, imported, read_text, require
from specdec_plugins.formats.pretrained.languages import plain
from specdec_plugins.formats.spacing import spaced_like
from specdec_plugins.formats.typography import typeset_like

BPE_SEPARATOR = "@@"

# Each stands for one span that a model must copy and not translate, such as a placeholder or an
# address. Private-use characters occur in no text, and the tokeniser makes a word of each.
PROTECTED = tuple(map(chr, range(0xE000, 0xE010)))

# Characters at which some reader of the prepared files would break a line (``str.splitlines``,
# universal newlines). None of them carries meaning in a sentence.
_LINE_BREAKERS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs: bytes that were not UTF-8
_SPACES = re.compile(r"\s+")
_APART = re.compile(r"(?<=\d): (?=\d)")  # as Moses puts times and ratios together: "17: 45"

# Words whose subwords are remembered. Longer ones are rare, and could fill the memory.
_NUM_REMEMBERED, _LONGEST_REMEMBERED = 50_000, 100
_WORD_END = "</w>"  # in BPE codes

# A rule of the normaliser, which moves a quotation mark before dots, and what stands for it here.
_DOTS_AND_QUOTE, _RUN_OF_DOTS = r'(\.+)"(\s*[^<])', r'(\.+)(?:"(\s*[^<]))?'

# BPE codes contain digits too, but on few lines.
_MOSTLY = 0.9

# Soft hyphens and the like: where a line may be broken, or a file begins.
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))

# Romanian is written with a comma below; much text holds the look-alike cedilla letters of older
# character sets, which would double the vocabulary.
_CEDILLA_TO_COMMA = str.maketrans("ŞşŢţ", "ȘșȚț")
_ROMANIAN_TO_ASCII = str.maketrans("ȘșȚțĂăÂâÎî", "SsTtAaAaIi")


class Bpe:
    """Cuts words into subwords by the codes of subword-nmt, exactly as its `apply_bpe` does.

    `apply_bpe` takes quadratic time for a long word, and remembers every word that it ever saw, so
    one caller of a server could stop it. Here the time is n log(n), and the memory bounded.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        """lines: those of a file that `load_codes` has checked."""
        has_header = lines[0].startswith("#version:")
        # In version 0.1, which has no header, the end of a word is a symbol of its own.
        self._is_old = not has_header or lines[0].split()[1:] == ["0.1"]
        pairs = [tuple(line.strip("\r ").split(" ")) for line in lines[has_header:] if line]
        self._ranks = {pair: rank for rank, pair in reversed([*enumerate(pairs)])}
        self._remembered = lru_cache(_NUM_REMEMBERED)(self._split)

    def segment(self, words: str) -> str:
        """The subwords of space-separated words, separated by spaces."""
        return " ".join(
            self._remembered(word) if len(word) <= _LONGEST_REMEMBERED else self._split(word)
            for word in words.split(" ")
            if word
        )

    def _split(self, word: str) -> str:
        """Merges the pair learned first wherever it stands, then the next, until none is left."""
        if len(word) == 1:
            return word
        letters, last = word[:-1], word[-1]
        end = [last, _WORD_END] if self._is_old else [last + _WORD_END]
        symbols = [*letters, *end, ""]  # merged ones become empty; "" is also what is past the end
        before, after = [*range(-1, len(symbols) - 1)], [*range(1, len(symbols)), 0]

        def found(starts: Iterable[int]) -> Iterator[tuple[int, int]]:
            for left in starts:
                rank = self._ranks.get((symbols[left], symbols[after[left]]))
                if rank is not None:
                    yield rank, left

        queue = [*found(range(len(symbols) - 1))]
        heapify(queue)
        while queue:
            rank, merged = queue[0][0], []
            while queue and queue[0][0] == rank:
                left = heappop(queue)[1]
                right = after[left]
                if self._ranks.get((symbols[left], symbols[right])) == rank:  # else outdated
                    symbols[left], symbols[right] = symbols[left] + symbols[right], ""
                    after[left], before[after[right]] = after[right], left
                    merged.append(left)
            for pair in found(i for left in merged for i in (before[left], left)):
                heappush(queue, pair)
        *pieces, last = filter(None, symbols)
        if last != _WORD_END:
            pieces.append(last.removesuffix(_WORD_END))
        return f"{BPE_SEPARATOR} ".join(pieces)


def load_codes(path: str | Path) -> Bpe:
    """Raises ``UserError`` for a dictionary, and for a line that is not a pair of subwords."""
    text = read_text(path, "the BPE codes", "give the file that subword-nmt learn-bpe wrote")
    lines = text.split("\n")
    # The counts of a dictionary would be taken for subwords.
    seconds = [fields[1] for fields in map(str.split, lines) if len(fields) > 1]
    if sum(map(str.isdecimal, seconds)) > _MOSTLY * len(seconds):
        raise UserError(
            f"{path}: looks like a dictionary (a token and its count on each line); give the file "
            "of BPE codes that subword-nmt learn-bpe wrote"
        )
    for number, line in enumerate(lines, 1):
        is_header = number == 1 and line.startswith("#version:")
        is_end = 1 < number == len(lines) and not line
        if not is_header and not is_end and len(line.strip("\r ").split(" ")) != 2:
            raise UserError(
                f"{path}, line {number}: expected two subwords separated by a space; "
                "give a file of subword-nmt BPE codes"
            )
    return Bpe(lines)


def _moses(package: Any, language: str) -> tuple[Any, Any]:
    """The normaliser and the tokeniser of a language, in time that grows as the text does."""
    normalizer = package.MosesPunctNormalizer(language)
    # A run of dots without a quotation mark behind it would be read again from each of its dots.
    normalizer.substitutions = [
        (_RUN_OF_DOTS, _quote_before_dots) if pattern == _DOTS_AND_QUOTE else (pattern, text)
        for pattern, text in normalizer.substitutions
    ]
    tokenizer = package.MosesTokenizer(language)
    # Both would make a set of all letters of Unicode for each word with a dot inside.
    tokenizer.isanyalpha = frozenset(tokenizer.IsAlpha).intersection
    tokenizer.islower = frozenset(tokenizer.IsLower).issuperset
    return normalizer, tokenizer


def _quote_before_dots(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'"{match[1]}{match[2]}'


def fault_of(text: str) -> str:
    """Why a string is no text, in words; empty if it is. No file of text holds such characters."""
    if "\0" in text:
        return "holds a NUL character, so it is UTF-16 or not text"
    half = _HALVES.search(text)
    return f"holds half a surrogate pair ({half[0]!r}), so it is not decoded text" if half else ""


def join_bpe(tokens: str) -> str:
    """Join BPE pieces to words; a dangling separator at the end of a cut line is removed too."""
    return (tokens.strip() + " ").replace(BPE_SEPARATOR + " ", "").rstrip()


def composed(line: str) -> str:
    """Unicode's NFC. `normalize` would sort a long run of marks in quadratic time."""
    runs = groupby(line, lambda character: unicodedata.combining(character) > 0)
    parts = (sorted(run, key=unicodedata.combining) if marks else run for marks, run in runs)
    return unicodedata.normalize("NFC", "".join(map("".join, parts)))


class TextPipeline:
    """Turns a raw line into the tokens that a model reads, and a model's tokens into a line.

    ``source_lang`` and ``target_lang`` are two-letter codes, or names such as de_DE and DE; unknown
    ones get English rules, as in Moses. ``tokenizer`` None means text that is already tokenised,
    ``bpe`` None text whose tokens are words (or BPE was already applied). ``codes`` is the file of
    BPE codes. ``dash_splits`` turns ``a-b`` into ``a @-@ b``, as in some published WMT14 data.
    ``strip_diacritics`` removes Romanian diacritics, as in some published WMT16 data.

    Letters are composed (Unicode NFC). If a language is Romanian, cedilla letters become comma
    letters on both sides.

    Raises ``UserError`` if a package or the codes file is missing or malformed. The packages
    are imported when a pipeline is built, not with this module.
    """

    def __init__(
        self,
        source_lang: str,
        target_lang: str,
        tokenizer: str | None = "moses",
        bpe: str | None = "subword_nmt",
        codes: str | Path | None = None,
        *,
        lowercase: bool = False,
        dash_splits: bool = False,
        strip_diacritics: bool = False,
    ) -> None:
        require(
            tokenizer in ("moses", None), f"unknown tokenizer {tokenizer!r}; choose moses, or none"
        )
        require(bpe in ("subword_nmt", None), f"unknown BPE {bpe!r}; choose subword_nmt, or none")
        require(
            bpe is None or codes is not None,
            "subword_nmt BPE needs a file of codes; give it with --bpe-codes",
        )
        self._languages = {"source": plain(source_lang), "target": plain(target_lang)}
        self._lowercase, self._dash_splits = lowercase, dash_splits
        self._strip_diacritics = strip_diacritics
        self._moses: dict[str, tuple[Any, Any]] = {}  # normaliser and tokeniser of each side
        self._detokenizer: Any = None
        if tokenizer == "moses":
            moses = imported("sacremoses", "text")
            for side, lang in self._languages.items():
                self._moses[side] = _moses(moses, lang)
            self._detokenizer = moses.MosesDetokenizer(self._languages["target"])
        self._bpe = None if bpe is None or codes is None else load_codes(codes)

    def encode(self, line: str) -> str:
        """The BPE tokens of one raw source line, separated by single spaces; "" if it is empty."""
        return self.segment(self.tokenize(line, "source"))

    def encode_target(self, line: str) -> str:
        """The same for the target language: training targets, and forced target prefixes."""
        return self.segment(self.tokenize(line, "target"))

    def decode(self, tokens: str, source: str = "") -> str:
        """Join and detokenise space-separated target tokens to the line that a user reads.

        source: what they translate, if known, whose signs are as theirs are to be.
        """
        words = self.join(tokens)
        if self._detokenizer is None:
            return words
        line = str(self._detokenizer.detokenize(words.split(), return_str=True))
        line = spaced_like(source, _APART.sub(":", line))
        return typeset_like(source, line, self._languages["target"])

    def tokenize(self, line: str, side: Literal["source", "target"]) -> str:
        """Space-separated words of one raw line, before BPE."""
        line = self._normalize(_LINE_BREAKERS.sub(" ", line), self._languages[side])
        if side in self._moses:
            normalizer, tokenizer = self._moses[side]
            splits = {"aggressive_dash_splits": self._dash_splits, "return_str": True}
            line = str(tokenizer.tokenize(normalizer.normalize(line), **splits))
        # The tokeniser lets through exotic spaces, at which fairseq would split a token in two.
        return _SPACES.sub(" ", line).strip()

    def segment(self, words: str) -> str:
        return words if self._bpe is None else str(self._bpe.segment(words))

    def join(self, tokens: str) -> str:
        """The words of BPE tokens; the tokens themselves without BPE."""
        return tokens.strip() if self._bpe is None else join_bpe(tokens)

    def _normalize(self, line: str, language: str) -> str:
        # Vocabularies hold composed letters; macOS, for one, writes a letter and its accent apart.
        line = composed(line.translate(_INVISIBLE))
        if "ro" in self._languages.values():
            line = line.translate(_CEDILLA_TO_COMMA)
        if self._strip_diacritics and language == "ro":
            line = line.translate(_ROMANIAN_TO_ASCII)
        return line.lower() if self._lowercase else line
