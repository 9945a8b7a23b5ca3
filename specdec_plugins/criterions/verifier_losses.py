"""Losses for drafters that are parts of the verifier.

``--criterion early_exit_loss`` is the loss of every exit of the decoder at once (LayerSkip,
Elhoushi et al., ACL 2024, section 4.1). ``--criterion medusa_loss`` is the cross-entropy of each
head with the token of its place (Medusa, Cai et al. 2024, section 2.2.1, the loss of Medusa-1).
"""

# No postponed annotations here: fairseq makes flags from the types of the settings' fields.
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor
from torch.nn import functional

from specdec_plugins.criterions.glat_loss import summed
from specdec_plugins.errors import UserError


@dataclass
class EarlyExitLossConfig(LabelSmoothedCrossEntropyCriterionConfig):
    exit_scale: float = field(
        default=0.2,
        metadata={"help": "weight of the exits relative to the whole decoder; 0 = none"},
    )


def exit_weights(num_layers: int, scale: float) -> list[float]:
    """Weights of the exits after layers 1..L, which grow with depth and sum to 1.

    The paper's e(l) = scale * (1 + ... + l), plus L - 1 for the whole decoder. The paper counts
    layers from 0, so that the first exit has no weight; here they count from 1, to train it too.
    """
    raw = [scale * layer * (layer + 1) / 2 for layer in range(1, num_layers)]
    raw.append(max(num_layers - 1, 1) + (raw[-1] if raw else 0.0))
    return [weight / sum(raw) for weight in raw]


@register_criterion("early_exit_loss", dataclass=EarlyExitLossConfig)
class EarlyExitLoss(LabelSmoothedCrossEntropyCriterion):
    """Weighted mean over exits of the label-smoothed cross-entropy; all exits in every update."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        exit_scale: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if exit_scale < 0:
            raise UserError(f"--exit-scale is {exit_scale}, expected 0 or more")
        self.exit_scale = exit_scale

    def forward(self, model: Any, sample: dict[str, Any]) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss, sample size and figures; `nll_loss` is the whole decoder's."""
        output, extra = model(**sample["net_input"])
        if not hasattr(model.decoder, "exit_logits"):
            raise UserError("--criterion early_exit_loss needs --arch early_exit_transformer")
        states = extra["inner_states"][1:]  # the first is not a layer's
        weights = exit_weights(len(states), self.exit_scale)
        log: dict[str, Any] = {"ntokens": sample["ntokens"], "nsentences": len(sample["target"])}
        loss, nll = self.compute_loss(model, (output, extra), sample)
        total, log["nll_loss"] = weights[-1] * loss, nll.detach()
        for number, state in enumerate(states[:-1], 1):
            logits = model.decoder.exit_logits(state)
            loss, nll = self.compute_loss(model, (logits, extra), sample)
            total = total + weights[number - 1] * loss
            log[f"nll_exit_{number}"] = nll.detach()
        log["loss"] = total.detach()
        log["sample_size"] = log["nsentences"] if self.sentence_avg else log["ntokens"]
        if self.report_accuracy:
            num_right, num_scored = self.compute_accuracy(model, (output, extra), sample)
            log["n_correct"], log["total"] = utils.item(num_right), utils.item(num_scored)
        return total, log["sample_size"], log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """The stock figures, and the cross-entropy of each exit in bits a token."""
        super().reduce_metrics(logging_outputs)
        num_tokens = summed(logging_outputs, "ntokens")
        names = {name for log in logging_outputs for name in log if name.startswith("nll_exit_")}
        for name in sorted(names):
            bits = summed(logging_outputs, name) / math.log(2)
            metrics.log_scalar(name, bits / num_tokens, num_tokens, round=3)


@dataclass
class MedusaLossConfig(FairseqDataclass):
    head_decay: float = field(
        default=0.8,
        metadata={"help": "weight of head k: this to the power of k, as later tokens are harder"},
    )


@register_criterion("medusa_loss", dataclass=MedusaLossConfig)
class MedusaLoss(FairseqCriterion):
    """Sum over heads and places, divided by the number of target tokens."""

    def __init__(self, task: Any, head_decay: float) -> None:
        super().__init__(task)
        if not 0 < head_decay <= 1:
            raise UserError(f"--head-decay is {head_decay}, expected above 0 and at most 1")
        self.head_decay = head_decay

    def forward(self, model: Any, sample: dict[str, Any]) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss, sample size and figures.

        From the state at place t the verifier predicts token t, and head k token t + k.
        """
        if not hasattr(model, "num_heads"):
            raise UserError("--criterion medusa_loss needs --arch medusa_heads")
        states, targets = model(**sample["net_input"]), sample["target"]  # [B, T, K, D], [B, T]
        loss = states.new_zeros(()).float()
        log: dict[str, Any] = {}
        for head in range(1, model.num_heads + 1):
            logits = model.project(states[:, :-head, head - 1]).float()  # [B, T - k, V]
            wanted = targets[:, head:]
            nll = functional.cross_entropy(
                logits.transpose(1, 2), wanted, ignore_index=self.padding_idx, reduction="sum"
            )
            loss = loss + self.head_decay**head * nll
            scored = wanted.ne(self.padding_idx)
            log[f"right_{head}"] = (logits.argmax(-1).eq(wanted) & scored).sum()
            log[f"scored_{head}"] = scored.sum()
        log["loss"], log["sample_size"] = loss.detach(), sample["ntokens"]
        log["ntokens"], log["nsentences"] = sample["ntokens"], len(targets)
        return loss, sample["ntokens"], log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """The loss in bits a token, and the share of right tokens of each head."""
        total = partial(summed, logging_outputs)
        num_tokens = total("sample_size")
        if num_tokens:
            metrics.log_scalar("loss", total("loss") / num_tokens / math.log(2), num_tokens, 3)
        names = {name for log in logging_outputs for name in log if name.startswith("right_")}
        for name in sorted(names):
            num_scored = total(name.replace("right", "scored"))
            if num_scored:
                metrics.log_scalar(name, total(name) / num_scored, num_scored, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every figure is a sum, so workers may add theirs before the reduction."""
        return True
