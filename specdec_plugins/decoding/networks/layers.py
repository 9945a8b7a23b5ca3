"""Building blocks of encoder, cached decoder and bidirectional decoder: positions and layers."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.networks.cache import CacheWindow, SourceMemory
from specdec_plugins.decoding.networks.config import ACTIVATIONS, StackConfig


def sinusoids(num_positions: int, dim: int) -> Tensor:
    """The sines of all frequencies, then the cosines: [num_positions, dim] float32.

    Vaswani et al. 2017, section 3.5, in the layout of tensor2tensor. Single precision whatever
    the network's dtype: trained networks have seen these values, rounding included.
    """
    num_frequencies = dim // 2
    step = math.log(10000) / max(num_frequencies - 1, 1)
    frequencies = torch.exp(torch.arange(num_frequencies, dtype=torch.float32) * -step)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return F.pad(table, (0, dim % 2))


class PositionTable(nn.Module):
    """One vector a position. As in fairseq, position 0 is at row `pad` + 1."""

    def __init__(self, stack: StackConfig, pad: int) -> None:
        super().__init__()
        self.offset = pad + 1
        self.last = stack.max_positions - 1
        size = (stack.max_positions + self.offset, stack.dim)
        if stack.positions == "learned":
            self.weight = nn.Parameter(torch.randn(size) * stack.dim**-0.5)
        else:
            self.register_buffer("weight", sinusoids(*size), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """[..., D] of `positions` [...] int64; those past the table get its last row.

        Only junk may lie past the table, but junk must not raise.
        """
        return F.embedding(positions.clamp(max=self.last) + self.offset, self.weight)


class RelativeTable(nn.Module):
    """What self-attention adds to its scores, for each head and distance from query to key.

    Half of the rows, the buckets, are for one distance each, the others for ranges that grow with
    the distance (Raffel et al. 2020, section 2.1, and the code of T5).
    """

    def __init__(self, stack: StackConfig, looks_ahead: bool) -> None:
        """looks_ahead: half of the buckets are for keys after the query, as in an encoder."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(stack.num_buckets, stack.num_heads))
        self.buckets: Tensor  # [2 * reach + 1] int64, the row of each distance
        self.reach = max(stack.max_distance, stack.num_buckets)
        distances = torch.arange(-self.reach, self.reach + 1)
        buckets = _buckets(distances, stack.num_buckets, stack.max_distance, looks_ahead)
        self.register_buffer("buckets", buckets, persistent=False)

    def by_distance(self) -> Tensor:
        """[H, 2 * reach + 1], for distances from -reach on."""
        found: Tensor = self.weight[self.buckets].T
        return found

    def forward(self, distances: Tensor) -> Tensor:
        """[B, H, n, T] of distances [B, n, T] int64."""
        at = distances.clamp(-self.reach, self.reach) + self.reach
        return self.by_distance()[:, at].transpose(0, 1)


def _buckets(distances: Tensor, count: int, most: int, looks_ahead: bool) -> Tensor:
    """The row of each distance: [N] int64 of [N] int64."""
    first = torch.zeros_like(distances)
    if looks_ahead:
        count //= 2
        first = (distances > 0) * count
        far = distances.abs()
    else:
        far = -distances.clamp(max=0)
    exact = count // 2
    growth = torch.log(far.float() / exact) / math.log(most / exact)  # in single precision, as T5's
    ranged = exact + (growth * (count - exact)).clamp(min=0).long()
    return first + torch.where(far < exact, far, ranged.clamp(max=count - 1))


def new_norm(stack: StackConfig) -> nn.Module:
    """One of the stack's norms."""
    if stack.norm == "rms":
        return nn.RMSNorm(stack.dim, stack.norm_epsilon)
    return nn.LayerNorm(stack.dim, stack.norm_epsilon)


