"""``--criterion early_exit_loss``: the loss of every exit of the decoder at once.

Source: LayerSkip (Elhoushi et al., ACL 2024), section 4.1.
"""

# No postponed annotations here: fairseq makes flags from the types of the settings' fields.
import math
from dataclasses import dataclass, field
from typing import Any

from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

from specdec_plugins.errors import UserError


@dataclass
class EarlyExitLossConfig(LabelSmoothedCrossEntropyCriterionConfig):
    exit_scale: float = field(
        default=0.2,
        metadata={"help": "how much the exits weigh beside the whole decoder; 0 = nothing"},
    )


def exit_weights(num_layers: int, scale: float) -> list[float]:
    """Weights of the exits behind layers 1..L, which grow with depth and sum to 1.

    The paper's e(l) = scale * (1 + ... + l), and L - 1 more for the whole decoder; but its layers
    count from 0, so that the first exit has no weight, and here from 1, so that it is trained, too.
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

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss, sample size and figures; `nll_loss` is the whole decoder's."""
        output, extra = model(**sample["net_input"])
        if not hasattr(model.decoder, "exit_logits"):
            raise UserError("--criterion early_exit_loss needs --arch early_exit_transformer")
        states = extra["inner_states"][1:]  # the first is no layer's
        weights = exit_weights(len(states), self.exit_scale)
        log: dict[str, Any] = {"ntokens": sample["ntokens"], "nsentences": len(sample["target"])}
        loss, nll = self.compute_loss(model, (output, extra), sample, reduce=reduce)
        total, log["nll_loss"] = weights[-1] * loss, nll.detach()
        for number, state in enumerate(states[:-1], 1):
            logits = model.decoder.exit_logits(state)
            loss, nll = self.compute_loss(model, (logits, extra), sample, reduce=reduce)
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
        num_tokens = sum(log.get("ntokens", 0) for log in logging_outputs)
        names = {name for log in logging_outputs for name in log if name.startswith("nll_exit_")}
        for name in sorted(names):
            nll = sum(log.get(name, 0) for log in logging_outputs)
            metrics.log_scalar(name, nll / num_tokens / math.log(2), num_tokens, round=3)
