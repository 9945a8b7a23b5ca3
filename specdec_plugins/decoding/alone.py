"""A drafter decoding without a verifier: its blocks as they are, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch, collate
from specdec_plugins.decoding.extend import Extension, extend
from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from specdec_plugins.decoding.types import (
    Draft,
    Drafter,
    FinishReason,
    Prefix,
    Request,
    Round,
    RowEvent,
    RowResult,
    Scores,
    SourceBatch,
    SpecialTokens,
    Verdict,
)
from specdec_plugins.errors import UserError


@dataclass
class DrafterDecoder:
    """Blockwise decoding that nobody verifies, so nothing is guaranteed."""

    drafter: Drafter
    special: SpecialTokens
    device: torch.device
    max_rows: int = 1  # sentences decoded at once
    clock: Callable[[], float] = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)  # of everything decoded so far

    def decode(self, requests: Sequence[Request]) -> list[RowResult]:
        """Results in the order of the requests. Raises UserError where nothing is proposed."""
        starts = range(0, len(requests), self.max_rows)
        return [r for i in starts for r in self.decode_batch(requests[i : i + self.max_rows])]

    @torch.inference_mode()
    def decode_batch(self, requests: Sequence[Request]) -> list[RowResult]:
        """All requests at once, whatever `max_rows` says."""
        timer = PartTimer(self.device, clock=self.clock)
        source = collate(requests, self.special.pad, self.special.start, self.device)
        with timer.part("encode"):
            self._admit(source)
        batch = Batch.open(requests, source)
        while not all(row.finished for row in batch.rows):
            with timer.part("draft"):
                draft = self._propose(batch)
            with timer.part("rest"):
                self._report(batch, draft, self._take(batch, draft))
        self.stats += DecodeStats(seconds=timer.seconds)
        return [row.result for row in batch.rows]

    def _admit(self, source: SourceBatch) -> None:
        self.drafter.select(torch.zeros(0, dtype=torch.int64, device=self.device))
        self.drafter.admit(source)

    def _propose(self, batch: Batch) -> Draft:
        prefix, params = batch.prefix, batch.params
        room = params.max_len - (prefix.lengths - 1)  # the start token is no output
        budget = torch.minimum(params.block_size, room) * prefix.active
        width = int(budget.max())
        draft = self.drafter.propose(prefix, budget, width, params, batch.random)
        if bool((draft.lengths[prefix.active] == 0).any()):
            raise UserError(
                "The drafter proposed nothing, so it cannot decode alone; "
                "use --strategy specdec with it."
            )
        return draft

    def _take(self, batch: Batch, draft: Draft) -> Extension:
        """Append every drafted token: the last one stands where a verifier's own would."""
        last = (draft.lengths - 1).clamp(min=0)
        verdict = Verdict(last, draft.tokens.gather(1, last[:, None])[:, 0])
        extension = extend(batch.prefix, draft, verdict, batch.params, self.special.eos)
        nothing = draft.tokens.new_zeros(len(batch.rows), 1, 0, dtype=torch.float32)
        self.drafter.commit(batch.prefix, Round(draft, Scores(nothing), verdict))
        return extension

    def _report(self, batch: Batch, draft: Draft, extension: Extension) -> None:
        def host(values: Tensor) -> list[int]:
            return values.tolist()

        counts = zip(
            batch.rows,
            host(draft.lengths),
            host(extension.lengths),
            host(extension.ended),
            host(batch.prefix.active),
            extension.tokens.tolist(),
            draft.tokens.tolist(),
            strict=True,
        )
        for row, drafted, emitted, ended, active, tokens, drafted_ids in counts:
            if row.finished:
                continue
            row.result.observe(drafted, emitted, tokens[:emitted])
            if not active:
                row.finished = True
                row.result.finish_reason = FinishReason.EOS if ended else FinishReason.LENGTH
            done = row.result if row.finished else None
            self.stats.observe(
                RowEvent(row.request.id, drafted_ids[:drafted], emitted, tokens[:emitted], done)
            )
        batch.prefix.width = int(batch.prefix.lengths.max())


@dataclass(frozen=True)
class Absent:
    """Stands where a verifier would, for a drafter that decodes alone."""

    vocab_size: int
    special: SpecialTokens
    device: torch.device
    max_target_positions: int = 10**9

    def admit(self, source: SourceBatch) -> None:
        raise UserError(_NO_VERIFIER)

    def commit(self, prefix: Prefix, last: Round) -> None:
        raise UserError(_NO_VERIFIER)

    def select(self, rows: Tensor) -> None:
        raise UserError(_NO_VERIFIER)

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        raise UserError(_NO_VERIFIER)


_NO_VERIFIER = "This drafter needs a verifier to draft, and there is none; name its checkpoint."
