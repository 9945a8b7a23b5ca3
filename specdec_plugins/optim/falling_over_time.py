"""A rate that falls with the hours of training, where nobody knows how many updates they hold."""

import time
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

ELAPSED = "elapsed"  # in a checkpoint's scheduler state: seconds of training so far


@dataclass
class FallingOverTimeConfig(FairseqDataclass):
    # No postponed annotations in this module: fairseq reads these types itself.
    warmup_updates: int = field(default=200, metadata={"help": "updates until the peak"})
    end_learning_rate: float = field(default=1e-5, metadata={"help": "of the last update"})
    hours: float = field(default=1.0, metadata={"help": "of training until then"})
    lr: list[float] = II("optimization.lr")


@register_lr_scheduler("falling_over_time", dataclass=FallingOverTimeConfig)
class FallingOverTime(FairseqLRScheduler):
    """A straight line over all pieces of a training, behind a warm-up; time between them is none.

    What a killed piece did behind its last checkpoint does not count, as for --stop-time-hours.
    """

    def __init__(self, cfg: Any, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        self._before, self._began = 0.0, time.monotonic()
        self.step_update(0)

    @property
    def elapsed(self) -> float:
        return self._before + time.monotonic() - self._began

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), ELAPSED: self.elapsed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._before, self._began = state_dict.get(ELAPSED, 0.0), time.monotonic()

    def step(self, epoch: int, val_loss: float | None = None) -> float:
        rate: float = self.optimizer.get_lr()
        return rate

    def step_update(self, num_updates: int) -> float:
        peak, end = self.cfg.lr[0], self.cfg.end_learning_rate
        left = max(0.0, 1 - self.elapsed / (3600 * self.cfg.hours))
        warmth = min(1.0, (num_updates + 1) / max(1, self.cfg.warmup_updates))
        rate: float = warmth * (end + (peak - end) * left)
        self.optimizer.set_lr(rate)
        return rate
