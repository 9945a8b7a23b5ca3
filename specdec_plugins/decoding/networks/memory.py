"""What a decoder remembers of its source sentences, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.embedding import additive


@dataclass(frozen=True)
class SourceMemory:
    """Computed once a sentence, when its row is admitted; right-padded to the longest row."""

    lengths: Tensor  # [B] int64
    padding_mask: Tensor  # [B, S] bool, True = padding
    keys_values: tuple[Tensor, ...]  # [B, S, 2, H, d] for each layer
    extras: tuple[Tensor, ...] = ()  # [B, S, D] each: encoder states, or what can be copied
    mask: Tensor | None = None  # [B, 1, 1, S], additive; None = no padding anywhere

    def __len__(self) -> int:
        return self.lengths.shape[0]

    def select(self, rows: Tensor) -> SourceMemory:
        """The rows [B'] int64, in that order, no wider than the longest of them."""
        return self._map(lambda part: part[rows], self.lengths[rows]).fitted()

    def append(self, other: SourceMemory) -> SourceMemory:
        """These rows followed by the other's."""
        if len(self) == 0 or len(other) == 0:
            return other if len(self) == 0 else self
        pairs = zip(self.keys_values, other.keys_values, strict=True)
        extras = zip(self.extras, other.extras, strict=True)
        return SourceMemory(
            lengths=torch.cat([self.lengths, other.lengths]),
            padding_mask=_join((self.padding_mask, other.padding_mask), fill=True),
            keys_values=tuple(_join(pair) for pair in pairs),
            extras=tuple(_join(pair) for pair in extras),
        ).fitted()

    def fitted(self) -> SourceMemory:
        """Cut to the longest row, with its mask. Asks the device once, as rows come and go."""
        if len(self) == 0:
            return self
        kept_mask = ~self.padding_mask
        longest, num_kept = torch.stack([self.lengths.max(), kept_mask.sum()]).tolist()
        mask = None
        if num_kept < longest * len(self):
            mask = additive(kept_mask[:, None, None, :longest], self.keys_values[0].dtype)
        return self._map(lambda part: part[:, :longest], self.lengths, mask)

    def _map(
        self, change: Callable[[Tensor], Tensor], lengths: Tensor, mask: Tensor | None = None
    ) -> SourceMemory:
        return SourceMemory(
            lengths=lengths,
            padding_mask=change(self.padding_mask),
            keys_values=tuple(change(part) for part in self.keys_values),
            extras=tuple(change(part) for part in self.extras),
            mask=mask,
        )


def _join(parts: Sequence[Tensor], fill: bool = False) -> Tensor:
    """Rows of one, then rows of the other, padded to the longer: [B, S, ...] each."""
    longest = max(part.shape[1] for part in parts)
    out = parts[0].new_empty(sum(map(len, parts)), longest, *parts[0].shape[2:])
    first = 0
    for part in parts:
        rows = out[first : first + len(part)]
        rows[:, : part.shape[1]] = part
        rows[:, part.shape[1] :] = fill
        first += len(part)
    return out
