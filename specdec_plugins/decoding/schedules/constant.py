"""Ask for the same block every round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specdec_plugins.decoding.contract import SCHEDULES, DraftSchedule
from specdec_plugins.decoding.requests import RowParams


@SCHEDULES.register("constant")
class Constant(DraftSchedule):
    """Each row's own block size, always; keeps no state."""

    @dataclass(frozen=True)
    class Config:
        """Nothing to choose."""

    def next_budget(self, params: RowParams) -> Tensor:
        return params.block_size
