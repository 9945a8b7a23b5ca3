"""Draft more after a fully accepted block, less after any other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import SCHEDULES, DraftSchedule, Prefix, Round, SourceBatch
from specdec_plugins.decoding.requests import RowParams
from specdec_plugins.errors import require


@SCHEDULES.register("heuristic")
class Heuristic(DraftSchedule):
    """Each row's block grows by `grow` after full acceptance, else shrinks by `shrink`.

    The heuristic of the transformers library (+2, -1, never below 1 nor above the row's block
    size). A round without a draft changes nothing. With `keep`, a new row begins at the mean size
    of the rows that left last, also across calls. Drafts then depend on what was decoded before,
    and so do samples, but not their distribution.
    """

    @dataclass(frozen=True)
    class Config:
        start: int = 5  # tokens of the first draft, at least 1
        grow: int = 2  # tokens more after full acceptance
        shrink: int = 1  # tokens less otherwise
        keep: bool = False  # begin where earlier rows ended

        def __post_init__(self) -> None:
            require(self.start >= 1, f"start must be 1 or more, not {self.start}.")
            require(self.grow >= 0, f"grow must be 0 or more, not {self.grow}.")
            require(self.shrink >= 0, f"shrink must be 0 or more, not {self.shrink}.")

    _config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._start: Tensor | None = None  # [] float32, where new rows begin; None = config.start
        self._sizes: Tensor | None = None  # [B] int64; None before the first row

    def admit(self, source: SourceBatch) -> None:
        fresh = torch.full_like(source.lengths, self._config.start)
        if self._start is not None:
            fresh = self._start.round().to(fresh).expand_as(fresh)
        self._sizes = fresh if self._sizes is None else torch.cat([self._sizes, fresh])

    def commit(self, prefix: Prefix, last: Round) -> None:
        assert self._sizes is not None
        drafted, accepted = last.draft.lengths, last.verdict.num_accepted
        shrunk = (self._sizes - self._config.shrink).clamp(min=1)
        sizes = torch.where(accepted == drafted, self._sizes + self._config.grow, shrunk)
        self._sizes = torch.where(drafted > 0, sizes, self._sizes)

    def select(self, rows: Tensor) -> None:
        if self._sizes is None:
            return
        if self._config.keep and len(rows) < len(self._sizes):
            gone = torch.ones_like(self._sizes).index_fill(0, rows, 0)
            self._start = (self._sizes * gone).sum() / gone.sum()
        self._sizes = self._sizes[rows]

    def next_budget(self, params: RowParams) -> Tensor:
        assert self._sizes is not None
        # Each token of size above the row's block would take another miss to come back.
        self._sizes = torch.minimum(self._sizes, params.block_size.clamp(min=1))
        return torch.minimum(self._sizes, params.block_size)
