"""``--criterion medusa_loss``: cross-entropy of each head with the token of its place.

Source: Medusa (Cai et al. 2024), section 2.2.1, the loss of Medusa-1.
"""

# No postponed annotations here: fairseq makes flags from the types of the settings' fields.
import math
from dataclasses import dataclass, field
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor
from torch.nn import functional

from specdec_plugins.errors import UserError


@dataclass
class MedusaLossConfig(FairseqDataclass):
    head_decay: float = field(
        default=0.8,
        metadata={"help": "head k weighs this to the power of k, as places far ahead are harder"},
    )


@register_criterion("medusa_loss", dataclass=MedusaLossConfig)
class MedusaLoss(FairseqCriterion):
    """Sum over heads and places, divided by the number of target tokens."""

    def __init__(self, task: Any, head_decay: float) -> None:
        super().__init__(task)
        if not 0 < head_decay <= 1:
            raise UserError(f"--head-decay is {head_decay}, expected above 0 and at most 1")
        self.head_decay = head_decay

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss, sample size and figures; with `reduce` off the loss is [B], one a sentence.

        The state at place t gives the verifier's token t, and head k is about token t + k.
        """
        if not hasattr(model, "num_heads"):
            raise UserError("--criterion medusa_loss needs --arch medusa_heads")
        states, targets = model(**sample["net_input"]), sample["target"]  # [B, T, K, D], [B, T]
        loss = states.new_zeros(len(targets)).float()  # [B]
        log: dict[str, Any] = {}
        for head in range(1, model.num_heads + 1):
            logits = model.project(states[:, :-head, head - 1]).float()  # [B, T - k, V]
            wanted = targets[:, head:]
            nll = functional.cross_entropy(
                logits.transpose(1, 2), wanted, ignore_index=self.padding_idx, reduction="none"
            )  # [B, T - k]
            loss = loss + self.head_decay**head * nll.sum(1)
            scored = wanted.ne(self.padding_idx)
            log[f"right_{head}"] = (logits.argmax(-1).eq(wanted) & scored).sum()
            log[f"scored_{head}"] = scored.sum()
        log["loss"], log["sample_size"] = loss.detach().sum(), sample["ntokens"]
        log["ntokens"], log["nsentences"] = sample["ntokens"], len(targets)
        return loss.sum() if reduce else loss, sample["ntokens"], log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """The loss in bits a token, and the share of right tokens of each head."""

        def total(key: str) -> float:
            return utils.item(sum(log.get(key, 0) for log in logging_outputs))

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
