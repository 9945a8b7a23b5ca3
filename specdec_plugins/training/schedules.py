"""Learning-rate schedules: two that restart, and one that falls with the hours of training."""

import time
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import (
    InverseSquareRootLRScheduleConfig,
    InverseSquareRootSchedule,
)
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import (
    PolynomialDecayLRSchedule,
    PolynomialDecayLRScheduleConfig,
)
from omegaconf import II

RESTARTED_AT = "restarted_at"  # in a checkpoint's scheduler state: the update it resumes from
ELAPSED = "elapsed"  # likewise: seconds of training so far


@dataclass
class _Restarts:
    # No postponed annotations in this module: fairseq reads this type itself.
    restart_warmup_updates: int = field(
        default=100,
        metadata={"help": "updates over which the rate rises again after the optimizer restarted"},
    )


@dataclass
class InverseSqrtRestartsConfig(_Restarts, InverseSquareRootLRScheduleConfig):
    pass


@dataclass
class PolynomialDecayRestartsConfig(_Restarts, PolynomialDecayLRScheduleConfig):
    pass


class _Restarting(FairseqLRScheduler):
    """One of fairseq's schedules, times a ramp after the update recorded in the checkpoint.

    A checkpoint without Adam's moments (``corpus.checkpoints`` writes them) records that update.
    Adam then knows the gradient's scale from few updates; the ramp keeps their steps short.
    """

    restarted_at: int | None = None

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
            self.optimizer.set_lr(rate)
        return rate


@register_lr_scheduler("inverse_sqrt_restarts", dataclass=InverseSqrtRestartsConfig)
class InverseSqrtRestarts(_Restarting, InverseSquareRootSchedule):
    pass


@register_lr_scheduler("polynomial_decay_restarts", dataclass=PolynomialDecayRestartsConfig)
class PolynomialDecayRestarts(_Restarting, PolynomialDecayLRSchedule):
    pass


@dataclass
class FallingOverTimeConfig(FairseqDataclass):
    warmup_updates: int = field(default=200, metadata={"help": "updates until the peak"})
    end_learning_rate: float = field(default=1e-5, metadata={"help": "rate of the last update"})
    hours: float = field(default=1.0, metadata={"help": "hours of training until then"})
    lr: list[float] = II("optimization.lr")


@register_lr_scheduler("falling_over_time", dataclass=FallingOverTimeConfig)
class FallingOverTime(FairseqLRScheduler):
    """Falls linearly over the hours of all pieces of a training, after a warm-up.

    Neither the time between pieces counts, nor, as for --stop-time-hours, the time of a killed
    piece after its last checkpoint.
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
