"""The rows that decode together: their state on the device, and the host's view of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns

from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.types import (
    DecodeParams,
    Prefix,
    Request,
    RowParams,
    RowResult,
    SourceBatch,
)


@dataclass
class HostRow:
    """What the host knows of one row without asking the device."""

    request: Request
    result: RowResult
    length: int  # committed tokens, start token included
    budget: int = 0  # tokens that the next round drafts
    finished: bool = False


@dataclass
class Batch:
    """Rows in one order, the same in every field and in every stateful part."""

    rows: list[HostRow]
    prefix: Prefix
    params: RowParams
    budget: Tensor  # [B] int64, tokens that the next round drafts
    log_probs: Tensor  # [B] float64, the verifier's, summed over emitted tokens
    random: HashRandom

    @staticmethod
    def empty(device: torch.device) -> Batch:
        none = torch.zeros(0, dtype=torch.int64, device=device)
        params = DecodeParams.stack([], device)
        prefix = Prefix(none[:, None], none, none.bool(), width=0)
        return Batch([], prefix, params, none, none.double(), HashRandom(params.seed))

    @staticmethod
    def open(requests: Sequence[Request], source: SourceBatch) -> Batch:
        """Fresh rows for these requests; `source` is their `collate`."""
        device = source.tokens.device
        params = DecodeParams.stack([r.params for r in requests], device)
        return Batch(
            rows=[
                HostRow(r, RowResult(r.id, list(r.forced_ids)), len(r.forced_ids) + 1)
                for r in requests
            ],
            prefix=open_prefix(source, max(r.params.max_len for r in requests)),
            params=params,
            budget=torch.zeros_like(params.block_size),
            log_probs=torch.zeros(len(requests), dtype=torch.float64, device=device),
            random=HashRandom(params.seed),
        )

    def select(self, keep: Sequence[int], index: Tensor) -> Batch:
        """The rows `keep`, in that order; `index` is the same list on the device."""
        old, params = self.prefix, self.params.select(index)
        rows = [self.rows[i] for i in keep]
        width = max(row.length for row in rows)
        return Batch(
            rows=rows,
            prefix=Prefix(old.tokens[index], old.lengths[index], old.active[index], width),
            params=params,
            budget=self.budget[index],
            log_probs=self.log_probs[index],
            random=HashRandom(params.seed),
        )

    def append(self, other: Batch) -> Batch:
        """These rows, then the other's."""
        params = self.params.append(other.params)
        return Batch(
            rows=self.rows + other.rows,
            prefix=_append_prefix(self.prefix, other.prefix),
            params=params,
            budget=torch.cat([self.budget, other.budget]),
            log_probs=torch.cat([self.log_probs, other.log_probs]),
            random=HashRandom(params.seed),
        )


def collate(requests: Sequence[Request], pad: int, start: int, device: torch.device) -> SourceBatch:
    """Right-padded sources and forced prefixes of some requests."""

    def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        width = max(len(row) for row in rows)
        tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        return tokens, torch.tensor([len(row) for row in rows], device=device)

    source, source_lengths = padded([r.source_ids for r in requests])
    forced, forced_lengths = padded([[start, *r.forced_ids] for r in requests])
    return SourceBatch(source, source_lengths, forced, forced_lengths)


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


def _append_prefix(a: Prefix, b: Prefix) -> Prefix:
    """Rows of a, then rows of b, in storage wide enough for both."""
    width = max(a.tokens.shape[1], b.tokens.shape[1])
    return Prefix(
        tokens=torch.cat([pad_columns(p.tokens, (0, width - p.tokens.shape[1])) for p in (a, b)]),
        lengths=torch.cat([a.lengths, b.lengths]),
        active=torch.cat([a.active, b.active]),
        width=max(a.width, b.width),
    )
