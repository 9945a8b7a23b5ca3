"""A drafter that runs the real one and then proposes tokens of a script.

The script is the verifier's greedy output, corrupted at a set rate. It shows what the *engine*
costs at a given acceptance, whatever the drafter has learnt. It is no result of a trained pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Draft,
    Drafter,
    DraftRequest,
    Prefix,
    Round,
    SourceBatch,
    Stream,
    Target,
)
from specdec_plugins.decoding.drafters.base import until_end

Script = Mapping[tuple[int, ...], Sequence[int]]


class ScriptedDrafter:
    """Proposes the right token of a position with a fixed probability, else a wrong one.

    The real drafter's `propose` runs first, so that a round has its real cost. Its draft and
    lengths are dropped, so that the draft ends where the script does. A hash of the position,
    different for every row, decides whether a token is right.
    """

    def __init__(self, inner: Drafter, script: Script, acceptance: float, eos: int) -> None:
        """script: target ids by source ids, both with eos. acceptance: of each token, 0 to 1."""
        self._inner = inner
        self._script = script
        self._acceptance = acceptance
        self._eos = eos
        self._rows: list[Sequence[int]] = []
        self._table: Tensor | None = None  # [B, T] int64: the scripts, padded with eos
        self.max_positions = inner.max_positions
        self.max_block_size = inner.max_block_size

    def fresh(self, target: Target) -> ScriptedDrafter:
        inner = self._inner.fresh(target)
        return ScriptedDrafter(inner, self._script, self._acceptance, self._eos)

    def admit(self, source: SourceBatch) -> None:
        self._inner.admit(source)
        for row, length in zip(source.tokens.tolist(), source.lengths.tolist(), strict=True):
            self._rows.append(self._script[tuple(row[:length])])
        self._tabulate(source.tokens.device)

    def commit(self, prefix: Prefix, last: Round) -> None:
        self._inner.commit(prefix, last)

    def select(self, rows: Tensor) -> None:
        self._inner.select(rows)
        self._rows = [self._rows[i] for i in rows.tolist()]
        self._tabulate(rows.device)

    def narrow(self, longest: int, is_padded: bool) -> None:
        self._inner.narrow(longest, is_padded)

    def propose(self, asked: DraftRequest) -> Draft:
        prefix, budget, width = asked.prefix, asked.budget, asked.width
        assert self._table is not None, "propose before admit"
        self._inner.propose(asked)
        columns = torch.arange(width, device=budget.device)
        place = prefix.lengths[:, None] - 1 + columns  # positions in the script, [B, K]
        right = self._table.gather(1, place.clamp(max=self._table.shape[1] - 1))
        kept = asked.random.uniform(prefix.lengths, width, Stream.PROPOSE) < self._acceptance
        # Any other token will do as a wrong one, if it does not end the sentence.
        wrong = torch.where(right == self._eos + 2, self._eos + 3, self._eos + 2)
        draft = Draft(torch.where(kept, right, wrong), budget)
        return until_end(draft, self._eos, may_wait=budget.device.type == "cpu")

    def _tabulate(self, device: torch.device) -> None:
        width = max((len(row) for row in self._rows), default=0) + 1
        rows = [[*row, *[self._eos] * (width - len(row))] for row in self._rows]
        self._table = torch.tensor(rows, device=device).reshape(len(rows), width)
