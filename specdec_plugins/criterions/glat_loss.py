"""``--criterion glat_loss``: the block loss under glancing, with its figures logged."""

# No postponed annotations here: fairseq makes flags from the types of the settings' fields.
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn import functional

from specdec_plugins.errors import UserError

SHOWN = 6  # places of a block whose acceptance is logged
_ROWS = 32  # of logits, whose loss and gradient are computed while they are in a core's cache


@dataclass
class GlatLossConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.0,
        metadata={"help": "share of the target probability spread over all types, from 0 to 1"},
    )


class BlockLoss(NamedTuple):
    """Losses in nats, [] each."""

    loss: Tensor  # what is minimised: cross-entropy with label smoothing
    nll: Tensor  # the plain cross-entropy


class SmoothedLoss(torch.autograd.Function):
    """Cross-entropy with label smoothing (Szegedy et al. 2016, section 7), row by row, on a CPU.

    The gradient, the predicted minus the target distribution, is computed with the loss, a few rows
    at a time, while they are in the cache. This took 0.07 s, torch's passes over all rows 0.54 s
    (2,048 rows of 8,655 types in bfloat16, one core of an EPYC).
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,  # [N, V]
        targets: Tensor,  # [N] int64
        share: float,  # of the probability, for each of the V types; the target also has the rest
    ) -> tuple[Tensor, Tensor]:  # [N] each, float32 or better: with smoothing, and without
        precision = torch.promote_types(logits.dtype, torch.float32)
        smoothed, plain = logits.new_empty((2, len(logits)), dtype=precision)
        gradient = torch.empty_like(logits)
        parts = (x.split(_ROWS) for x in (logits, targets[:, None], gradient, smoothed, plain))
        for rows, at, slope, with_share, without in zip(*parts, strict=True):
            log_p = rows.log_softmax(1, dtype=precision)  # [n, V]
            right, rest = log_p.gather(1, at), 1 - share * log_p.size(1)
            without.copy_(-right.squeeze(1))
            with_share.copy_(-(rest * right.squeeze(1) + share * log_p.sum(1)))
            p = log_p.exp_().sub_(share)
            slope.copy_(p.scatter_add_(1, at, right.new_full(at.shape, -rest)))
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        scaled = torch.empty_like(gradient)
        parts = (x.split(_ROWS) for x in (gradient, gradients[0][:, None], scaled))
        for rows, factors, written in zip(*parts, strict=True):
            # Computed in the precision of the losses, and rounded once.
            torch.mul(rows, factors, out=written)
        return scaled, None, None


def block_loss(
    logits: Tensor,  # [N, V]
    targets: Tensor,  # [N] int64
    label_smoothing: float,  # share of the probability spread over all V types, 0 .. 1
) -> BlockLoss:
    """Mean label-smoothed cross-entropy of scored positions.

    Computed in float32 or better. Without a scored position (everything was revealed)
    the mean is a zero that still has a gradient, so that every worker takes part in the update.
    """
    losses = SmoothedLoss.apply if logits.device.type == "cpu" else smoothed_losses
    loss, nll = losses(logits, targets, label_smoothing / logits.size(1))  # [N]
    num_scored = max(1, len(targets))
    return BlockLoss(loss.sum() / num_scored, nll.sum() / num_scored)


def smoothed_losses(logits: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The same as `SmoothedLoss`, by torch's operations, on any device."""
    precision = torch.promote_types(logits.dtype, torch.float32)
    log_p = functional.log_softmax(logits, dim=-1, dtype=precision)  # [N, V]
    plain = -log_p.gather(1, targets[:, None]).squeeze(1)  # [N]
    return (1 - share * log_p.size(1)) * plain - share * log_p.sum(1), plain


