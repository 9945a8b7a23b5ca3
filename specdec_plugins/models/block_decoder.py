"""The decoder of the block drafter, as fairseq trains it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoder
from torch import Tensor, nn
from torch.nn import functional as F

EncoderOut = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Layout:
    """The target position of each column of a batch, and its prefix or block.

    A row is a prefix followed by a block, or by several blocks that share it:
    ``tasks.block_mask``.
    """

    positions: Tensor  # [B, W] int64, in the target
    block: Tensor  # [B, W] int64: number of the block, from 0; -1 = prefix
    starts: Tensor  # [B, N] int64: prefix length of each block
    columns: Tensor  # [B, n] int64: the blocks' columns, all that may be scored; some >= W
    num_positions: int  # all positions are below it

    @classmethod
    def find(cls, scored_mask: Tensor, starts: Tensor | None = None) -> Layout:
        """scored_mask: [B, W] bool, a run after each prefix; starts: [B, N] of shared prefixes."""
        width = scored_mask.size(1)
        column = torch.arange(width, device=scored_mask.device).expand_as(scored_mask)
        first = scored_mask.int().argmax(dim=1, keepdim=True)  # [B, 1]
        if starts is None:
            columns = first + column[:, : int(scored_mask.sum(1).max())]
            return cls(column, (column >= first).long() - 1, first, columns, width)
        shared = int(first.min())
        size = (width - shared) // starts.size(1)
        inside = starts[..., None] + column[0, :size]  # [B, N, K]
        positions = torch.cat([column[:, :shared], inside.flatten(1)], 1)
        block = torch.div(column - shared, size, rounding_mode="floor").clamp(min=-1)
        return cls(positions, block, starts, column[:, shared:], shared + size)

    @property
    def places(self) -> Tensor:
        """[B, W] int64: the place of a block column in its block, from 0."""
        return self.positions - self._own_starts

    @property
    def _own_starts(self) -> Tensor:  # [B, W]
        return self.starts.gather(1, self.block.clamp(min=0))

    def hidden(self, padding_mask: Tensor) -> Tensor:  # [B, W] bool -> [B, W, W] bool
        """Which keys (last axis) are hidden from which queries if the prefix is cached.

        A prefix position sees the prefix up to itself, so its state never changes and can be cached
        across rounds. A block position, revealed or masked, sees the prefix before its block and
        the whole block. Examples, one block in place, and blocks of 1 that start at 1 and 2 and
        share a prefix::

            a  1 . . .        a  1 . .  . .
            b  1 1 . .        b  1 1 .  . .
            m  1 1 1 1        c  1 1 1  . .
            m  1 1 1 1        m  1 . .  1 .
                              m  1 1 .  . 1
        """
        in_prefix = self.block < 0  # [B, W]
        end = torch.where(in_prefix, self.positions + 1, self._own_starts)  # of the prefix seen
        before = self.positions[:, None] < end[..., None]  # [B, W, W]
        together = self.block[:, None] == self.block[..., None]
        return padding_mask[:, None] | ~torch.where(in_prefix[:, None], before, together)


class BlockDecoder(TransformerDecoder):
    """Reads prefix and masks; positions enter at every layer.

    As published, every position sees every other, so each prefix state depends on the masks after
    it and nothing can be cached. With `cached_prefix` see `Layout.hidden`.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.mask = dictionary.unk()
        self.cached_prefix = bool(args.cached_prefix)
        width = embed_tokens.embedding_dim
        self.embed_scale = math.sqrt(width) if args.scale_decoder_embedding else 1.0
        self.copy_attn = nn.Linear(width, width, bias=False) if args.src_embedding_copy else None
        self.head: SequentialHead | None = None
        if args.sequential_head:
            sizes = (args.sequential_head, args.head_attention, args.encoder_embed_dim)
            self.head = SequentialHead(width, *sizes)
        # The token before the first one, as in the verifier.
        self.start = dictionary.eos() if args.start_token is None else args.start_token
        self.layernorm_embedding = None  # only the encoder has one
        for layer in self.layers:
            layer.need_attn = False  # nothing uses the attention weights
        if args.swish:
            swish(self.layers)

    def forward(
        self,
        input_tokens: Tensor,  # [B, W] int64: prefix, block, padding
        encoder_out: EncoderOut,
        source: Tensor | None,  # [B, S, D] token embeddings of the source, unscaled
        source_keys: Tensor | None,  # [B, S, D] what the copy attention compares with
        layout: Layout,
    ) -> Tensor:  # [B, n, D]
        """Last hidden states of the blocks' columns; ``encoder_out`` as the encoder returned it."""
        padding_mask = input_tokens.eq(self.padding_idx)  # [B, W]
        positions = self._positions(layout)
        x = self._embed(input_tokens, positions, source, source_keys, encoder_out)
        hidden = layout.hidden(padding_mask) if self.cached_prefix else None
        x, positions = x.transpose(0, 1), positions.transpose(0, 1)  # W x B x D
        for layer in self.layers[:-1]:
            x = self.dropout_module(x + positions)
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],  # S x B x D
                encoder_out["encoder_padding_mask"][0],
                self_attn_mask=None if hidden is None else _for_heads(hidden, layer.nh),
                self_attn_padding_mask=padding_mask,
            )
        hidden = padding_mask[:, None] if hidden is None else hidden
        columns = layout.columns.clamp(max=input_tokens.size(1) - 1)
        x = self.dropout_module(x + positions)
        return _layer_at(self.layers[-1], x, encoder_out, hidden, columns).transpose(0, 1)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """Drop the shortlist, which only decoding uses."""
        for own in [key for key in state_dict if key.startswith(f"{name}.shortlist.")]:
            del state_dict[own]
        upgraded: dict[str, Any] = super().upgrade_state_dict_named(state_dict, name)
        return upgraded

    def _embed(
        self,
        input_tokens: Tensor,  # [B, W] int64
        positions: Tensor,  # [B, W, D]
        source: Tensor | None,  # [B, S, D], as the next
        source_keys: Tensor | None,
        encoder_out: EncoderOut,
    ) -> Tensor:  # [B, W, D]
        """The input of the first layer, without positions."""
        x: Tensor = self.embed_tokens(input_tokens)
        if self.copy_attn is not None:
            assert source is not None
            assert source_keys is not None
            mixture = self._mix_source(positions, source, source_keys, encoder_out)
            x = torch.where(input_tokens.eq(self.mask)[..., None], mixture, x)
        return x if self.embed_scale == 1.0 else x * self.embed_scale

    def _positions(self, layout: Layout) -> Tensor:
        """[B, W, D]: embeddings of the target positions; those past the table use its last."""
        # fairseq derives positions from tokens: a row without padding gives the whole table.
        size = min(layout.num_positions, self.embed_positions.max_positions)
        table = self.embed_positions(layout.positions.new_full((1, size), self.mask))[0]
        return F.embedding(layout.positions.clamp(max=size - 1), table)

    def _mix_source(
        self,
        positions: Tensor,  # [B, W, D]
        source: Tensor,  # [B, S, D]
        source_keys: Tensor,  # [B, S, D]
        encoder_out: EncoderOut,
    ) -> Tensor:  # [B, W, D]
        """For each target position, source embeddings mixed by attention from its position."""
        assert self.copy_attn is not None
        scores = torch.bmm(self.copy_attn(positions), source_keys.transpose(1, 2))  # [B, W, S]
        padding_mask = encoder_out["encoder_padding_mask"][0]  # [B, S]
        scores = scores.masked_fill(padding_mask[:, None], -math.inf)
        precision = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=precision).type_as(source)  # [B, W, S]
        return torch.bmm(weights, source)


