"""Which training pairs are kept. Test sets never pass through here."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import UserError

_LAST_LATIN = 0x24F  # code point: behind it no letter is of Latin-1 or Latin Extended-A and -B
_LONGEST_WORD = 60  # characters; longer ones are paths, keys and tables without spaces
_COMMON_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and to is are you your for with this that it on can be from not",
        "de": "der die das und ist sind sie ihr für mit dieser diese dieses dass es auf im kann "
        "werden von nicht ein eine einen den dem des zu zum zur",
    }.items()
}


@dataclass(frozen=True)
class LengthRules:
    """Bounds on a tokenised training pair, both sides alike."""

    min_length: int  # words a side; 1 drops pairs with an empty side
    max_length: int  # words a side
    max_ratio: float  # longer side / shorter side; 1.0 keeps equal lengths alone

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise UserError(
                f"--min-length {self.min_length} and --max-length {self.max_length} keep nothing; "
                "expected 1 <= min <= max"
            )
        if self.max_ratio < 1.0:
            raise UserError(f"--max-ratio {self.max_ratio} keeps nothing; give 1.0 or more")

    def verdict(self, source: str, target: str) -> str | None:
        """Why a pair of space-separated sentences goes; None where it stays."""
        lengths = sorted((len(source.split()), len(target.split())))
        if lengths[0] == 0:
            return "empty"
        if lengths[0] < self.min_length:
            return "too short"
        if lengths[1] > self.max_length:
            return "too long"
        if lengths[1] > self.max_ratio * lengths[0]:
            return "lengths too unlike"
        return None


def tidy(pair: Pair) -> Pair:
    """Both sides with composed characters and without space around them."""
    source, target = (unicodedata.normalize("NFC", side.strip()) for side in pair)
    return source, target


def unescape(pair: Pair) -> Pair:
    """Both sides without HTML's character references."""
    return html.unescape(pair[0]), html.unescape(pair[1])


def key(sentence: str) -> str:
    """What must be equal for two sentences to be the same; empty for one without letters."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(character for character in folded if character.isalnum())


@dataclass(frozen=True)
class PairRules:
    """What a pair of raw sentences in Latin letters must look like to be a translation."""

    source_lang: str
    target_lang: str
    max_words: int = 60  # a side

    def verdict(self, source: str, target: str) -> str | None:
        """Why a pair goes; None where it stays."""
        left, right = source.split(), target.split()
        return (
            self._shape(left, right)
            or _letters(source, target)
            or ("copy" if key(source) == key(target) and len(left) > 2 else None)
            or self._language(left, right)
            or ("other numbers" if len(_numbers(source) ^ _numbers(target)) >= 3 else None)
        )

    def _shape(self, left: list[str], right: list[str]) -> str | None:
        shorter, longer = sorted((len(left), len(right)))
        if shorter == 0:
            return "empty"
        if longer > self.max_words:
            return "too long"
        if longer > 2 * shorter + 4:
            return "lengths too unlike"
        return "word too long" if max(map(len, left + right)) > _LONGEST_WORD else None

    def _language(self, left: list[str], right: list[str]) -> str | None:
        if _looks_like(right, self.source_lang, rather_than=self.target_lang):
            return "target in the source's language"
        if _looks_like(left, self.target_lang, rather_than=self.source_lang):
            return "source in the target's language"
        return None


def _letters(source: str, target: str) -> str | None:
    for side in (source, target):
        if sum(c.isalpha() for c in side) < 0.5 * len(side.replace(" ", "")):
            return "too few letters"
    is_other = any(ord(c) > _LAST_LATIN and c.isalpha() for c in source + target)
    return "other script" if is_other else None


def _looks_like(words: list[str], language: str, rather_than: str) -> bool:
    """By its most common words; False where those of a language are not known here."""
    if language not in _COMMON_WORDS or rather_than not in _COMMON_WORDS:
        return False
    plain = [word.strip(".,:;!?()\"'").lower() for word in words]
    wrong, right = (
        sum(word in _COMMON_WORDS[name] for word in plain) for name in (language, rather_than)
    )
    return wrong >= 2 and wrong > right


def _numbers(sentence: str) -> set[str]:
    return set(re.findall(r"\d{2,}", re.sub(r"[., ]", "", sentence)))


class NearDuplicates:
    """Keeps the first pairs of each source, where letters alone count and every number is one.

    A pair whose two sides have come before goes in any case.
    """

    def __init__(self, per_source: int = 1) -> None:
        self._per_source = per_source
        self._sources: Counter[str] = Counter()
        self._pairs: set[Pair] = set()

    def has(self, keys: Pair) -> bool:
        """Whether a pair of these keys is one too many; remembers it if not."""
        source, target = (re.sub(r"\d+", "0", side) for side in keys)
        if self._sources[source] >= self._per_source or (source, target) in self._pairs:
            return True
        self._sources[source] += 1
        self._pairs.add((source, target))
        return False
