"""Which training pairs are kept, and which are held out. Test sets never pass through here."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import UserError


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


class HeldOut:
    """Pairs taken from a training set to become its dev and test set, and the pairs to drop.

    The choice depends on the sentences alone (the smallest hashes), not on their order, the
    platform or a random state, so adding a file to the corpus barely changes it.
    """

    def __init__(self, valid: Collection[Pair], test: Collection[Pair]) -> None:
        self._waiting = {**dict.fromkeys(valid, "valid"), **dict.fromkeys(test, "test")}
        self._sources = {source for source, _ in self._waiting}
        self._targets = {target for _, target in self._waiting}

    @classmethod
    def choose(cls, pairs: Iterable[Pair], num_valid: int, num_test: int) -> HeldOut:
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


def _key(pair: Pair) -> bytes:
    return hashlib.blake2b("\t".join(pair).encode(), digest_size=16).digest()


def _smallest_distinct(pairs: Iterable[Pair], wanted: int) -> tuple[list[Pair], int]:
    """The ``wanted`` pairs of smallest hash, each once, by hash; and how many pairs there were."""
    heap: list[tuple[int, Pair]] = []  # largest hash first: hashes are negated
    members: set[Pair] = set()
    num_pairs = 0
    for num_pairs, pair in enumerate(pairs, 1):  # noqa: B007 - returned after the loop
        if pair in members or not (pair[0].strip() and pair[1].strip()):
            continue
        item = (-int.from_bytes(_key(pair)), pair)
        if len(heap) < wanted:
            heapq.heappush(heap, item)
            members.add(pair)
        elif item > heap[0]:
            members.remove(heapq.heapreplace(heap, item)[1])
            members.add(pair)
    return [pair for _, pair in sorted(heap, reverse=True)], num_pairs
