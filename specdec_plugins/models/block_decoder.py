"""The decoder of the block drafter, as fairseq trains it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from fairseq.models.transformer import TransformerDecoder
from torch import Tensor, nn
from torch.nn import functional as F

EncoderOut = dict[str, list[Tensor]]


class Layout(NamedTuple):
    """Where the block of each row is: the first position scored, and those behind it."""

    first: Tensor  # [B, 1] int64
    columns: Tensor  # [B, n] int64, all that may be scored; some may lie past the last one

    @classmethod
    def find(cls, scored_mask: Tensor) -> Layout:
        """scored_mask: [B, W] bool, a run after each prefix."""
        first = scored_mask.int().argmax(dim=1, keepdim=True)
        longest = torch.arange(int(scored_mask.sum(1).max()), device=scored_mask.device)
        return cls(first, first + longest)


class BlockDecoder(TransformerDecoder):
    """Reads prefix and masks; positions enter at every layer.

    Every position sees every other, so each prefix state depends on the masks after it and nothing
    can be cached.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.mask = dictionary.unk()
        width = embed_tokens.embedding_dim
        self.embed_scale = math.sqrt(width) if args.scale_decoder_embedding else 1.0
        self.copy_attn = nn.Linear(width, width, bias=False) if args.src_embedding_copy else None
        self.layernorm_embedding = None  # only the encoder has one
        for layer in self.layers:
            layer.need_attn = False  # nothing uses the attention weights

    def forward(
        self,
        input_tokens: Tensor,  # [B, W] int64: prefix, block, padding
        encoder_out: EncoderOut,
        source: Tensor | None,  # [B, S, D] token embeddings of the source, unscaled
        source_keys: Tensor | None,  # [B, S, D] what the copy attention compares with
        columns: Tensor,  # [B, n] int64
    ) -> Tensor:  # [B, n, D]
        """Last hidden states of these columns; ``encoder_out`` as the encoder returned it."""
        padding_mask = input_tokens.eq(self.padding_idx)  # [B, W]
        positions = self._positions(input_tokens)
        x = self._embed(input_tokens, positions, source, source_keys, encoder_out)
        x, positions = x.transpose(0, 1), positions.transpose(0, 1)  # W x B x D
        for layer in self.layers[:-1]:
            x = self.dropout_module(x + positions)
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],  # S x B x D
                encoder_out["encoder_padding_mask"][0],
                self_attn_padding_mask=padding_mask,
            )
        columns = columns.clamp(max=input_tokens.size(1) - 1)
        x = self.dropout_module(x + positions)
        hidden = padding_mask[:, None]
        return _layer_at(self.layers[-1], x, encoder_out, hidden, columns).transpose(0, 1)

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

    def _positions(self, input_tokens: Tensor) -> Tensor:
        """[B, W, D]: embeddings of the target positions; those past the table use its last."""
        # fairseq derives positions from tokens: a row without padding gives the whole table.
        width = input_tokens.size(1)
        size = min(width, self.embed_positions.max_positions)
        table = self.embed_positions(input_tokens.new_full((1, size), self.mask))[0]
        positions = torch.arange(width, device=input_tokens.device).clamp(max=size - 1)
        return F.embedding(positions.expand_as(input_tokens), table)

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


def _layer_at(
    layer: Any,  # a decoder layer of fairseq, post-norm
    x: Tensor,  # W x B x D
    encoder_out: EncoderOut,
    hidden: Tensor,  # [B, 1, W] bool, True = masked
    columns: Tensor,  # [B, n] int64
) -> Tensor:  # n x B x D
    """The layer's output at some positions, without computing it at the others.

    Only keys and values are computed at all positions. Nothing reads the states of a prefix after
    the last layer, and most of a small drafter is its last layer.
    """
    rows = torch.arange(x.size(1), device=x.device)[:, None]  # [B, 1]
    x_at = x[columns, rows].transpose(0, 1)  # n x B x D
    seen_at = hidden.expand(-1, x.size(0), -1)[rows, columns]  # [B, n, W]
    mask = seen_at.repeat_interleave(layer.nh, dim=0)  # as fairseq wants it: [B * H, n, W]
    attended, _ = layer.self_attn(x_at, x, x, attn_mask=mask, need_weights=False)
    x_at = layer.self_attn_layer_norm(x_at + layer.dropout_module(attended))
    states, padding_mask = (encoder_out[f"encoder_{name}"][0] for name in ("out", "padding_mask"))
    attended, _ = layer.encoder_attn(
        x_at, states, states, key_padding_mask=padding_mask, need_weights=False
    )
    x_at = layer.encoder_attn_layer_norm(x_at + layer.dropout_module(attended))
    inner = layer.activation_dropout_module(layer.activation_fn(layer.fc1(x_at)))
    return layer.final_layer_norm(x_at + layer.dropout_module(layer.fc2(inner)))
