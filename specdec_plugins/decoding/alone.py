"""Decoding with a drafter alone: its blocks are emitted unverified, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Case,
    Draft,
    Drafter,
    Guarantee,
    Prefix,
    Scores,
    SpecialTokens,
    Stateful,
    Verdict,
)
from specdec_plugins.decoding.engine import EngineConfig, Method, Session, SpeculativeDecoder
from specdec_plugins.decoding.extend import Extension
from specdec_plugins.decoding.lane import Lane, TorchLane
from specdec_plugins.decoding.requests import RowResult
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.errors import UserError, require


@dataclass(frozen=True)
class Unverified(Stateful):
    """What requests must keep to without a verifier: no scores, no state."""

    vocab_size: int
    special: SpecialTokens
    device: torch.device
    source_vocab_size: int
    max_source_positions: int = 10**9
    max_target_positions: int = 10**9

    def fresh(self) -> Unverified:
        return self

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        num_rows, num_drafted = draft.tokens.shape
        return Scores(torch.zeros(num_rows, num_drafted + 1, 0, device=self.device))


@dataclass(frozen=True)
class KeepAll:
    """Keeps every drafted token; the last one takes the place of the verifier's own."""

    samples: bool = False

    def guarantee(self, beta: int) -> Guarantee:
        return Guarantee.NONE

    def judge(self, case: Case) -> Verdict:
        draft, last = case.draft, (case.draft.lengths - 1).clamp(min=0)
        return Verdict(last, draft.tokens.gather(1, last[:, None])[:, 0])


class UnverifiedLane(TorchLane):
    """A lane without verification, so without a guarantee."""

    _num_own = 0

    def _judge(self, draft: Draft, scores: Scores) -> tuple[Verdict, Tensor]:
        batch = self.batch
        require(draft.tokens.shape[1] > 0, _NOTHING)
        batch.prefix.active &= draft.lengths > 0  # so that the report finds rows without progress
        case = Case(draft, scores, batch.params, batch.random, batch.prefix.lengths)
        return self.method.rule.judge(case), torch.zeros_like(batch.prefix.active)

    def _log_probs(self, scores: Scores, extension: Extension) -> None:
        """None, as no verifier computes them."""


class DrafterSession(Session):
    """A session of that lane."""

    def _open_lanes(self) -> list[Lane]:
        return [UnverifiedLane(self.verifier, self.method, self._config, self._timer)]

    def _refuse_standstill(self, row: RowResult) -> None:
        raise UserError(_NOTHING)


class DrafterDecoder(SpeculativeDecoder):
    """Blockwise decoding without verification."""

    new_session = DrafterSession

    def __init__(
        self, drafter: Drafter, target: Unverified, config: EngineConfig | None = None
    ) -> None:
        method = Method(drafter, KeepAll(), Constant(Constant.Config()))
        super().__init__(target, method, config)


_NOTHING = (
    "The drafter proposed nothing, so it cannot decode alone; use --strategy specdec with it."
)
