"""Greedy and sampling requests in one batch."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.types import (
    AcceptanceRule,
    Draft,
    Guarantee,
    RowParams,
    RowRandom,
    Scores,
    Verdict,
)

GREEDY_TOP_K = 1  # a row that may only take the best token is greedy


class MixedRule:
    """Each row by its own rule: the tolerant one where top_k is 1, else the sampling one.

    Sampling from the single best token is greedy decoding, so top_k = 1 is no reserved value but
    says what it means.

    Drafters beside it are built for the greedy rule, and draft their best token for every row: the
    sampling rule takes that as a certain draft, and the law of what is kept is the verifier's all
    the same. One that is built to sample drafts the same for greedy rows, but sorts the vocabulary
    for each of their tokens.
    """

    samples = True

    def __init__(self, greedy: AcceptanceRule, sampling: AcceptanceRule) -> None:
        self.greedy = greedy
        self.sampling = sampling
        self._seen: tuple[Tensor, bool, bool] | None = None

    def guarantee(self, beta: int) -> Guarantee:
        """Of a greedy row; sampling rows have that of their own rule."""
        return self.greedy.guarantee(beta)

    def judge(
        self, draft: Draft, scores: Scores, params: RowParams, random: RowRandom, first: Tensor
    ) -> Verdict:
        any_greedy, any_sampling = self._present(params.top_k)
        if not any_sampling:
            return self.greedy.judge(draft, scores, params, random, first)
        drawn = self.sampling.judge(draft, scores, params, random, first)
        if not any_greedy:
            return drawn
        best = self.greedy.judge(draft, scores, params, random, first)
        is_greedy = params.top_k == GREEDY_TOP_K
        return Verdict(
            torch.where(is_greedy, best.num_accepted, drawn.num_accepted),
            torch.where(is_greedy, best.next_tokens, drawn.next_tokens),
        )

    def _present(self, top_k: Tensor) -> tuple[bool, bool]:
        """Which kinds there are. Rows change seldom, so the device is not asked every round."""
        if self._seen is None or self._seen[0] is not top_k:
            is_greedy = (top_k == GREEDY_TOP_K).tolist()
            self._seen = (top_k, any(is_greedy), not all(is_greedy))
        return self._seen[1], self._seen[2]
