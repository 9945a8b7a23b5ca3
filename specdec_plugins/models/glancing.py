"""Glancing (Qian et al. 2021): reveal answers in proportion to the errors, score the rest.

Pure functions of tensors; the model supplies the predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Glance:
    """How much to reveal in one update, and the randomness that chooses where."""

    context_p: float  # answers to reveal, as a share of the wrong predictions, 0 .. 1
    generator: torch.Generator  # on the device of the tokens


class Glanced(NamedTuple):
    """A block after glancing."""

    input_tokens: Tensor  # [B, W] int64: some masks replaced by their answers
    scored_mask: Tensor  # [B, W] bool: positions still masked


def context_share(update: int, start_p: float, minus_p: float, total_up: int) -> float:
    """The share to reveal at an update: from ``start_p`` down to ``start_p - minus_p``, linearly.

    ``total_up`` is the number of updates until the lowest share, which then stays.
    """
    return start_p - minus_p * min(1.0, update / total_up)


def glance(
    input_tokens: Tensor,  # [B, W] int64
    target_tokens: Tensor,  # [B, W] int64
    scored_mask: Tensor,  # [B, W] bool: masked, with an answer
    right_mask: Tensor,  # [B, W] bool: predicted right; read only where scored_mask is set
    settings: Glance,
) -> Glanced:
    """Reveal ``floor(context_p * (masked - right))`` of each row's masked positions at random.

    Every masked position is equally likely to be revealed, whether it was predicted right or
    wrong; only their number depends on the mistakes.
    """
    num_wrong = (scored_mask & ~right_mask).sum(dim=1)  # [B]
    # A little above the product: 0.32 * 25 must count as 8, not as 7.999...
    num_revealed = torch.floor(num_wrong.double() * settings.context_p + 1e-9)  # [B]
    order = torch.rand(
        scored_mask.shape, generator=settings.generator, device=scored_mask.device
    )  # [B, W]
    order = order.masked_fill(~scored_mask, 2.0)  # after every number in [0, 1)
    sorted_columns = order.argsort(dim=1)  # [B, W]
    first = torch.arange(order.size(1), device=order.device) < num_revealed[:, None]  # [B, W]
    revealed = torch.zeros_like(scored_mask).scatter(1, sorted_columns, first)  # [B, W]
    return Glanced(
        input_tokens=torch.where(revealed, target_tokens, input_tokens),
        scored_mask=scored_mask & ~revealed,
    )
