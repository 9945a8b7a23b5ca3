"""The rows that decode together: on the device, on the host, and in the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Draft,
    Drafter,
    DraftRequest,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
    Verdict,
)
from specdec_plugins.decoding.networks.cache import join_rows
from specdec_plugins.decoding.networks.cpu.ops import on_device
from specdec_plugins.decoding.requests import DecodeParams, Request, RowParams, RowResult
from specdec_plugins.decoding.sampling import HashRandom


@dataclass
class Batch:
    """Rows, in the same order in every field and in every stateful part."""

    rows: list[RowResult]  # host-side state, readable without synchronisation
    prefix: Prefix
    params: RowParams
    budget: Tensor  # [B] int64, tokens that the next round drafts
    random: HashRandom

    @staticmethod
    @cache
    def empty(device: torch.device) -> Batch:
        """Shared by all sessions: a batch without rows is never written to."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        params = DecodeParams.stack([], device)
        prefix = Prefix(none[:, None], none, none.bool(), width=0)
        return Batch([], prefix, params, none, HashRandom(params.seed))

    @staticmethod
    def open(requests: Sequence[Request], source: SourceBatch, now: float = 0.0) -> Batch:
        """New rows for these requests; `source` is `collate` of them."""
        device = source.tokens.device
        params = DecodeParams.stack([r.params for r in requests], device)
        return Batch(
            rows=[
                RowResult(r, list(r.forced_ids), length=len(r.forced_ids) + 1, joined_at=now)
                for r in requests
            ],
            prefix=open_prefix(source, max(r.params.max_len for r in requests)),
            params=params,
            budget=torch.zeros_like(params.block_size),
            random=HashRandom(params.seed),
        )

    def select(self, keep: Sequence[int], index: Tensor) -> Batch:
        """The rows `keep`, in that order; `index` is the same list on the device."""
        old, params = self.prefix, self.params.select(keep, index)
        rows = [self.rows[i] for i in keep]
        width = max(row.length for row in rows)
        return Batch(
            rows=rows,
            prefix=Prefix(old.tokens[index], old.lengths[index], old.active[index], width),
            params=params,
            budget=self.budget[index],
            random=HashRandom(params.seed),
        )

    def append(self, other: Batch) -> Batch:
        """These rows, then the other's."""
        if not self.rows:
            return other
        params = self.params.append(other.params)
        a, b = self.prefix, other.prefix
        return Batch(
            rows=self.rows + other.rows,
            prefix=Prefix(
                tokens=join_rows((a.tokens, b.tokens)),
                lengths=torch.cat([a.lengths, b.lengths]),
                active=torch.cat([a.active, b.active]),
                width=max(a.width, b.width),
            ),
            params=params,
            budget=torch.cat([self.budget, other.budget]),
            random=HashRandom(params.seed),
        )


def collate(requests: Sequence[Request], pad: int, start: int, device: torch.device) -> SourceBatch:
    """Right-padded sources and forced prefixes of some requests."""

    def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        width = max(len(row) for row in rows)
        tokens = [row + [pad] * (width - len(row)) for row in rows]
        return on_device(tokens, device).long(), on_device([len(row) for row in rows], device)

    source, source_lengths = padded([r.source_ids for r in requests])
    forced, forced_lengths = padded([[start, *r.forced_ids] for r in requests])
    return SourceBatch(source, source_lengths, forced, forced_lengths)


