"""fairseq's inverse square root schedule, with a short warm-up wherever the optimizer restarts."""

from dataclasses import dataclass, field
from typing import Any

from fairseq.optim.lr_scheduler import register_lr_scheduler
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import (
    InverseSquareRootLRScheduleConfig,
    InverseSquareRootSchedule,
)

RESTARTED_AT = "restarted_at"  # in a checkpoint's scheduler state: the update it goes on from


@dataclass
class InverseSqrtRestartsConfig(InverseSquareRootLRScheduleConfig):
    # No postponed annotations in this module: fairseq reads this type itself.
    restart_warmup_updates: int = field(
        default=100,
        metadata={"help": "updates over which the rate rises again after the optimizer restarted"},
    )


@register_lr_scheduler("inverse_sqrt_restarts", dataclass=InverseSqrtRestartsConfig)
class InverseSqrtRestarts(InverseSquareRootSchedule):
    """The same rate at the same update, times a ramp behind the update in the checkpoint.

    A checkpoint without Adam's moments (``corpus.checkpoints`` writes them) says where it was cut.
    Adam then knows the gradient's scale from few updates, whose steps would be as long as any.
    """

    def __init__(self, cfg: Any, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        self.restarted_at: int | None = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), RESTARTED_AT: self.restarted_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.restarted_at = state_dict.get(RESTARTED_AT)

    def step_update(self, num_updates: int) -> float:
        rate: float = super().step_update(num_updates)
        ramp = self.cfg.restart_warmup_updates
        if self.restarted_at is not None and ramp > 0:
            rate *= min(1.0, (num_updates - self.restarted_at + 1) / ramp)
            self.lr = rate
            self.optimizer.set_lr(rate)
        return rate
