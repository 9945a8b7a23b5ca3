"""SpecDec's tolerant acceptance: among the verifier's beta best, and within tau of the best."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad as pad_axes

from specdec_plugins.decoding.contract import RULES, Case, Guarantee, Verdict
from specdec_plugins.decoding.networks.cpu.ops import at, best, leading_true, rank


@RULES.register("top_beta")
@dataclass(frozen=True)
class TopBeta:
    """Accept a draft token while its rank is below beta and its logit at most tau below the best.

    Xia et al. 2023 (arXiv 2203.16487), section 3.3. A gap of logits equals a gap of
    log-probabilities; the boundary is accepted. beta = 1 gives the greedy output for any tau.
    """

    samples: bool = False

    def guarantee(self, beta: int) -> Guarantee:
        return Guarantee.GREEDY if beta == 1 else Guarantee.NONE

    def judge(self, case: Case) -> Verdict:
        draft, logits, params = case.draft, case.scores.logits, case.params
        # logits [B, K+1, V], row i judges draft token i
        own = best(logits)  # [B, K+1]
        # Junk after a draft's end may not be a token id; the last row judges nothing.
        tokens = pad_axes(draft.tokens.masked_fill(~draft.mask, 0), (0, 1))
        picked = logits.gather(-1, torch.stack([own, tokens], -1))
        gap = picked[..., 0] - picked[..., 1]  # [B, K+1]
        # A banned token is infinitely far below, out of reach of any tau.
        near = (gap <= params.tau[:, None]) & (gap < torch.inf)
        tolerated = (rank(logits, tokens) < params.beta[:, None]) & near
        # The argmax itself is always kept; with beta = 1 nothing else is.
        kept = (tolerated | (tokens == own))[:, :-1]
        num_accepted = leading_true(kept & draft.mask)
        return Verdict(num_accepted, at(own, num_accepted))