def attend(
    queries: Tensor, keys_values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1), heads joined again.

    queries [B, n, H, d], keys_values [B, T, 2, H, d], mask broadcast to [B, H, n, T], added to
    the logits; scale: of the products, by default 1 / sqrt(d). Returns [B, n, H * d].
    """
    mask = None if mask is None else mask.to(queries.dtype)
    keys, values = keys_values.transpose(1, 3).unbind(2)  # each [B, H, T, d]
    if queries.requires_grad and queries.is_cpu:
        # Forward and backward, separate products take half as long as fused attention in bfloat16.
        scores = queries.transpose(1, 2) @ keys.mT * (scale or queries.shape[-1] ** -0.5)
        scores = scores if mask is None else scores + mask
        mixed: Tensor = scores.softmax(-1).to(values.dtype) @ values
        return mixed.transpose(1, 2).flatten(2)
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, attn_mask=mask, scale=scale
    )
    return mixed.transpose(1, 2).flatten(2)


def take(x: Tensor, columns: Tensor | slice | None) -> Tensor:
    """x [B, n, ...] at columns [B, m] int64 of each row: [B, m, ...]; None = as it is."""
    if columns is None:
        return x
    if isinstance(columns, slice):  # the same of every row
        return x[:, columns]
    return x[torch.arange(len(x), device=x.device)[:, None], columns]


class SelfAttention(nn.Module):
    """Queries, keys and values come from one product."""

    def __init__(self, stack: StackConfig) -> None:
        super().__init__()
        self.num_heads = stack.num_heads
        self.scale = None if stack.scales_scores else 1.0
        width = stack.num_heads * stack.head_dim
        self.qkv = nn.Linear(stack.dim, 3 * width, stack.biases)
        self.out = nn.Linear(width, stack.dim, stack.biases)
        self.relative: RelativeTable | None = None  # set by the stack

    def forward(
        self,
        x: Tensor,  # [B, n, D]
        mask: Tensor | None,
        store: CacheWindow | None,
        layer: int,
        columns: Tensor | slice | None,  # [B, m] int64, query positions; None = all
    ) -> Tensor:  # [B, m, D]
        qkv = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, -1)  # [B, n, 3, H, d]
        queries, keys_values = take(qkv[:, :, 0], columns), qkv[:, :, 1:]
        if store is not None:
            keys_values = store.write(layer, keys_values)
        mixed: Tensor = self.out(attend(queries, keys_values, mask, self.scale))
        return mixed


class CrossAttention(nn.Module):
    """Attention to the source, whose keys and values are computed once (`keys_values`)."""

    def __init__(self, stack: StackConfig, source_dim: int) -> None:
        super().__init__()
        self.num_heads = stack.num_heads
        self.scale = None if stack.scales_scores else 1.0
        width = stack.num_heads * stack.head_dim
        self.query = nn.Linear(stack.dim, width, stack.biases)
        self.key_value = nn.Linear(source_dim, 2 * width, stack.biases)
        self.out = nn.Linear(width, stack.dim, stack.biases)

    def keys_values(self, states: Tensor) -> Tensor:
        """[B, S, 2, H, d] of encoder states [B, S, D]."""
        projected: Tensor = self.key_value(states)
        return projected.view(*states.shape[:2], 2, self.num_heads, -1)

    def forward(self, x: Tensor, keys_values: Tensor, mask: Tensor | None) -> Tensor:
        queries = self.query(x).view(*x.shape[:2], self.num_heads, -1)  # [B, n, H, d]
        mixed: Tensor = self.out(attend(queries, keys_values, mask, self.scale))
        return mixed


class Layer(nn.Module):
    """Self-attention, attention to the source where there is one, feed-forward."""

    def __init__(self, stack: StackConfig, activation: str, source_dim: int | None) -> None:
        super().__init__()
        self.normalize_before = stack.normalize_before
        self.activation = ACTIVATIONS[activation]
        self.self_attention = SelfAttention(stack)
        self.self_norm = new_norm(stack)
        self.cross_attention = None
        if source_dim is not None:
            self.cross_attention = CrossAttention(stack, source_dim)
            self.cross_norm = new_norm(stack)
        self.up = nn.Linear(stack.dim, stack.ffn_dim, stack.biases)
        self.gate = nn.Linear(stack.dim, stack.ffn_dim, stack.biases) if stack.gated else None
        self.down = nn.Linear(stack.ffn_dim, stack.dim, stack.biases)
        self.ffn_norm = new_norm(stack)

    def forward(
        self,
        x: Tensor,  # [B, n, D]
        mask: Tensor | None,  # broadcast to [B, H, n, T], additive
        store: CacheWindow | None = None,
        index: int = 0,  # of this layer in the store
        source: Tensor | None = None,  # [B, S, 2, H, d] keys and values
        source_mask: Tensor | None = None,  # [B, 1, 1, S], additive
        columns: Tensor | slice | None = None,  # [B, m] int64, positions whose output is wanted
    ) -> Tensor:  # [B, n, D], or [B, m, D]
        """Without a store, positions attend to each other only."""
        attended = self.self_attention(self._before(self.self_norm, x), mask, store, index, columns)
        x = self._after(self.self_norm, take(x, columns) + attended)
        if self.cross_attention is not None:
            asking = self._before(self.cross_norm, x)
            x = self._after(self.cross_norm, x + self.cross_attention(asking, source, source_mask))
        return self._after(self.ffn_norm, x + self._feed_forward(self._before(self.ffn_norm, x)))

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: nn.Module, x: Tensor) -> Tensor:
        return x if self.normalize_before else norm(x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.up(x))
        out: Tensor = self.down(active if self.gate is None else active * self.gate(x))
        return out


class LayerStack(nn.ModuleList):
    """The layers of an encoder or a decoder, one after the other."""

    def __init__(self, stack: StackConfig, activation: str, source_dim: int | None) -> None:
        """With `source_dim`, each layer attends to a source of that width."""
        super().__init__(Layer(stack, activation, source_dim) for _ in range(stack.num_layers))
        self.activation = activation
        if stack.positions == "relative":
            for layer in list(self) if stack.bias_each_layer else list(self)[:1]:
                own = RelativeTable(stack, source_dim is None)
                cast(Layer, layer).self_attention.relative = own

    @property
    def attention_dtype(self) -> torch.dtype:
        """Dtype of keys and values, in which attention is computed."""
        weight = self[0].get_submodule("self_norm").weight
        assert isinstance(weight, Tensor)
        return weight.dtype

    def relative(self, index: int) -> RelativeTable | None:
        """The table of relative positions that a layer uses; None = positions are absolute."""
        own, first = (cast(Layer, self[i]).self_attention.relative for i in (index, 0))
        return first if own is None else own

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of the source for each layer, computed once: [B, S, 2, H, d] each."""
        crossings = (layer.cross_attention for layer in self)
        return tuple(c.keys_values(states) for c in crossings if isinstance(c, CrossAttention))

    def forward(
        self,
        x: Tensor,  # [B, n, D]
        mask: Tensor | None,  # broadcast to [B, H, n, T], additive
        store: CacheWindow | None = None,
        source: SourceMemory | None = None,
        span: range | None = None,  # of the layers to run; None = all
        positions: Tensor | None = None,  # [B, n, D], added to what each layer reads
        columns: Tensor | slice | None = None,  # [B, m] int64, whose output is wanted
        distances: Tensor | None = None,  # [B, n, T] int64 from queries to keys, if relative
    ) -> Tensor:  # [B, n, D], or [B, m, D]
        """The output of the last layer of the span; each layer that runs writes to the store."""
        span = range(len(self)) if span is None else span
        seen, table = mask, None
        for index in span:
            if (own := self.relative(index)) is not None and own is not table:
                assert distances is not None, "layers with relative positions need distances"
                added = own(distances)
                table, mask = own, added if seen is None else added + seen
            wanted = columns if index == span[-1] else None
            if wanted is not None and mask is not None and mask.shape[2] > 1:
                mask = take(mask[:, 0], wanted)[:, None]
            keys_values = None if source is None else source.keys_values[index]
            source_mask = None if source is None else source.mask
            x = x if positions is None else x + positions
            x = self[index](x, mask, store, index, keys_values, source_mask, wanted)
        return x
