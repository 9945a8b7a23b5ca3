"""Phrases that a translation must contain: how far each hypothesis is, and which may go on.

Lexically constrained beam search with dynamic beam allocation (Post and Vilar 2018), over a trie of
the phrases (Hu et al. 2019), with the definitions of fairseq's unordered constraints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Progress(NamedTuple):
    """How much of the phrases a text contains."""

    node: int  # where the text's last tokens are in the trie; 0 = in no phrase
    begun: tuple[int, ...]  # of each node, how often its token counts for a phrase
    done: tuple[int, ...]  # of each node, how many phrases that end there are complete and left
    joins: bool = False  # the last token's word goes on, so no phrase begins after it

    @property
    def num_tokens(self) -> int:
        """Tokens that count; the first node, the root, has none."""
        return sum(self.begun)


class Phrases:
    """The phrases of one sentence, each to be contained once, in any order."""

    def __init__(
        self, phrases: Sequence[Sequence[int]], joining: Collection[int] = frozenset()
    ) -> None:
        """phrases: none is empty; one that is there twice must be contained twice.

        joining: tokens whose word goes on with the next token. fairseq knows none.
        """
        self._joining = joining
        self._next: list[dict[int, int]] = [{}]  # of each node: its children by their tokens
        self._before, self._num_ending, self._num_through = [0], [0], [0]
        self._num_phrases = len(phrases)
        for phrase in phrases:
            node = 0
            for token in phrase:
                node = self._child(node, token)
                self._num_through[node] += 1
            self._num_ending[node] += 1
        none = (0,) * len(self._next)
        self.start = Progress(0, none, none)
        self._known: dict[tuple[Progress, int], Progress] = {}

    def _child(self, node: int, token: int) -> int:
        if token not in self._next[node]:
            self._next[node][token] = len(self._next)
            self._next.append({})
            self._before.append(node)
            self._num_ending.append(0)
            self._num_through.append(0)
        return self._next[node][token]

    def is_whole(self, progress: Progress) -> bool:
        """True if the text contains all phrases."""
        node, _, done, _ = progress
        return sum(done) + (done[node] < self._num_ending[node]) == self._num_phrases

    def tokens_after(self, progress: Progress) -> set[int]:
        """The tokens that begin a phrase, or go on with the one at the end of the text."""
        return {*(() if progress.joins else self._next[0]), *self._next[progress.node]}

    def after(self, progress: Progress, token: int) -> Progress:
        """The progress of a text and one more token."""
        key = progress, token
        if key not in self._known:
            self._known[key] = self._after(*key)._replace(joins=token in self._joining)
        return self._known[key]

    def _after(self, progress: Progress, token: int) -> Progress:
        node, begun, done = progress[0], [*progress[1]], [*progress[2]]
        child = self._open(self._next[node].get(token), begun)
        if child and not (node == 0 and progress.joins):
            begun[child] += 1
            return Progress(child, (*begun,), progress.done)
        child = 0 if progress.joins else self._open(self._next[0].get(token), begun)
        begun[child] += child > 0
        # A phrase that ended on the way is complete; what came after it, or all, does not count.
        while node and done[node] == self._num_ending[node]:
            begun[node] -= 1
            node = self._before[node]
        done[node] += node > 0
        return Progress(child, (*begun,), (*done,))

    def _open(self, child: int | None, begun: Sequence[int]) -> int:
        """The child, unless all its phrases have been begun; else 0."""
        return child if child and begun[child] < self._num_through[child] else 0


def allotted(ends: Sequence[Progress], num: int) -> list[int]:
    """Which candidates go on, given where each would be; they are sorted, the best first.

    Those whose texts contain equally many of the required tokens compete among themselves: the best
    of each such bank come first, those with the most tokens ahead, then the second of each.
    """
    in_bank = dict[int, int]()
    order = list[tuple[int, int, int]]()
    for index, progress in enumerate(ends):
        bank = progress.num_tokens
        rank = in_bank[bank] = in_bank.get(bank, -1) + 1
        order.append((rank, -bank, index))
    return [index for _, _, index in sorted(order)[:num]]
