"""The hypotheses of one sentence in a beam search: which go on, which end, and when it is over.

Plain Python over the few best candidates of each step, so that a sentence's result depends on it
alone, and both rules of finishing can be read beside those that they reproduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specdec_plugins.decoding.types import BeamParams, FinishReason, Hypothesis, Request


class Candidate(NamedTuple):
    """A hypothesis and a token that may follow it."""

    total: float  # log-probability of all tokens
    parent: int  # of the open hypotheses
    token: int


class Feed(NamedTuple):
    """A token for the verifier to read; see `Branching.score_at`."""

    token: int
    position: int
    place: int
    seen: int  # the places that it sees, as bits


@dataclass(frozen=True)
class Open:
    """A hypothesis that goes on."""

    token_ids: list[int]  # forced prefix included, start token not
    token_scores: list[float]
    total: float
    seen: int  # the places of its tokens in the cache, as bits


class Search:
    """The search for one sentence's translation."""

    def __init__(self, request: Request, start: int, eos: int, num_opening: int = 1) -> None:
        """num_opening: tokens that a model of transformers begins with: start token, language."""
        self.request = request
        self.beam = request.params.beam or BeamParams(size=1)
        self.steps = 0
        self.is_over = False
        self._eos, self._max_len = eos, request.params.max_len
        self._ended: list[Hypothesis] = []
        forced = request.forced_ids
        self.open = [Open(list(forced), [0.0] * len(forced), 0.0, (1 << len(forced) + 1) - 1)]
        texts = enumerate([start, *forced])
        self._next = [Feed(token, i, i, (1 << i + 1) - 1) for i, token in texts]
        # transformers scores a hypothesis by what follows the text that the caller forces.
        is_theirs = self.beam.finishing != "fairseq"
        self._uncounted = max(0, len(forced) + 1 - num_opening) if is_theirs else 0

    @property
    def feeds(self) -> list[Feed]:
        """What the verifier reads next; the last ones are the ends of the open hypotheses."""
        return self._next

    @property
    def counts_forced(self) -> bool:
        """True if a score counts the forced tokens, as fairseq does; see `count_forced`."""
        return self.steps == 0 and len(self._next) > 1 and self.beam.finishing == "fairseq"

    @property
    def length(self) -> int:
        """Tokens of each open hypothesis."""
        return len(self.open[0].token_ids)

    @property
    def must_end(self) -> bool:
        """True if the next token is the last, and must be the end: fairseq cuts no hypothesis."""
        return self.length + 1 >= self._max_len and self.beam.finishing == "fairseq"

    @property
    def min_len(self) -> int:
        """Tokens before which the end is banned."""
        return 0 if self.must_end else self.request.params.min_len

    def count_forced(self, scores: list[float]) -> None:
        """Begin with these log-probabilities of the forced tokens."""
        [first] = self.open
        self.open = [Open(first.token_ids, scores, sum(scores), first.seen)]

    def advance(self, candidates: Sequence[Candidate] | None) -> None:
        """Take one step: `candidates` are the 2 * size best, or all that there are, best first.

        An end counts among the `size` best only; so do others at the length limit. None: the
        verifier's scores are not numbers, which ends the search without a result.
        """
        self.steps += 1
        if candidates is None:
            self.is_over, self._ended = True, []
            return
        is_last, opened = self.length + 1 >= self._max_len, list[Open]()
        ended = list[Hypothesis]()
        for rank, (total, parent, token) in enumerate(candidates):
            before = self.open[parent]
            scores = [*before.token_scores, total - before.total]
            if token == self._eos or is_last:
                if rank < self.beam.size:
                    score = total / self._norm(len(scores))
                    ended.append(Hypothesis([*before.token_ids, token], score, scores))
            elif len(opened) < self.beam.size:
                opened.append(Open([*before.token_ids, token], scores, total, before.seen))
        self._end(ended)
        self.is_over = is_last or not opened or self._is_settled(opened[0])
        if not self.is_over:
            self._place(opened)

    def _end(self, ended: list[Hypothesis]) -> None:
        """Keep `size` of those that have ended: for fairseq the first, else the best."""
        if self.beam.finishing == "fairseq":
            ended = ended[: self.beam.size - len(self._ended)]
        both = sorted(self._ended + ended, key=lambda hypothesis: -hypothesis.score)
        self._ended = both[: self.beam.size]

    def _is_settled(self, best: Open) -> bool:
        if len(self._ended) < self.beam.size:
            return False
        if self.beam.finishing in ("fairseq", "first"):
            return True
        looks_ahead = self.beam.finishing == "never" and self.beam.length_penalty > 0
        length = self._max_len if looks_ahead else len(best.token_ids)
        return best.total / self._norm(length) <= self._ended[-1].score

    def _norm(self, length: int) -> float:
        return math.pow(length - self._uncounted, self.beam.length_penalty)

    def _place(self, opened: Sequence[Open]) -> None:
        """Give the last token of each open hypothesis a place that no other one sees.

        The lowest are taken: with one hypothesis they are those of greedy decoding, in order.
        """
        used, self.open, self._next = 0, [], []
        for one in opened:
            used |= one.seen
        for one in opened:
            free = ~used & (used + 1)
            used |= free
            self.open.append(Open(one.token_ids, one.token_scores, one.total, one.seen | free))
            feed = Feed(one.token_ids[-1], len(one.token_ids), free.bit_length() - 1, 0)
            self._next.append(feed._replace(seen=one.seen | free))

    def result(self) -> list[Hypothesis]:
        """The best hypotheses, best first; none if every continuation was banned."""
        return self._ended[: self.beam.num_best]

    def reason(self, hypothesis: Hypothesis, forces_end: bool) -> FinishReason:
        """Why it ended. forces_end: at the length limit the model's constraints force the end."""
        is_forced = forces_end or self.beam.finishing == "fairseq"
        is_full = len(hypothesis.token_ids) >= self._max_len
        ended = hypothesis.token_ids[-1] == self._eos and not (is_full and is_forced)
        return FinishReason.EOS if ended else FinishReason.LENGTH
