"""bfloat16 on a CPU: three operations that torch computes slowly there, in quicker forms.

Results differ from torch's by rounding alone; dropout draws other masks, from torch's generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# Rows of logits whose loss and gradient are computed while they are in the cache.
_ROWS = 256

_compute_loss = LabelSmoothedCrossEntropyCriterion.compute_loss


@contextmanager
def quick_bfloat16() -> Iterator[None]:
    """Whatever is trained meanwhile uses these operations."""
    with ExitStack() as stack:
        # The fused attention takes twice as long as separate products, forward and backward.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_replaced(FairseqDropout, "forward", dropout))
        criterion = LabelSmoothedCrossEntropyCriterion
        stack.enter_context(_replaced(criterion, "compute_loss", compute_loss))
        yield


@contextmanager
def _replaced(owner: type, name: str, method: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- dropout --------------------------------------------------------------------------------------


def dropout(module: FairseqDropout, x: Tensor, inplace: bool = False) -> Tensor:
    """FairseqDropout.forward. x: [*], of any dtype; its result has that shape and dtype."""
    if module.p > 0 and (module.training or module.apply_during_inference):
        return x * _mask(x, module.p)
    return x


def _mask(x: Tensor, p: float) -> Tensor:
    """Zeros with probability p, to within 1/512, and else what keeps the mean; shaped as x.

    A byte of the generator's output decides on an element; torch draws a float64 for it.
    """
    size = x.numel()
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=x.device)
    drawn = words.random_(-(2**63), None).view(torch.uint8)[:size].view(x.shape)
    limit = round(p * 256)
    return (drawn >= limit).to(x.dtype).mul_(256 / (256 - limit))


# --- the loss -------------------------------------------------------------------------------------


def compute_loss(
    criterion: LabelSmoothedCrossEntropyCriterion,
    model: Any,
    net_output: Any,
    sample: Any,
    reduce: bool = True,
) -> tuple[Tensor, Tensor]:
    """LabelSmoothedCrossEntropyCriterion.compute_loss: the smoothed loss, and the one without."""
    if not reduce or criterion.ignore_prefix_size > 0:
        return _compute_loss(criterion, model, net_output, sample, reduce)
    logits, targets = net_output[0], model.get_targets(sample, net_output)
    smoothed, plain = SmoothedLoss.apply(
        logits.flatten(0, 1), targets.flatten(), criterion.eps, criterion.padding_idx
    )
    return smoothed, plain


class SmoothedLoss(torch.autograd.Function):
    """Cross-entropy with label smoothing (Szegedy et al. 2016, section 7), and its gradient.

    The target's probability is 1 - eps, the other V - 1 symbols share eps. The gradient, the
    distribution less that one, is computed with the loss, a few rows at a time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,  # [N, V]
        targets: Tensor,  # [N]
        eps: float,
        pad: int,  # rows with this target do not count
    ) -> tuple[Tensor, Tensor]:  # sums over the rows, [] each, float32: smoothed, and not
        share = eps / (logits.size(1) - 1)
        gradient = torch.empty_like(logits)
        smoothed = plain = logits.new_zeros((), dtype=torch.float32)
        parts = zip(*(x.split(_ROWS) for x in (logits, targets, gradient)), strict=True)
        for rows, wanted, written in parts:
            counts = (wanted != pad).float()  # [n]
            at = wanted.unsqueeze(1)
            log_p = rows.float().log_softmax(1)  # [n, V]
            right = log_p.gather(1, at).squeeze(1)  # [n]
            plain = plain - (right * counts).sum()
            mixed = (1 - eps - share) * right + share * log_p.sum(1)
            smoothed = smoothed - (mixed * counts).sum()
            p = log_p.exp_().sub_(share)
            p.scatter_add_(1, at, p.new_full(at.shape, share + eps - 1))
            written.copy_(p.mul_(counts.unsqueeze(1)))
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0].to(gradient.dtype), None, None, None
