"""Selects training pairs to keep, and pairs to hold out: test sets, given or chosen by a rule.

Every choice depends on the sentences alone (the smallest hashes), not on their order, the platform
or a random state, so adding a file to a corpus barely changes it. Held-out pairs are never cleaned.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from itertools import islice

from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import require

_LAST_LATIN = 0x24F  # last code point of Latin Extended-B; Latin-1 and Extended-A lie below it
_LONGEST_WORD = 60  # characters; longer ones are paths, keys and tables without spaces
KEPT = "kept"
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
    max_ratio: float  # longer side / shorter side; 1.0 keeps only equal lengths

    def __post_init__(self) -> None:
        require(
            self.min_length <= self.max_length,
            f"--min-length {self.min_length} must not exceed --max-length {self.max_length}",
        )

    def verdict(self, source: str, target: str) -> str | None:
        """Why a pair of space-separated sentences is dropped; None if it is kept."""
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
    """Both sides in Unicode NFC, without surrounding space."""
    source, target = (unicodedata.normalize("NFC", side.strip()) for side in pair)
    return source, target


def unescape(pair: Pair) -> Pair:
    """Both sides with HTML's character references resolved."""
    return html.unescape(pair[0]), html.unescape(pair[1])


def key(sentence: str) -> str:
    """The form in which sentences are compared for equality; empty for one without letters."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(character for character in folded if character.isalnum())


@dataclass(frozen=True)
class PairRules:
    """Rules that a raw pair must satisfy to count as a translation."""

    source_lang: str
    target_lang: str
    max_words: int = 60  # a side
    scripts: Sequence[frozenset[str]] = (frozenset(), frozenset())  # of each side; see scripts_of

    def verdict(self, source: str, target: str) -> str | None:
        """Why a pair is dropped; None if it is kept."""
        left, right = source.split(), target.split()
        return (
            self._shape(left, right)
            or self._letters(source, target)
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

    def _letters(self, *sides: str) -> str | None:
        for side in sides:
            # A vowel sign, as of Hindi, is a mark.
            if sum(unicodedata.category(c)[0] in "LM" for c in side) < 0.5 * len(
                side.replace(" ", "")
            ):
                return "too few letters"
        for side, scripts in zip(sides, self.scripts, strict=True):
            if any(_script(c) not in scripts for c in side if ord(c) > _LAST_LATIN and c.isalpha()):
                return "other script"
        return None

    def _language(self, left: list[str], right: list[str]) -> str | None:
        if _looks_like(right, self.source_lang, rather_than=self.target_lang):
            return "target in the source's language"
        if _looks_like(left, self.target_lang, rather_than=self.source_lang):
            return "source in the target's language"
        return None


@cache
def _script(letter: str) -> str:
    """The script that a letter's name in Unicode begins with, such as GREEK."""
    return unicodedata.name(letter, "").split(" ")[0]


def scripts_of(sentences: Iterable[str]) -> frozenset[str]:
    """The scripts of at least one letter in a hundred, those of Western Latin left out."""
    letters = Counter(c for sentence in sentences for c in sentence if c.isalpha())
    counts: Counter[str] = Counter()
    for letter, number in letters.items():
        if ord(letter) > _LAST_LATIN:
            counts[_script(letter)] += number
    return frozenset(s for s, number in counts.items() if number >= letters.total() / 100)


def _looks_like(words: list[str], language: str, rather_than: str) -> bool:
    """Judged by common words; False if those of either language are not known here."""
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
    """Keeps the first pairs of each source, compared by letters only, with all numbers equal.

    A pair whose two sides occurred together before is always dropped.
    """

    def __init__(self, per_source: int = 1) -> None:
        self._per_source = per_source
        self._sources: Counter[str] = Counter()
        self._pairs: set[Pair] = set()

    def has(self, keys: Pair) -> bool:
        """Whether a pair of these keys must be dropped; records it if not."""
        source, target = (re.sub(r"\d+", "0", side) for side in keys)
        if self._sources[source] >= self._per_source or (source, target) in self._pairs:
            return True
        self._sources[source] += 1
        self._pairs.add((source, target))
        return False


class HeldOutSentences:
    """The sentences that training must not see, each side separately."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._sources: set[str] = set()
        self._targets: set[str] = set()
        self.add(pairs)

    def add(self, pairs: Iterable[Pair]) -> None:
        for source, target in pairs:
            self._sources.add(key(source))
            self._targets.add(key(target))
        # A sentence without letters contaminates nothing.
        self._sources.discard("")
        self._targets.discard("")

    def verdict(self, keys: Pair) -> str:
        """ "kept", or why not, given the ``key`` of both sides."""
        if keys[0] in self._sources:
            return "source is held out"
        return "target is held out" if keys[1] in self._targets else KEPT


def keys_of(pair: Pair) -> Pair:
    return key(pair[0]), key(pair[1])


def hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def split_off(
    pairs: Iterable[Pair], held: HeldOutSentences, name: str, sizes: Sequence[int]
) -> list[list[Pair]]:
    """Takes sets of these sizes from the corpus of that name.

    The rule: sources that are not held out already, each with its first target, in the order of the
    BLAKE2b hash of the corpus's name, a space, and the source's case-folded letters and digits. No
    source that is taken may occur in training. Raises UserError if less than half of the sources
    would be left.
    """
    seen: set[bytes] = set()
    first = _first_of_each(pairs, held, seen)
    best = nsmallest(sum(sizes), ((hashed(f"{name} {source}"), pair) for source, pair in first))
    is_enough = len(seen) >= 2 * sum(sizes)
    require(
        is_enough,
        f"only {len(seen)} sources to choose from, half of which must stay in training; take fewer",
    )
    ordered = (pair for _, pair in best)
    return [list(islice(ordered, size)) for size in sizes]


def _first_of_each(
    pairs: Iterable[Pair], held: HeldOutSentences, seen: set[bytes]
) -> Iterator[tuple[str, Pair]]:
    """Yields the key and the first pair of each source that is not held out.

    seen: hashes of the sources so far.
    """
    for pair in pairs:
        keys = keys_of(pair)
        if held.verdict(keys) == KEPT and (mark := hashed(keys[0])) not in seen:
            seen.add(mark)
            yield keys[0], pair