def to_host(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Tensors [B] or [B, N], 64-bit or bool, as lists; in one copy if they are on a device."""
    if tensors[0].is_cpu:
        return [tensor.tolist() for tensor in tensors]
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """The same side by side, [B, N] int64; floats are reinterpreted, bit by bit."""
    parts = [t.long() if t.dtype is torch.bool else t.view(torch.int64) for t in tensors]
    return torch.cat([part if part.dim() > 1 else part[:, None] for part in parts], 1)


def unpacked(copied: Tensor, tensors: Sequence[Tensor]) -> list[list[Any]]:
    """The lists of tensors that were `packed`."""
    widths = [t.shape[1] if t.dim() > 1 else 1 for t in tensors]
    parts = torch.split(copied, widths, 1)
    whole = [part.contiguous().view(t.shape) for part, t in zip(parts, tensors, strict=True)]
    typed = zip(whole, tensors, strict=True)
    return [(p.bool() if t.dtype is torch.bool else p.view(t.dtype)).tolist() for p, t in typed]


def open_prefix(source: SourceBatch, max_len: int) -> Prefix:
    """A prefix with room for `max_len` tokens after the start token, holding the forced ones."""
    num_rows, num_forced = source.forced.shape
    tokens = source.forced.new_zeros(num_rows, max(max_len + 1, num_forced))
    tokens[:, :num_forced] = source.forced
    return Prefix(
        tokens=tokens,
        lengths=source.forced_lengths.clone(),
        active=torch.ones(num_rows, dtype=torch.bool, device=tokens.device),
        width=num_forced,
    )


class LateDrafter:
    """A drafter that rows join at the next draft of the batch, not when they are admitted.

    While a schedule asks for no drafts, as `few_rows` does under load, nothing is encoded
    or kept for the rows. A row that joins late passes its committed tokens as its forced prefix
    (`SourceBatch.forced`), which every drafter supports anyway. When any row drafts, all rows join,
    so waiting rows always come after joined ones.
    """

    def __init__(self, drafter: Drafter, special: SpecialTokens) -> None:
        self._drafter = drafter
        self._special = special
        self._num_joined = 0
        self.num_waiting = 0  # rows that have yet to `join`
        self._source: SourceBatch | None = None  # of the waiting rows, as admitted
        self._narrowed: tuple[int, bool] | None = None  # what `narrow` was told last

    def admit(self, source: SourceBatch) -> None:
        self._source = None if self.num_waiting else source
        self.num_waiting += len(source)

    def narrow(self, longest: int, is_padded: bool) -> None:
        self._narrowed = longest, is_padded
        if not self.num_waiting:
            self._drafter.narrow(longest, is_padded)

    @torch.inference_mode()
    def join(self, batch: Batch) -> None:
        """Admit the waiting rows, each with its prefix in the batch."""
        late = batch.rows[self._num_joined :]
        has_begun = any(row.length > len(row.request.forced_ids) + 1 for row in late)
        source = self._source
        if source is None or has_begun:
            source = self._collated(late, batch.prefix)
        self._drafter.admit(source)
        if self._narrowed is not None:
            self._drafter.narrow(*self._narrowed)
        self._num_joined, self.num_waiting, self._source = len(batch.rows), 0, None

    def _collated(self, late: list[RowResult], prefix: Prefix) -> SourceBatch:
        requests, device = [row.request for row in late], prefix.tokens.device
        source = collate(requests, self._special.pad, self._special.start, device)
        lengths = prefix.lengths[self._num_joined :]
        tokens = prefix.tokens[self._num_joined :, : max(row.length for row in late)]
        junk = torch.arange(tokens.shape[1], device=device) >= lengths[:, None]
        forced = tokens.masked_fill(junk, self._special.pad)
        return replace(source, forced=forced, forced_lengths=lengths.clone())

    def propose(self, batch: Batch, width: int) -> Draft:
        """The drafter's proposal; every row must have joined."""
        assert not self.num_waiting, "propose before join"
        return self._drafter.propose(
            DraftRequest(batch.prefix, batch.budget, width, batch.params, batch.random)
        )

    def commit(self, prefix: Prefix, last: Round) -> None:
        if not self._num_joined:
            return
        if self.num_waiting:
            prefix, last = _first_rows(prefix, last, self._num_joined)
        self._drafter.commit(prefix, last)

    def select(self, rows: Tensor) -> None:
        self._source = None
        if self._num_joined == 0 and len(rows) > 0:
            self.num_waiting = len(rows)
            return
        joined = rows[rows < self._num_joined] if self.num_waiting else rows
        self._drafter.select(joined)
        self._num_joined, self.num_waiting = len(joined), len(rows) - len(joined)


def _first_rows(prefix: Prefix, last: Round, count: int) -> tuple[Prefix, Round]:
    """Prefix and round of the first rows; views, no copies."""

    def cut(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:count]

    draft, scores, verdict = last.draft, last.scores, last.verdict
    own = Prefix(prefix.tokens[:count], prefix.lengths[:count], prefix.active[:count], prefix.width)
    return own, Round(
        Draft(draft.tokens[:count], draft.lengths[:count], cut(draft.probs)),
        Scores(scores.logits[:count], cut(scores.hidden)),
        Verdict(verdict.num_accepted[:count], verdict.next_tokens[:count]),
    )
