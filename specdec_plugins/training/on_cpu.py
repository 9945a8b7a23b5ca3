"""Faster forms of three operations that torch computes slowly in bfloat16 on a CPU.

Results differ from torch's only by rounding; dropout draws other masks, from torch's generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.criterions.glat_loss import SmoothedLoss
from specdec_plugins.training.objective import dropout_mask

_compute_loss = LabelSmoothedCrossEntropyCriterion.compute_loss


@contextmanager
def quick_bfloat16() -> Iterator[None]:
    """Trainings inside the block use these operations."""
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
        return x * dropout_mask(x, module.p)
    return x


# --- the loss -------------------------------------------------------------------------------------


def compute_loss(
    criterion: LabelSmoothedCrossEntropyCriterion,
    model: Any,
    net_output: Any,
    sample: Any,
    reduce: bool = True,
) -> tuple[Tensor, Tensor]:
    """LabelSmoothedCrossEntropyCriterion.compute_loss: the loss with and without smoothing."""
    if not reduce or criterion.ignore_prefix_size > 0:
        return _compute_loss(criterion, model, net_output, sample, reduce)
    logits, targets = net_output[0].flatten(0, 1), model.get_targets(sample, net_output).flatten()
    share = criterion.eps / (logits.size(1) - 1)  # of every type but the target
    smoothed, plain = SmoothedLoss.apply(logits, targets, share)
    counts = (targets != criterion.padding_idx).float()  # [N]
    return (smoothed * counts).sum(), (plain * counts).sum()
