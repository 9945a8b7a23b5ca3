"""Greedy and sampling rows in one batch, as in a server; users cannot select it by name."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specdec_plugins.decoding.contract import Case, Guarantee, Verdict
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.rules.speculative_sampling import SpeculativeSampling
from specdec_plugins.decoding.rules.top_beta import TopBeta

GREEDY_TOP_K = 1  # with only the best token left, a row is greedy


@dataclass(frozen=True)
class MixedRule:
    """Judges each row by its own rule: a greedy one where top_k is 1, else the sampling one.

    Sampling from the single best token is greedy decoding, so top_k = 1 keeps its usual meaning.
    The tolerant greedy rule judges if some row has a beta above 1; otherwise the exact rule gives
    the same verdict in less time.

    Its drafters are built for the greedy rules, and draft their best token for every row. The
    sampling rule takes q as one-hot, so the output still has the verifier's distribution.
    """

    exact: Exact = Exact()
    tolerant: TopBeta = TopBeta()
    sampling: SpeculativeSampling = SpeculativeSampling()
    samples: bool = True

    def guarantee(self, beta: int) -> Guarantee:
        """Of a greedy row; a sampling row has the guarantee of its own rule."""
        return self.tolerant.guarantee(beta)

    def judge(self, case: Case) -> Verdict:
        params, greedy, num_greedy = case.params, *self._greedy(case)
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

    def _greedy(self, case: Case) -> tuple[Exact | TopBeta, int]:
        """The rule for greedy rows, and the number of these rows."""
        num_greedy = sum(asked.top_k == GREEDY_TOP_K for asked in case.params.requested)
        is_exact = case.params.all_greedy(samples=False)
        return self.exact if is_exact else self.tolerant, num_greedy
