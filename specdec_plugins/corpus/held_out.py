"""Sentences that training must not see: test sets that are given, or chosen here by a rule.

Every choice depends on the sentences alone (the smallest hashes), not on their order, the platform
or a random state, so that adding a file to a corpus barely changes it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from specdec_plugins.corpus.cleaning import key
from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import UserError, not_installed

MIN_WORDS = 4  # of a source that `split_off` takes
KEPT = "kept"


class HeldOutSentences:
    """The sentences that training must not see, each side for itself."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
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
        """ "kept", or why not; of what ``key`` gives for both sides."""
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
    """Sets of these sizes, taken from the corpus of that name.

    The rule: sources of four words or more that are not held out already, each with its first
    target, in the order of the BLAKE2b hash of the corpus's name, a space, and the source's letters
    and digits in small letters. No source that is taken may occur in training.
    """
    first = _first_of_each((p for p in pairs if len(p[0].split()) >= MIN_WORDS), held)
    if len(first) < 2 * sum(sizes):
        raise UserError(f"--split-off {name}: only {len(first)} sources to choose from; take less")
    order = iter(sorted(first, key=lambda source: hashed(f"{name} {source}")))
    return [[first[next(order)] for _ in range(size)] for size in sizes]


def _first_of_each(pairs: Iterable[Pair], held: HeldOutSentences) -> dict[str, Pair]:
    """The first pair of each source that is not held out, by the source's key."""
    first: dict[str, Pair] = {}
    for pair in pairs:
        keys = keys_of(pair)
        if held.verdict(keys) == KEPT:
            first.setdefault(keys[0], pair)
    return first


@dataclass(frozen=True)
class Hint:
    """A held-out pair, and one like it that stays in the training text."""

    pair: Pair
    neighbour: Pair
    similarity: float  # of the two sources, 0 to 1


_SHORTEST, _LONGEST = 8, 40  # words of a source
_LOWEST, _HIGHEST = 0.8, 0.95  # similarity to the nearest neighbour
_MOST_SHARED = 0.02  # share of the sources that may have a word in common
_CANDIDATES, _BATCH = 6000, 200  # sources that are tried at most, and at once
_NEAREST = 60  # neighbours by words, of which the nearest by characters is found


def choose_hints(pairs: Iterable[Pair], held: HeldOutSentences, number: int) -> list[Hint]:
    """Pairs for translation with a hint: the nearest source in training is like, and not the same.

    Sources are tried in the order of their hashes. Words (TF-IDF) find the neighbours, the
    similarity of characters judges them. Raises UserError where there are fewer than ``number``.
    """
    fitting = [
        (source, pair)
        for source, pair in _first_of_each(pairs, held).items()
        if _SHORTEST <= len(pair[0].split()) <= _LONGEST
    ]
    pool = [pair for _, pair in fitting]
    order = sorted(range(len(pool)), key=lambda i: hashed(f"hint {fitting[i][0]}"))[:_CANDIDATES]
    hints: list[Hint] = []
    taken: set[int] = set()
    for index, near, similarity in _neighbours([source for source, _ in pool], order):
        if _LOWEST <= similarity <= _HIGHEST and not {index, near} & taken:
            hints.append(Hint(pool[index], pool[near], round(similarity, 4)))
            taken |= {index, near}
            if len(hints) == number:
                break
    else:
        raise UserError(f"--hints: found {len(hints)} pairs with a neighbour; ask for no more")
    return hints


def _neighbours(sources: Sequence[str], order: Sequence[int]) -> Iterator[tuple[int, int, float]]:
    """For sources in this order: the index, that of the nearest other source, their similarity."""
    if not (find_spec("rapidfuzz") and find_spec("sklearn")):
        raise not_installed("rapidfuzz and scikit-learn", "corpus")
    import numpy
    from rapidfuzz import fuzz
    from sklearn.feature_extraction.text import TfidfVectorizer

    # A word of many sources says little, and would make every source a neighbour of every other.
    vectorizer = TfidfVectorizer(token_pattern=r"\w+", max_df=_MOST_SHARED, dtype=numpy.float32)
    vectors = vectorizer.fit_transform(sources)
    by_word = vectors.T.tocsr()
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        products = (vectors[batch] @ by_word).tocsr()
        for row, index in enumerate(batch):
            span = slice(products.indptr[row], products.indptr[row + 1])
            nearest = numpy.argsort(-products.data[span])[:_NEAREST]
            found = [
                (fuzz.ratio(sources[index], sources[other]) / 100, int(other))
                for other in products.indices[span][nearest]
                if other != index
            ]
            if found:
                similarity, near = max(found)
                yield index, near, similarity


class RandomSplit:
    """Pairs taken from a training set to become its dev and test set, and the pairs to drop.

    For text without a test set of its own, where ``split_off`` would be too strict.
    """

    def __init__(self, valid: Collection[Pair], test: Collection[Pair]) -> None:
        self._waiting = {**dict.fromkeys(valid, "valid"), **dict.fromkeys(test, "test")}
        self._sources = {source for source, _ in self._waiting}
        self._targets = {target for _, target in self._waiting}

    @classmethod
    def choose(cls, pairs: Iterable[Pair], num_valid: int, num_test: int) -> RandomSplit:
        """Take ``num_valid`` and ``num_test`` different pairs, neither side of which is empty."""
        wanted = num_valid + num_test
        best, num_pairs = _smallest_distinct(pairs, wanted)
        if len(best) < wanted or wanted * 2 > num_pairs:
            raise UserError(
                f"cannot split {wanted} pairs off {num_pairs}: less than half would be left; "
                "ask for fewer with --split-valid and --split-test"
            )
        return cls(best[:num_valid], best[num_valid:])

    def place(self, pair: Pair) -> str | None:
        """ "train", "valid" or "test"; None for a pair that repeats a held-out sentence.

        To be asked once for each pair of the corpus, in order: a held-out pair has its place the
        first time only.
        """
        if pair in self._waiting:
            return self._waiting.pop(pair)
        if pair[0] in self._sources or pair[1] in self._targets:
            return None
        return "train"


def _smallest_distinct(pairs: Iterable[Pair], wanted: int) -> tuple[list[Pair], int]:
    """The ``wanted`` pairs of smallest hash, each once, by hash; and how many pairs there were."""
    heap: list[tuple[int, Pair]] = []  # largest hash first: hashes are negated
    members: set[Pair] = set()
    num_pairs = 0
    for num_pairs, pair in enumerate(pairs, 1):  # noqa: B007 - returned after the loop
        if pair in members or not (pair[0].strip() and pair[1].strip()):
            continue
        item = (-int.from_bytes(hashed("\t".join(pair))), pair)
        if len(heap) < wanted:
            heapq.heappush(heap, item)
            members.add(pair)
        elif item > heap[0]:
            members.remove(heapq.heapreplace(heap, item)[1])
            members.add(pair)
    return [pair for _, pair in sorted(heap, reverse=True)], num_pairs
