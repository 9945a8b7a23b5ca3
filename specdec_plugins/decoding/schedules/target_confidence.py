"""Draft only while the verifier is confident."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import SCHEDULES, DraftSchedule, Prefix, Round, SourceBatch
from specdec_plugins.decoding.networks.cpu.ops import at
from specdec_plugins.decoding.requests import RowParams
from specdec_plugins.errors import require


@SCHEDULES.register("target_confidence")
class TargetConfidence(DraftSchedule):
    """A gate before the drafter (ccs96307/fast-llm-inference, 2024).

    After each verification, take the verifier's probability of its own token, correction or
    bonus. While it is below `threshold`, the row decodes one token at a time; then it drafts
    blocks again. A new row drafts at once.
    """

    @dataclass(frozen=True)
    class Config:
        threshold: float = 0.5  # probability, 0..1; 0 = always draft

        def __post_init__(self) -> None:
            require(
                0 <= self.threshold <= 1, f"threshold must be within 0..1, not {self.threshold}."
            )

    _config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._confidence: Tensor | None = None  # [B] float32; None before the first row

    def admit(self, source: SourceBatch) -> None:
        sure = torch.ones_like(source.lengths, dtype=torch.float32)
        held = self._confidence
        self._confidence = sure if held is None else torch.cat([held, sure])

    def commit(self, prefix: Prefix, last: Round) -> None:
        logits = at(last.scores.logits, last.verdict.num_accepted).float()  # [B, V]
        own = last.verdict.next_tokens[:, None]
        self._confidence = logits.softmax(-1).gather(-1, own)[:, 0]

    def select(self, rows: Tensor) -> None:
        if self._confidence is not None:
            self._confidence = self._confidence[rows]

    def next_budget(self, params: RowParams) -> Tensor:
        assert self._confidence is not None
        return params.block_size * (self._confidence >= self._config.threshold)
