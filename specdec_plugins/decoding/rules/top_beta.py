"""SpecDec's tolerant acceptance: among the verifier's beta best, and within tau of the best."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.interfaces import (
    Draft,
    Guarantee,
    RowParams,
    RowRandom,
    Scores,
    Verdict,
)
from specdec_plugins.decoding.rules.base import RULES, at, leading_true


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """How many ids stand before each token when ids are sorted by falling logit.

    logits: [B, K, V]; tokens: [B, K] int64. Returns [B, K] int64, 0 for the argmax. Equal logits
    stand in the order of their ids, as argmax breaks ties, so rank 0 is exactly the argmax.
    """
    own = logits.gather(-1, tokens[..., None])  # [B, K, 1]
    ids = torch.arange(logits.shape[-1], device=logits.device)
    before = (logits > own) | ((logits == own) & (ids < tokens[..., None]))
    return before.sum(-1)


@RULES.register("top_beta")
@dataclass(frozen=True)
class TopBeta:
    """Accept a draft token while its rank is below beta and its logit at most tau under the best.

    Xia et al. 2023 (arXiv 2203.16487), section 3.3. A gap of logits equals a gap of
    log-probabilities; the boundary is kept. beta = 1 is the greedy output whatever tau.
    """

    samples: bool = False

    def guarantee(self, beta: int) -> Guarantee:
        return Guarantee.GREEDY if beta == 1 else Guarantee.NONE

    def judge(
        self, draft: Draft, scores: Scores, params: RowParams, random: RowRandom, first: Tensor
    ) -> Verdict:
        logits = scores.logits[:, :-1]  # [B, K, V], row i judges draft token i
        best_logits, best = scores.logits.max(-1)  # [B, K+1] each
        # Junk behind a draft's end may be no token id at all.
        tokens = draft.tokens.masked_fill(~draft.mask, 0)
        gap = best_logits[:, :-1] - logits.gather(-1, tokens[..., None])[..., 0]  # [B, K]
        tolerated = (rank(logits, tokens) < params.beta[:, None]) & (gap <= params.tau[:, None])
        # The argmax itself is always kept; with beta = 1 nothing else is.
        num_accepted = leading_true((tolerated | (tokens == best[:, :-1])) & draft.mask)
        return Verdict(num_accepted, at(best, num_accepted))