def count_kept(right: Tensor, places: Tensor) -> dict[str, Tensor]:
    """What a verifier whose output is the targets would accept, summed over blocks: [] int64 each.

    right: [N] bool; places: [N] int64, position in its block, from 0. `kept` are positions before
    the first wrong one; of place k, counted from 1, `kept_k` is the number of blocks that are right
    up to there, `reached_k` of those that have an answer there, and are right before it.

    A position after a wrong one is never kept, so it does not matter that a head was fed the true
    tokens before it: up to the first wrong one they equal its own.
    """
    is_first = places == 0
    num_blocks, size = is_first.sum(), max(SHOWN, int(places.max()) + 1)
    block = is_first.cumsum(0) - 1  # [N]
    table = right.new_zeros(2, int(num_blocks), size)
    table[0, block, places] = right
    table[1, block, places] = True
    kept = table[0].long().cumprod(1)  # [blocks, size]
    reached = functional.pad(kept[:, :-1], (1, 0), value=1) * table[1]
    counts = {"num_blocks": num_blocks, "kept": kept.sum()}
    for place in range(SHOWN):
        counts[f"kept_{place + 1}"] = kept[:, place].sum()
        counts[f"reached_{place + 1}"] = reached[:, place].sum()
    return counts


def summed(logs: list[dict[str, Any]], key: str) -> float:
    """A figure, summed over batches and workers."""
    return utils.item(sum(log.get(key, 0) for log in logs))


@register_criterion("glat_loss", dataclass=GlatLossConfig)
class GlatLoss(FairseqCriterion):
    """Mean loss over the scored positions; needs the task ``translation_lev_modified``."""

    def __init__(self, task: Any, label_smoothing: float) -> None:
        super().__init__(task)
        if not 0 <= label_smoothing < 1:
            raise UserError(
                f"--label-smoothing is {label_smoothing}, expected at least 0 and less than 1"
            )
        self.label_smoothing = label_smoothing

    def forward(
        self, model: nn.Module, sample: dict[str, Any]
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss, sample size and figures of a sample that the task has masked.

        The sample size is 1: a batch's loss is a mean already, and gradients of several batches
        average their means.
        """
        if "blocks" not in sample:
            raise UserError("--criterion glat_loss needs --task translation_lev_modified")
        blocks, glancing = sample["blocks"], sample.get("glancing")
        out = model(
            sample["net_input"]["src_tokens"],
            sample["net_input"]["src_lengths"],
            blocks.input_tokens,
            blocks.target_tokens,
            blocks.scored_mask,
            glancing,
        )
        losses = block_loss(out.logits, out.targets, self.label_smoothing)
        logging_output = {
            "loss": losses.loss.detach(),
            "nll_loss": losses.nll.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": 1,
            "num_masked": out.num_masked,
            "context_p": glancing.context_p if glancing is not None else 0.0,
        }
        logging_output |= _acceptance(out) if glancing is None else {"num_right": out.num_right}
        return losses.loss, 1, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log averages over batches and workers, and the share of right predictions over tokens."""
        total = partial(summed, logging_outputs)
        num_batches = total("sample_size")
        if num_batches == 0:
            return
        bits = math.log(2) * num_batches
        metrics.log_scalar("loss", total("loss") / bits, num_batches, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / bits, num_batches, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        shares = [
            ("glat_accu", "num_right", "num_masked"),
            ("glat_context_p", "context_p", "sample_size"),
            *((f"accept_{k}", f"kept_{k}", f"reached_{k}") for k in range(1, SHOWN + 1)),
        ]
        for name, part, whole in shares:
            if total(whole):
                metrics.log_scalar(name, total(part) / total(whole), total(whole), round=3)
        num_blocks = total("num_blocks")
        if num_blocks:
            length = 1 + total("kept") / num_blocks
            metrics.log_scalar("expected_length", length, num_blocks, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every figure is a sum, so workers may add theirs before the reduction."""
        return True


def _acceptance(out: Any) -> dict[str, Any]:
    """Counts that workers may add up: right tokens, and those of `count_kept`."""
    # Not argmax, which is slow in bfloat16 on a CPU.
    right = out.logits.detach().max(dim=-1).indices.eq(out.targets)  # [N]
    counts = {"num_right": right.sum()}
    return counts | count_kept(right, out.places) if len(right) else counts
