"""The loss of a block as a pure function of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class BlockLoss(NamedTuple):
    """Losses in nats; [] after a mean, [N] before it."""

    loss: Tensor  # what is minimised: cross-entropy with label smoothing
    nll: Tensor  # the plain cross-entropy


def block_loss(
    logits: Tensor,  # [N, V]
    targets: Tensor,  # [N] int64
    label_smoothing: float,  # share of the probability spread over all V types, 0 .. 1
    reduce: bool = True,
) -> BlockLoss:
    """Label-smoothed cross-entropy of scored positions, averaged unless ``reduce`` is off.

    Computed in float32 or better. Without a scored position (everything was revealed)
    the mean is a zero that still has a gradient, so that every worker takes part in the update.
    """
    precision = torch.promote_types(logits.dtype, torch.float32)
    log_probs = functional.log_softmax(logits, dim=-1, dtype=precision)  # [N, V]
    nll = -log_probs.gather(1, targets[:, None]).squeeze(1)  # [N]
    loss = nll
    if label_smoothing > 0:
        loss = (1 - label_smoothing) * nll - label_smoothing * log_probs.mean(dim=-1)  # [N]
    if not reduce:
        return BlockLoss(loss, nll)
    if targets.numel() == 0:
        return BlockLoss(loss.sum(), nll.sum())
    return BlockLoss(loss.mean(), nll.mean())
