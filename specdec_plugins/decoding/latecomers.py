"""A drafter whose rows join when it is first asked to draft, and not when they are admitted."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch, collate
from specdec_plugins.decoding.types import (
    Draft,
    Drafter,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
    Verdict,
)


class Latecomers:
    """Keeps the drafter of a session in step with its rows, of which some may never draft.

    While a schedule asks for no drafts, as the adaptive one does under load, nothing is encoded
    and nothing kept for them. A row that joins late brings what it has been given by then as its
    forced prefix (`SourceBatch.forced`), which every drafter honours anyway. When anybody drafts
    everybody joins, so those who wait always stand behind those who have joined.
    """

    def __init__(self, drafter: Drafter, special: SpecialTokens) -> None:
        self._drafter = drafter
        self._special = special
        self._num_joined = 0
        self._num_waiting = 0

    @property
    def num_waiting(self) -> int:
        """Rows that `join` is due for."""
        return self._num_waiting

    def admit(self, source: SourceBatch) -> None:
        self._num_waiting += len(source)

    @torch.inference_mode()
    def join(self, batch: Batch) -> None:
        """Admit the rows that wait, each with the prefix that it has in the batch."""
        late, prefix = batch.rows[self._num_joined :], batch.prefix
        requests, device = [row.request for row in late], prefix.tokens.device
        source = collate(requests, self._special.pad, self._special.start, device)
        lengths = prefix.lengths[self._num_joined :]
        tokens = prefix.tokens[self._num_joined :, : max(row.length for row in late)]
        junk = torch.arange(tokens.shape[1], device=device) >= lengths[:, None]
        forced = tokens.masked_fill(junk, self._special.pad)
        self._drafter.admit(replace(source, forced=forced, forced_lengths=lengths.clone()))
        self._num_joined, self._num_waiting = len(batch.rows), 0

    def propose(self, batch: Batch, width: int) -> Draft:
        """What the drafter proposes; every row has joined."""
        assert not self._num_waiting, "propose before join"
        return self._drafter.propose(batch.prefix, batch.budget, width, batch.params, batch.random)

    def commit(self, prefix: Prefix, last: Round) -> None:
        if not self._num_joined:
            return
        if self._num_waiting:
            prefix, last = _first_rows(prefix, last, self._num_joined)
        self._drafter.commit(prefix, last)

    def select(self, rows: Tensor) -> None:
        joined = rows[rows < self._num_joined] if self._num_waiting else rows
        self._drafter.select(joined)
        self._num_joined, self._num_waiting = len(joined), len(rows) - len(joined)


def _first_rows(prefix: Prefix, last: Round, count: int) -> tuple[Prefix, Round]:
    """What concerns the first rows; views, no copies."""

    def cut(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:count]

    draft, scores, verdict = last.draft, last.scores, last.verdict
    own = Prefix(prefix.tokens[:count], prefix.lengths[:count], prefix.active[:count], prefix.width)
    return own, Round(
        Draft(draft.tokens[:count], draft.lengths[:count], cut(draft.probs)),
        Scores(scores.logits[:count], cut(scores.hidden)),
        Verdict(verdict.num_accepted[:count], verdict.next_tokens[:count]),
        last.seconds,
    )
