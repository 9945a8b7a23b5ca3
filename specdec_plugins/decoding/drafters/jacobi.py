"""The verifier's own guesses of the last round, drafted again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.drafters.base import DRAFTERS, DraftContext
from specdec_plugins.decoding.types import (
    Draft,
    Prefix,
    Round,
    RowParams,
    RowRandom,
    SourceBatch,
)


@DRAFTERS.register("jacobi")
class JacobiDrafter:
    """Parallel fixed-point iteration, with no training (Santilli et al. 2023, arXiv 2305.10427).

    Verifying a draft also says what the verifier would put at the places behind the first
    rejection. Those guesses are the next draft; places that nobody guessed yet begin as the source
    token of the same place, and behind its end as eos.
    """

    max_block_size: int | None = None

    @dataclass(frozen=True)
    class Config:
        pass

    def __init__(self, config: Config, context: DraftContext) -> None:
        none = torch.zeros(0, 0, dtype=torch.int64, device=context.verifier.device)
        self._eos = context.verifier.special.eos
        self._to_target = context.source_to_target
        self._source = none  # [B, S] int64, in target ids, eos behind the end
        self._guesses = none  # [B, G] int64
        self._num_guesses = none.sum(1)  # [B] int64

    def admit(self, source: SourceBatch) -> None:
        tokens = source.tokens if self._to_target is None else self._to_target[source.tokens]
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = tokens.masked_fill(columns >= source.lengths[:, None] - 1, self._eos)
        width = max(self._source.shape[1], tokens.shape[1])
        both = (self._source, tokens)
        self._source = torch.cat([pad(t, (0, width - t.shape[1]), value=self._eos) for t in both])
        self._guesses = pad(self._guesses, (0, 0, 0, len(source)))
        self._num_guesses = pad(self._num_guesses, (0, len(source)))

    def commit(self, prefix: Prefix, last: Round) -> None:
        """Row i of the scores is about the place `first + i`; the last committed is `first + n`.

        So guesses n + 1 .. L stand, of which the first is about the next place.
        """
        guesses = last.scores.logits.argmax(-1)  # [B, K+1]
        num_accepted = last.verdict.num_accepted
        columns = torch.arange(guesses.shape[1], device=guesses.device)
        index = (num_accepted[:, None] + 1 + columns).clamp(max=guesses.shape[1] - 1)
        self._guesses = guesses.gather(1, index)
        self._num_guesses = last.draft.lengths - num_accepted

    def select(self, rows: Tensor) -> None:
        self._source = self._source[rows]
        self._guesses, self._num_guesses = self._guesses[rows], self._num_guesses[rows]

    def propose(
        self, prefix: Prefix, budget: Tensor, width: int, params: RowParams, random: RowRandom
    ) -> Draft:
        columns = torch.arange(width, device=budget.device)
        # The token at place i of the prefix, start token at 0, begins as source token i - 1.
        place = prefix.lengths[:, None] + columns - 1
        source = pad(self._source, (0, 1), value=self._eos)
        begun = source.gather(1, place.clamp(max=source.shape[1] - 1))  # [B, K]
        guesses = pad(self._guesses, (0, max(width - self._guesses.shape[1], 0)))[:, :width]
        return Draft(torch.where(columns < self._num_guesses[:, None], guesses, begun), budget)
