"""Draft while the batch is small."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specdec_plugins.decoding.contract import SCHEDULES, DraftSchedule
from specdec_plugins.decoding.requests import RowParams
from specdec_plugins.errors import require


@SCHEDULES.register("few_rows")
class FewRows(DraftSchedule):
    """Each row's own block size while the batch has at most `rows` rows; no drafts in larger ones.

    Verifying a block costs one row little more than a step, as reading the weights takes most of
    the time. In a batch all rows share that reading, so that each drafted token has its full cost.
    """

    @dataclass(frozen=True)
    class Config:
        rows: int = 1  # of the largest batch that drafts, 0 or more

        def __post_init__(self) -> None:
            require(self.rows >= 0, f"rows must be 0 or more, not {self.rows}.")

    _config: Config
    follows_load = True

    @property
    def most_rows(self) -> int:
        """Of a batch that drafts."""
        return self._config.rows

    def next_budget(self, params: RowParams) -> Tensor | None:
        block = params.block_size
        return block if len(block) <= self.most_rows else None
