"""Keys and values of committed target tokens, each row at its own length, and of the sources; and
the fixed addresses that both may have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.config import StackConfig
from specdec_plugins.decoding.networks.cpu import ops

_GRAIN = 8  # lengths are rounded up to multiples of it, for fast attention kernels
_FIXED_GRAIN = 16  # the same where it is free: CUDA copies a mask of another length in each layer
_FIRST = 32  # initial positions a row, enough for most sentences


@dataclass(frozen=True)
class CacheWindow:
    """One pass over n new positions a row: where they are written, and what they see."""

    positions: Tensor  # [B, n] int64
    mask: Tensor  # [B, 1, n, T], additive
    storage: Tensor  # [L, B * capacity, 2, H, d]
    at: Tensor  # [B * n] int64, where in the storage they go
    distances: Tensor | None  # [B, n, T] int64, to what each sees; None = positions are absolute
    _num_rows: int

    def write(self, layer: int, keys_values: Tensor) -> Tensor:
        """Store [B, n, 2, H, d]; returns the live part, [B, T, 2, H, d], without copying it."""
        storage = self.storage[layer]
        storage.index_copy_(0, self.at, keys_values.flatten(0, 1))
        live = storage.view(self._num_rows, -1, *storage.shape[1:])
        return live[:, : self.mask.shape[-1]]


class KVCache:
    """One tensor for all layers; a row holds `lengths[b]` positions, and junk after them.

    Junk is masked, but it must be finite, since 0 * inf = NaN. So a row begins with zeros after it,
    even if the row that had its storage before has overflowed. A pass opens a `window`, each layer
    writes to it, and `crop` then sets what is kept. There is room for more rows and positions than
    are in use: when rows come and go, only live entries move.
    """

    def __init__(
        self, stack: StackConfig, num_rows: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (stack.num_layers, num_rows, 0, 2, stack.num_heads, stack.head_dim)
        self._room = torch.zeros(shape, device=device, dtype=dtype)
        self._live = 0  # positions that the last pass may have written, known to the host
        self._written = 0  # that any pass may have written, in any row
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)  # [B]
        # The position of what each place of a row holds, which distances are computed from.
        self._held: Tensor | None = None
        if stack.positions == "relative":
            self._held = torch.empty(num_rows, 0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @property
    def storage(self) -> Tensor:
        """Keys and values of the present rows: [L, B, capacity, 2, H, d]."""
        return self._room[:, : len(self)]

    @property
    def capacity(self) -> int:
        """Positions a row for which there is storage."""
        return self._room.shape[2]

    def window(
        self, num_new: int, width: int, skip: int = 0, last_seen: Tensor | None = None
    ) -> CacheWindow:
        """Room for `num_new` positions after every row and `skip` more.

        `width`, known to the host, is at least the largest of `lengths`: attention runs over
        `width + skip + num_new` positions, rounded up, not over the whole capacity. Opening a
        window changes no length; the skipped positions belong to earlier windows since the last
        `crop`. `last_seen` [B, n] int64 is the last position that each new one may attend to;
        without it each sees itself and what is before it.
        """
        live = self.make_room(width + skip + num_new)
        device = self.lengths.device
        positions = self.lengths[:, None] + torch.arange(skip, skip + num_new, device=device)
        seen = (positions if last_seen is None else last_seen)[..., None]
        mask = ops.additive(torch.arange(live, device=device) <= seen, self._room.dtype)[:, None]
        distances = None
        if self._held is not None:
            distances = torch.arange(live, device=device) - positions[..., None]
        return self._opened(positions, positions, mask, distances)

    def window_at(self, positions: Tensor, places: Tensor, seen: Tensor) -> CacheWindow:
        """Room for new tokens [B, n] at any places of their rows; see `Branching.score_at`."""
        self.make_room(64 * seen.shape[-1])
        mask = ops.mask_of_bits(seen, self._room.dtype)[:, None]
        distances = None
        if self._held is not None:
            held = self._held[: len(self)]
            held.scatter_(1, places, positions)
            distances = held[:, None, : 64 * seen.shape[-1]] - positions[..., None]
        return self._opened(positions, places, mask, distances)

    def _opened(
        self, positions: Tensor, places: Tensor, mask: Tensor, distances: Tensor | None
    ) -> CacheWindow:
        rows = torch.arange(len(self), device=places.device)[:, None] * self.capacity
        at, storage = (rows + places).flatten(), self.storage.flatten(1, 2)
        return CacheWindow(positions, mask, storage, at, distances, len(self))

    def make_room(self, num_positions: int) -> int:
        """Make room for a pass to write so many positions a row; returns that number rounded up."""
        live = -(-num_positions // _GRAIN) * _GRAIN
        self._reserve(len(self), live)
        self._live = live
        self._written = max(self._written, live)
        return live

    def crop(self, lengths: Tensor) -> None:
        """Keep only the first `lengths` [B] int64 positions of each row."""
        self.lengths = lengths

    def select(self, rows: Tensor) -> None:
        """Keep the rows [B'] int64, in that order."""
        for layer in self._room:  # one at a time, so that the copies stay small
            layer[: len(rows), : self._live] = layer[rows, : self._live]
            layer[: len(rows), self._live : self._written] = 0
        if self._held is not None:
            self._held[: len(rows), : self._live] = self._held[rows, : self._live]
        self.lengths = self.lengths[rows]

    def append(self, other: KVCache) -> None:
        """Append the other's rows; the other must not be used any more."""
        num_rows = len(self)
        if num_rows == 0:
            vars(self).update(vars(other))
            return
        self._reserve(num_rows + len(other), other._live)
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.storage[:, num_rows:, : other._live] = other.storage[:, :, : other._live]
        self.storage[:, num_rows:, other._live : self._written] = 0
        if self._held is not None and other._held is not None:
            self._held[num_rows : len(self), : other._live] = other._held[:, : other._live]
        self._written = max(self._written, other._live)
        self._live = max(self._live, other._live)

    def _reserve(self, num_rows: int, num_positions: int) -> None:
        """Grow by doubling, so that rows are not copied whenever one joins or gets longer."""
        rows, positions = self._room.shape[1:3]
        if num_rows <= rows and num_positions <= positions:
            return
        rows = rows if num_rows <= rows else max(num_rows, 2 * rows)
        if num_positions > positions:
            positions = max(num_positions, 2 * positions, _FIRST)
        shape = (len(self._room), rows, positions, *self._room.shape[3:])
        room = self._room.new_zeros(shape)
        room[:, : len(self), : self._live] = self.storage[:, :, : self._live]
        self._room = room
        if self._held is not None:
            held = torch.arange(positions, device=room.device).repeat(rows, 1)
            held[: len(self), : self._live] = self._held[: len(self), : self._live]
            self._held = held


@dataclass(frozen=True)
class SourceMemory:
    """What is computed once, when a row is admitted; right-padded to the longest row."""

    lengths: Tensor  # [B] int64
    padding_mask: Tensor  # [B, S] bool, True = padding
    keys_values: tuple[Tensor, ...]  # [B, S, 2, H, d] for each layer
    extras: tuple[Tensor, ...] = ()  # [B, S, D] each: encoder states, or what can be copied
    mask: Tensor | None = None  # [B, 1, 1, S], additive; None = no padding anywhere

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @cached_property
    def compiled(self) -> Any:
        """What the kernels read, checked once."""
        return ops.native.Source(layers=self.keys_values, mask=self.mask, copied=self.extras)

    def select(self, rows: Tensor) -> SourceMemory:
        """The rows [B'] int64, in that order, no wider than the longest of them."""
        return self._map(lambda part: part[rows], self.lengths[rows]).trimmed()

    def append(self, other: SourceMemory) -> SourceMemory:
        """These rows followed by the other's."""
        pairs = zip(self.keys_values, other.keys_values, strict=True)
        extras = zip(self.extras, other.extras, strict=True)
        return SourceMemory(
            lengths=torch.cat([self.lengths, other.lengths]),
            padding_mask=join_rows((self.padding_mask, other.padding_mask), fill=True),
            keys_values=tuple(join_rows(pair) for pair in pairs),
            extras=tuple(join_rows(pair) for pair in extras),
        ).trimmed()

    def trimmed(self) -> SourceMemory:
        """Cut to the longest row, with its mask; on a device uncut, so that the host need not wait:
        see `narrowed`.
        """
        if not self.lengths.is_cpu:
            return self.narrowed(self.padding_mask.shape[1], is_padded=True)
        longest = max(self.lengths.tolist())
        return self.narrowed(longest, bool(self.padding_mask[:, :longest].any()))

    def narrowed(self, longest: int, is_padded: bool) -> SourceMemory:
        """Cut to so many positions, with a mask if rows are padded: see `Stateful.narrow`."""
        longest = min(longest, self.padding_mask.shape[1])
        if longest == self.padding_mask.shape[1] and is_padded == (self.mask is not None):
            return self
        mask = None
        if is_padded:
            kept_mask = ~self.padding_mask[:, None, None, :longest]
            mask = ops.additive(kept_mask, self.keys_values[0].dtype)
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


def join_rows(parts: Sequence[Tensor], fill: int = 0) -> Tensor:
    """The rows of all parts, [B, S, ...] each, in order, padded to the longest."""
    longest = max(part.shape[1] for part in parts)
    out = parts[0].new_empty(sum(map(len, parts)), longest, *parts[0].shape[2:])
    first = 0
    for part in parts:
        rows = out[first : first + len(part)]
        rows[:, : part.shape[1]] = part
        rows[:, part.shape[1] :] = fill
        first += len(part)
    return out


class FixedCache(KVCache):
    """A cache whose storage and lengths stay where they are while rows neither join nor leave.

    Its passes may be repeated without this object, so each may have written to all positions.
    """

    def __init__(self, room: Tensor, lengths: Tensor) -> None:
        """room: [L, B or more, capacity, 2, H, d]; lengths: [B] int64."""
        self._room, self.lengths, self._held = room, lengths, None
        self._live = self._written = self.capacity

    def make_room(self, num_positions: int) -> int:
        live = -(-num_positions // _FIXED_GRAIN) * _FIXED_GRAIN
        self._reserve(len(self), live)
        self._live = self._written = self.capacity
        return live

    def crop(self, lengths: Tensor) -> None:
        self.lengths.copy_(lengths)


class Pool:
    """Tensors by name, which a recorded round reads and writes whenever it is repeated.

    What is put into one, when rows have joined or left, is at its front. The view that comes back
    has the address and the strides of any other of its shape, until a tensor grows and so moves.
    """

    def __init__(self) -> None:
        self.most_rows = self.most_tokens = 0  # there is room for so many, and for texts so long
        self.rounds: dict[Hashable, Any] = {}  # recorded ones, and a GPU's memory that these share;
        self.scratch: Any = None  # both are forgotten when a tensor moves
        self._tensors: dict[str, Tensor] = {}

    def _room(self, name: str, like: Tensor, shape: Sequence[int]) -> Tensor:
        held = self._tensors.get(name)
        if held is None or any(a < b for a, b in zip(held.shape, shape, strict=True)):
            most = shape if held is None else map(max, held.shape, shape)
            held = self._tensors[name] = like.new_zeros(tuple(most))
            self.rounds, self.scratch = {}, None
        return held

    def put(self, name: str, part: Tensor, shape: Sequence[int], fill: float = 0) -> Tensor:
        """A tensor [B, ...] of that shape, with `part` at its front and `fill` behind it."""
        held = self._room(name, part, (max(shape[0], self.most_rows), *shape[1:]))
        view = held[tuple(map(slice, shape))].fill_(fill)
        view[tuple(map(slice, part.shape))] = part
        return view

    def cache(self, name: str, cache: KVCache, num_rows: int, num_positions: int) -> FixedCache:
        """A cache with that content; rows behind it hold junk."""
        live, (layers, _, _, *rest) = cache._live, cache._room.shape
        shape = (layers, max(num_rows, self.most_rows), max(num_positions, live), *rest)
        held = self._room(name, cache._room, shape)
        if held is not cache._room:
            held[:, : len(cache), :live] = cache.storage[:, :, :live]
            held[:, : len(cache), live:] = 0
        return FixedCache(held, self.put(f"{name} lengths", cache.lengths, (num_rows,)))

    def memory(self, name: str, memory: SourceMemory, num_rows: int, width: int) -> SourceMemory:
        """A memory with that content, always with a mask; rows behind it see zeros."""

        def put(kind: object, part: Tensor, fill: int = 0) -> Tensor:
            return self.put(f"{name} {kind}", part, (num_rows, width, *part.shape[2:]), fill)

        padding = put("padding", memory.padding_mask, fill=True)
        padding[len(memory) :] = False
        mask = ops.additive(~padding[:, None, None], memory.keys_values[0].dtype)
        return SourceMemory(
            lengths=self.put(f"{name} sources", memory.lengths, (num_rows,)),
            padding_mask=padding,
            keys_values=tuple(put(i, part) for i, part in enumerate(memory.keys_values)),
            extras=tuple(put(f"extra {i}", part) for i, part in enumerate(memory.extras)),
            mask=self.put(f"{name} mask", mask, mask.shape),
        )
