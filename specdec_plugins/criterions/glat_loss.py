"""``--criterion glat_loss``: the block loss under glancing, with its figures logged."""

# No postponed annotations here: fairseq makes flags from the types of the settings' fields.
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn import functional

from specdec_plugins.errors import UserError


@dataclass
class GlatLossConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.0,
        metadata={"help": "share of the target probability spread over all types, from 0 to 1"},
    )


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
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss, sample size and figures of a sample that the task has masked.

        The sample size is 1: a batch's loss is a mean already, and gradients of several batches
        average their means. With ``reduce`` off the loss is [N], one value a scored position.
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
        losses = block_loss(out.logits, out.targets, self.label_smoothing, reduce)
        logging_output = {
            "loss": losses.loss.detach() if reduce else losses.loss.detach().sum(),
            "nll_loss": losses.nll.detach() if reduce else losses.nll.detach().sum(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": 1,
            "num_masked": out.num_masked,
            "num_right": out.num_right,
            "context_p": glancing.context_p if glancing is not None else 0.0,
        }
        return losses.loss, 1, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log averages over batches and workers, and the share of right predictions over tokens."""

        def total(key: str) -> float:
            return utils.item(sum(log.get(key, 0) for log in logging_outputs))

        num_batches = total("sample_size")
        if num_batches == 0:
            return
        bits = math.log(2) * num_batches
        metrics.log_scalar("loss", total("loss") / bits, num_batches, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / bits, num_batches, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        num_masked = total("num_masked")
        if num_masked:
            accuracy = total("num_right") / num_masked
            metrics.log_scalar("glat_accu", accuracy, num_masked, round=3)
        context_p = total("context_p") / num_batches
        metrics.log_scalar("glat_context_p", context_p, num_batches, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every figure is a sum, so workers may add theirs before the reduction."""
        return True