def swish(layers: nn.ModuleList) -> None:
    """Give fairseq's layers an activation for which it has a class, but no function."""
    for layer in layers:
        vars(layer)["activation_fn"] = F.silu


def _for_heads(hidden: Tensor, num_heads: int) -> Tensor:
    """[B, n, W] for every head, as fairseq wants it: [B * H, n, W]."""
    return hidden.repeat_interleave(num_heads, dim=0)


def _layer_at(
    layer: Any,  # a decoder layer of fairseq, post-norm
    x: Tensor,  # W x B x D
    encoder_out: EncoderOut,
    hidden: Tensor,  # [B, 1 or W, W] bool, True = masked
    columns: Tensor,  # [B, n] int64
) -> Tensor:  # n x B x D
    """The layer's output at some positions, without computing it at the others.

    Only keys and values are computed at all positions. Nothing reads the states of a prefix after
    the last layer, and most of a small drafter is its last layer.
    """
    rows = torch.arange(x.size(1), device=x.device)[:, None]  # [B, 1]
    x_at = x[columns, rows].transpose(0, 1)  # n x B x D
    seen_at = hidden.expand(-1, x.size(0), -1)[rows, columns]  # [B, n, W]
    mask = _for_heads(seen_at, layer.nh)
    attended, _ = layer.self_attn(x_at, x, x, attn_mask=mask, need_weights=False)
    x_at = layer.self_attn_layer_norm(x_at + layer.dropout_module(attended))
    states, padding_mask = (encoder_out[f"encoder_{name}"][0] for name in ("out", "padding_mask"))
    attended, _ = layer.encoder_attn(
        x_at, states, states, key_padding_mask=padding_mask, need_weights=False
    )
    x_at = layer.encoder_attn_layer_norm(x_at + layer.dropout_module(attended))
    inner = layer.activation_dropout_module(layer.activation_fn(layer.fc1(x_at)))
    return layer.final_layer_norm(x_at + layer.dropout_module(layer.fc2(inner)))


