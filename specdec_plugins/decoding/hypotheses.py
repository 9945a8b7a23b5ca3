"""The hypotheses of one sentence in a beam search: which go on, which end, and when it is over.

Plain Python over the few best candidates of each step, so that a sentence's result depends on it
alone, and both rules of finishing can be read beside those that they reproduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from specdec_plugins.decoding.requests import BeamParams, FinishReason, Hypothesis, Request
from specdec_plugins.decoding.required import Phrases, Progress, allotted

# A hypothesis, by its number, and a token that may follow it: the log-probability of all tokens,
# the number, and the token. A tuple, as there are dozens in every step.
Candidate = tuple[float, int, int]


class Open(NamedTuple):
    """A hypothesis that goes on: another one and a token. `place` is the token's in the cache."""

    before: Open | None  # None = the start token and what is forced
    token: int
    position: int  # of the token, 0 for the start token
    total: float  # log-probability of all tokens
    place: int
    seen: int  # the places of all tokens, as bits
    progress: Progress | None = None  # in the phrases that it must contain


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
        texts = enumerate([start, *request.forced_ids])
        # What the verifier reads next; the last ones are the ends of the open hypotheses.
        self.feeds = [Open(None, token, i, 0.0, i, (1 << i + 1) - 1) for i, token in texts]
        self.open = self.feeds[-1:]
        self.phrases: Phrases | None = None
        if request.required_ids:
            self.phrases = Phrases(request.required_ids, request.joining_ids)
            progress = self.phrases.start
            for token in request.forced_ids:
                progress = self.phrases.after(progress, token)
            self.open = self.feeds[-1:] = [self.open[0]._replace(progress=progress)]
        self.length = len(request.forced_ids)  # of each open hypothesis
        self._forced_scores = [0.0] * self.length
        # transformers scores a hypothesis by what follows the text that the caller forces.
        is_theirs = self.beam.finishing != "fairseq"
        self._uncounted = max(0, self.length + 1 - num_opening) if is_theirs else 0

    @property
    def counts_forced(self) -> bool:
        """True if a score counts the forced tokens, as fairseq does; see `count_forced`."""
        return self.steps == 0 and len(self.feeds) > 1 and self.beam.finishing == "fairseq"

    @property
    def must_end(self) -> bool:
        """True if the next token is the last, and must be the end: fairseq cuts no hypothesis."""
        return self.length + 1 >= self._max_len and self.beam.finishing == "fairseq"

    @property
    def min_len(self) -> int:
        """Tokens before which the end is banned."""
        return 0 if self.must_end else self.request.params.min_len

    def lacks_phrases(self, one: Open) -> bool:
        """Whether an open hypothesis may not end yet. At the length limit `allotted` decides."""
        phrases, progress = self.phrases, one.progress
        is_last = self.length + 1 >= self._max_len
        return not (phrases is None or progress is None or is_last or phrases.is_whole(progress))

    def wanted(self, one: Open) -> set[int]:
        """Tokens after an open hypothesis that are candidates whatever their scores."""
        if self.phrases is None or one.progress is None:
            return set()
        return self.phrases.tokens_after(one.progress)

    def allotted(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The 2 * size that go on or end, of candidates, best first: see `required.allotted`.

        At the length limit those with all phrases or, if no text has them, all candidates.
        """
        phrases = self.phrases
        assert phrases is not None
        ends = [
            phrases.after(self.open[parent].progress or phrases.start, token)
            for _, parent, token in candidates
        ]
        if self.length + 1 >= self._max_len:
            whole = [i for i, progress in enumerate(ends) if phrases.is_whole(progress)]
            if whole or self._ended:
                candidates, ends = [candidates[i] for i in whole], [ends[i] for i in whole]
        return [candidates[i] for i in allotted(ends, 2 * self.beam.size)]

    def count_forced(self, scores: list[float]) -> None:
        """Begin with these log-probabilities of the forced tokens."""
        self._forced_scores = scores
        [*_, total] = accumulate(scores)  # not `sum`, which newer versions of Python compensate
        self.open = [self.open[0]._replace(total=total)]

    def text(self, one: Open) -> tuple[list[int], list[float]]:
        """The tokens of an open hypothesis, forced ones included, and their log-probabilities."""
        ids, scores = list[int](), list[float]()
        while one.before is not None:
            ids.append(one.token)
            scores.append(one.total - one.before.total)
            one = one.before
        return [*self.request.forced_ids, *ids[::-1]], [*self._forced_scores, *scores[::-1]]

    def advance(self, candidates: Sequence[Candidate] | None) -> None:
        """Take one step: `candidates` are the 2 * size best, or all that there are, best first.

        An end counts among the `size` best only; so do others at the length limit. None: the
        verifier's scores are not numbers, which ends the search without a result.
        """
        self.steps += 1
        self.length += 1
        if candidates is None:
            self.is_over, self._ended = True, []
            return
        is_last, size = self.length >= self._max_len, self.beam.size
        ended, going = list[Hypothesis](), list[Candidate]()
        for rank, candidate in enumerate(candidates):
            if candidate[2] == self._eos or is_last:
                if rank < size:
                    ended.append(self._hypothesis(*candidate))
            elif len(going) < size:
                going.append(candidate)
        if ended:
            self._end(ended)
        self.is_over = is_last or not going or self._is_settled(going)
        if not self.is_over:
            self._go_on(going)

    def _hypothesis(self, total: float, parent: int, token: int) -> Hypothesis:
        ids, scores = self.text(self.open[parent])
        scores.append(total - self.open[parent].total)
        return Hypothesis([*ids, token], total / self._norm(self.length), scores)

    def _end(self, ended: list[Hypothesis]) -> None:
        """Keep `size` of those that have ended: for fairseq the first, else the best."""
        if self.beam.finishing == "fairseq":
            ended = ended[: self.beam.size - len(self._ended)]
        both = sorted(self._ended + ended, key=lambda hypothesis: -hypothesis.score)
        self._ended = both[: self.beam.size]

    def _is_settled(self, going: Sequence[Candidate]) -> bool:
        """Whether nothing better can come of those that may go on."""
        if len(self._ended) < self.beam.size:
            return False
        if self.beam.finishing in ("fairseq", "first"):
            return True
        looks_ahead = self.beam.finishing == "never" and self.beam.length_penalty > 0
        length = self._max_len if looks_ahead else self.length
        return max(going)[0] / self._norm(length) <= self._ended[-1].score

    def _norm(self, length: int) -> float:
        return math.pow(length - self._uncounted, self.beam.length_penalty)

    def _go_on(self, going: Sequence[Candidate]) -> None:
        """Open these; each token gets the lowest place that no hypothesis sees.

        With one hypothesis the places are those of greedy decoding, in order.
        """
        used, before, self.open = 0, self.open, []
        for _, parent, _ in going:
            used |= before[parent].seen
        for total, parent, token in going:
            free, one = ~used & (used + 1), before[parent]
            used |= free
            seen, progress = one.seen | free, one.progress
            if self.phrases is not None and progress is not None:
                progress = self.phrases.after(progress, token)
            place = free.bit_length() - 1
            self.open.append(Open(one, token, self.length, total, place, seen, progress))
        self.feeds = self.open

    def result(self) -> list[Hypothesis]:
        """The best hypotheses, best first; none if every continuation was banned."""
        return self._ended[: self.beam.num_best]


def reason_of(request: Request, hypothesis: Hypothesis, eos: int, forces_end: bool) -> FinishReason:
    """Why a hypothesis ended.

    forces_end: at the length limit the model's constraints force the end.
    """
    beam = request.params.beam or BeamParams(size=1)
    is_forced = forces_end or beam.finishing == "fairseq"
    is_full = len(hypothesis.token_ids) >= request.params.max_len
    ended = hypothesis.token_ids[-1] == eos and not (is_full and is_forced)
    return FinishReason.EOS if ended else FinishReason.LENGTH
