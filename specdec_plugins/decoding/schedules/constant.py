"""Ask for the same block every round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specdec_plugins.decoding.types import SCHEDULES, Prefix, Round, RowParams, SourceBatch


@SCHEDULES.register("constant")
class Constant:
    """Each row's own block size, always; keeps no state."""

    follows_clock: bool = False

    @dataclass(frozen=True)
    class Config:
        pass

    def __init__(self, config: Config) -> None:
        pass

    def fresh(self) -> Constant:
        return self

    def admit(self, source: SourceBatch) -> None:
        pass

    def commit(self, prefix: Prefix, last: Round) -> None:
        pass

    def select(self, rows: Tensor) -> None:
        pass

    def next_budget(self, params: RowParams) -> Tensor:
        return params.block_size
