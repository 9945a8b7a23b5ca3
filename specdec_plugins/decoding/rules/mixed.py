"""Greedy and sampling rows in one batch, as a server has them; no rule that a user names."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.rules.speculative_sampling import SpeculativeSampling
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.types import AcceptanceRule, Case, Guarantee, Verdict

GREEDY_TOP_K = 1  # a row that may only take the best token is greedy


@dataclass(frozen=True)
class MixedRule:
    """Each row by its own rule: a greedy one where top_k is 1, else the sampling one.

    Sampling from the single best token is greedy decoding, so top_k = 1 is no reserved value but
    says what it means. The tolerant greedy rule judges where some row has a beta above 1; where
    none has, the exact one says the same in less time.

    Drafters beside it are built for the greedy rules, and draft their best token for every row: the
    sampling rule takes that as a certain draft, and what is kept has the verifier's distribution
    all the same.
    """

    exact: AcceptanceRule = Exact()
    tolerant: AcceptanceRule = TopBeta()
    sampling: AcceptanceRule = SpeculativeSampling()
    samples: bool = True

    def guarantee(self, beta: int) -> Guarantee:
        """Of a greedy row; sampling rows have that of their own rule."""
        return self.tolerant.guarantee(beta)

    def judge(self, case: Case) -> Verdict:
        params = case.params
        num_greedy = sum(asked.top_k == GREEDY_TOP_K for asked in params.requested)
        greedy = self.exact if params.all_greedy(samples=False) else self.tolerant
        if num_greedy == len(params.requested):
            return greedy.judge(case)
        drawn = self.sampling.judge(case)
        if not num_greedy:
            return drawn
        best = greedy.judge(case)
        is_greedy = params.top_k == GREEDY_TOP_K
        return Verdict(
            torch.where(is_greedy, best.num_accepted, drawn.num_accepted),
            torch.where(is_greedy, best.next_tokens, drawn.next_tokens),
        )
