"""Sample exactly as the verifier would, from drafts of any quality."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specdec_plugins.decoding.contract import RULES, Case, Draft, Guarantee, Stream, Verdict
from specdec_plugins.decoding.networks.cpu.ops import at, leading_true
from specdec_plugins.decoding.sampling import sample, warp


@RULES.register("speculative_sampling")
@dataclass(frozen=True)
class SpeculativeSampling:
    """Accept token x with probability min(1, p(x) / q(x)); else draw from norm(max(0, p - q)).

    Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), Algorithm 1. p is the verifier's
    distribution after temperature, top-k and top-p; q is the one that the drafter drew from,
    one-hot for a deterministic draft. After a full acceptance the bonus is drawn from p.
    """

    samples: bool = True

    def guarantee(self, beta: int) -> Guarantee:
        return Guarantee.DISTRIBUTION

    def judge(self, case: Case) -> Verdict:
        draft, random, num_drafted = case.draft, case.random, case.draft.tokens.shape[1]
        p = warp(case.scores.logits, case.params)  # [B, K+1, V]
        tokens = draft.tokens.masked_fill(~draft.mask, 0)[..., None]  # junk may not be a token id
        p_drafted = p[:, :-1].gather(-1, tokens)[..., 0]  # [B, K]
        q_drafted = 1.0 if draft.probs is None else draft.probs.gather(-1, tokens)[..., 0]
        # u < p / q without the division; strict, so that what p excludes is never accepted.
        kept = random.uniform(case.first, num_drafted, Stream.ACCEPT) * q_drafted < p_drafted
        num_accepted = leading_true(kept & draft.mask)

        p_next = at(p, num_accepted)  # [B, V]
        residual = (p_next - rejected_distribution(draft, num_accepted, p_next)).clamp(min=0)
        # Where p = q up to rounding, the residual is zero, and p itself is as good.
        weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_next)
        uniform = random.uniform(case.first + num_accepted, 1, Stream.NEXT)[:, 0]
        return Verdict(num_accepted, sample(weights, uniform))


def rejected_distribution(draft: Draft, num_accepted: Tensor, like: Tensor) -> Tensor:
    """q of each row's rejected token, zero where none was rejected: [B, V], as `like`."""
    num_drafted = draft.tokens.shape[1]
    if num_drafted == 0:
        return torch.zeros_like(like)
    was_rejected = num_accepted < draft.lengths
    index = num_accepted.clamp(max=num_drafted - 1)
    if draft.probs is None:
        token = at(draft.tokens, index).where(was_rejected, 0)
        q = one_hot(token, like.shape[-1]).to(like)
    else:
        q = at(draft.probs, index).to(like)
    # Multiplying by the mask would let a NaN in junk through.
    return torch.where(was_rejected[:, None], q, 0.0)