class SequentialHead(nn.Module):
    """Corrects the state of a masked position by the token drafted before it.

    One pass computes all positions of a block, so none knows the tokens chosen at the others. The
    head runs over them from left to right::

        [u_k ; q_k] = S h_k + T norm(e(t_{k-1}))
        z_k = h_k + O relu(u_k + C attend(q_k, source))

    with h_k the position's last state, e the token embedding (not scaled) and O zero at the start,
    so that training starts from the drafter without a head. The idea is from Hydra (Ankner et al.
    2024) and ReDrafter (Zhang et al. 2024), for one parallel block instead of several heads.

    `attend` is multi-head attention (Vaswani et al. 2017, section 3.2.2) to the encoder's states:
    what comes next in the source depends on the token just drafted, and h_k was computed before
    that token was known. Without attention heads there is neither q nor C.
    """

    def __init__(self, dim: int, hidden_dim: int, num_heads: int = 0, source_dim: int = 0) -> None:
        super().__init__()
        self.hidden_dim, self.num_heads = hidden_dim, num_heads
        width = hidden_dim + (dim if num_heads else 0)
        self.norm = nn.LayerNorm(dim)
        self.state = nn.Linear(dim, width)
        self.token = nn.Linear(dim, width, bias=False)
        self.out = nn.Linear(hidden_dim, dim)
        if num_heads:
            self.key_value = nn.Linear(source_dim, 2 * dim)
            self.context = nn.Linear(dim, hidden_dim, bias=False)
        self.forget()

    def forget(self) -> None:
        """Zero the output layer, so that the head changes nothing at first."""
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, states: Tensor, before: Tensor, source: Tensor, padding_mask: Tensor
    ) -> Tensor:
        """Corrected states [B, n, D], from states [B, n, D] and embeddings [B, n, D] of the tokens
        before; source: the encoder's states [B, S, D]; padding_mask: [B, S] bool.
        """
        hidden = self.state(states) + self.token(self.norm(before))
        if self.num_heads:
            hidden, queries = hidden.split([self.hidden_dim, states.size(-1)], dim=-1)
            hidden = hidden + self.context(self._attend(queries, source, padding_mask))
        corrected: Tensor = states + self.out(F.relu(hidden))
        return corrected

    def _attend(self, queries: Tensor, source: Tensor, padding_mask: Tensor) -> Tensor:
        """[B, n, D] for queries [B, n, D]; separate products, as in `training.on_cpu`."""
        num_rows, _, dim = queries.shape
        queries = queries.view(num_rows, -1, self.num_heads, dim // self.num_heads)
        shape = (num_rows, -1, 2, self.num_heads, dim // self.num_heads)
        keys, values = self.key_value(source).view(shape).transpose(1, 3).unbind(2)
        scores = queries.transpose(1, 2) @ keys.mT * queries.size(-1) ** -0.5  # [B, H, n, S]
        scores = scores.masked_fill(padding_mask[:, None, None], -math.inf)
        precision = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(-1, dtype=precision).type_as(values)
        return (weights @ values).transpose(1, 2).flatten(2)
