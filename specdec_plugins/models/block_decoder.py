"""The decoder of the block drafter, as fairseq trains it."""

from __future__ import annotations

import math
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoder
from torch import Tensor, nn
from torch.nn import functional as F

EncoderOut = dict[str, list[Tensor]]


def hidden_from(
    padding_mask: Tensor,  # [B, W] bool, True = padding
    prefix_lengths: Tensor | None,  # [B] int64; None = every position sees every other
) -> Tensor:  # [B, 1 or W, W] bool
    """Which keys (last axis) are hidden from which queries.

    With prefix lengths a prefix position sees the prefix up to itself, so that its state never
    changes again and can be kept from round to round; a block position, revealed or masked, sees
    the whole prefix and the whole block. Example, a prefix of 2 and a block of 2::

        a  1 . . .
        b  1 1 . .
        m  1 1 1 1
        m  1 1 1 1
    """
    padding = padding_mask[:, None]  # [B, 1, W]
    if prefix_lengths is None:
        return padding
    columns = torch.arange(padding_mask.size(1), device=padding_mask.device)
    in_prefix = columns < prefix_lengths[:, None]  # [B, W]
    later = columns > columns[:, None]  # [W, W], by query, then key
    return padding | (later & in_prefix[:, :, None])


def hidden_from_blocks(
    prefix_padding: Tensor,  # [B, T] bool, True = padding of the shared prefix
    starts: Tensor,  # [B, N] int64, prefix length of each block
    block_size: int,
) -> Tensor:  # [B, W, W] bool, W = T + N * block_size
    """The same for several blocks that share a prefix: see ``tasks.block_mask.share_prefix``.

    A block sees the prefix before its start, and itself. Example, starts 1 and 2, blocks of 1::

        a  1 . .  . .
        b  1 1 .  . .
        c  1 1 1  . .
        m  1 . .  1 .
        m  1 1 .  . 1
    """
    width, num_blocks = prefix_padding.size(1), starts.size(1)
    columns = torch.arange(width, device=starts.device)
    causal = columns <= columns[:, None]  # [T, T]
    before = columns < starts[..., None]  # [B, N, T]
    seen = torch.cat(
        [causal.expand(len(starts), -1, -1), before.repeat_interleave(block_size, dim=1)], 1
    )  # [B, W, T]
    own = torch.arange(num_blocks, device=starts.device).repeat_interleave(block_size)
    together = own == own[:, None]  # [N * K, N * K]
    together = torch.nn.functional.pad(together, (0, 0, width, 0)).expand(len(starts), -1, -1)
    hidden = ~torch.cat([seen, together], 2)
    hidden[:, :, :width] |= prefix_padding[:, None]
    return hidden


class BlockDecoder(TransformerDecoder):
    """Reads prefix and masks; positions enter at every layer.

    As published, every position sees every other, so each prefix state depends on the masks behind
    it and nothing can be kept. With `cached_prefix` see `hidden_from`.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.mask = dictionary.unk()
        self.cached_prefix = bool(args.cached_prefix)
        width = embed_tokens.embedding_dim
        self.embed_scale = math.sqrt(width) if args.scale_decoder_embedding else 1.0
        self.copy_attn = nn.Linear(width, width, bias=False) if args.src_embedding_copy else None
        self.head = SequentialHead(width, args.sequential_head) if args.sequential_head else None
        self.start = dictionary.eos()  # stands before the first token, as in the verifier
        for layer in self.layers:
            layer.need_attn = False  # attention weights are nobody's output here

    def forward(
        self,
        input_tokens: Tensor,  # [B, W] int64: prefix, block, padding
        encoder_out: EncoderOut,
        source: Tensor | None,  # [B, S, D] token embeddings of the source, unscaled
        source_keys: Tensor | None,  # [B, S, D] what the copy attention compares with
        prefix_lengths: Tensor | None = None,  # [B] int64; read with `cached_prefix` only
        columns: Tensor | None = None,  # [B, n] int64, positions whose state is wanted; None = all
        starts: Tensor | None = None,  # [B, N] int64 of blocks that share a prefix
        block_size: int = 0,  # with `starts`
    ) -> Tensor:  # [B, n or W, D]
        """Last hidden states; ``encoder_out`` as the encoder returned it."""
        padding_mask = input_tokens.eq(self.padding_idx)  # [B, W]
        if starts is None:
            positions = self.embed_positions(input_tokens)  # [B, W, D]
        else:
            positions = self._block_positions(input_tokens, starts, block_size)
        x = self._embed(input_tokens, positions, source, source_keys, encoder_out)
        hidden = self._hidden(padding_mask, prefix_lengths, starts, block_size)
        x, positions = x.transpose(0, 1), positions.transpose(0, 1)  # W x B x D
        for layer in self.layers[: None if columns is None else -1]:
            x = self.dropout_module(x + positions)
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],  # S x B x D
                encoder_out["encoder_padding_mask"][0],
                self_attn_mask=None if hidden is None else _for_heads(hidden, layer.nh),
                self_attn_padding_mask=padding_mask,
            )
        if columns is None:
            return x.transpose(0, 1)
        hidden = hidden_from(padding_mask, None) if hidden is None else hidden
        x = self.dropout_module(x + positions)
        return _layer_at(self.layers[-1], x, encoder_out, hidden, columns).transpose(0, 1)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """A shortlist is decoding's alone."""
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
        """What the first layer reads, positions not added."""
        x: Tensor = self.embed_tokens(input_tokens)
        if self.copy_attn is not None:
            assert source is not None
            assert source_keys is not None
            mixture = self._mix_source(positions, source, source_keys, encoder_out)
            x = torch.where(input_tokens.eq(self.mask)[..., None], mixture, x)
        return x if self.embed_scale == 1.0 else x * self.embed_scale

    def _hidden(
        self,
        padding_mask: Tensor,  # [B, W] bool
        prefix_lengths: Tensor | None,  # [B] int64
        starts: Tensor | None,  # [B, N] int64
        block_size: int,
    ) -> Tensor | None:  # [B, W, W] bool; None = everything but padding is seen
        """Which columns are hidden from which."""
        if starts is not None:
            width = padding_mask.size(1) - starts.size(1) * block_size
            return hidden_from_blocks(padding_mask[:, :width], starts, block_size)
        if not self.cached_prefix:
            return None
        assert prefix_lengths is not None, "a cached prefix must be told from its block"
        return hidden_from(padding_mask, prefix_lengths)

    def _block_positions(self, input_tokens: Tensor, starts: Tensor, block_size: int) -> Tensor:
        """[B, W, D]: target positions of a shared prefix and of the blocks behind it."""
        num_rows, num_columns = input_tokens.shape
        width = num_columns - starts.size(1) * block_size
        offsets = torch.arange(block_size, device=starts.device)
        blocks = (starts[..., None] + offsets).flatten(1)  # [B, N * K]
        prefix = torch.arange(width, device=starts.device).expand(num_rows, -1)
        places = torch.cat([prefix, blocks], 1)  # [B, W]
        # fairseq derives positions from tokens: a row without padding gives the whole table.
        row = input_tokens.new_full((1, width + block_size), self.mask)
        return self.embed_positions(row)[0][places]

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


def _for_heads(hidden: Tensor, num_heads: int) -> Tensor:
    """[B, n, W] for every head, as fairseq wants it: [B * H, n, W]."""
    return hidden.repeat_interleave(num_heads, dim=0)


def _layer_at(
    layer: Any,  # a decoder layer of fairseq, post-norm
    x: Tensor,  # W x B x D
    encoder_out: EncoderOut,
    hidden: Tensor,  # [B, 1 or W, W] bool, True = not to be seen
    columns: Tensor,  # [B, n] int64
) -> Tensor:  # n x B x D
    """The layer's output at some positions, without computing it at the others.

    Only keys and values are computed of all. Nobody reads the states of a prefix behind the last
    layer, and most of a small drafter is its last layer.
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

    All positions of a block come out of one pass, so none knows what the others chose. The head
    runs over them from left to right::

        z_k = h_k + O relu(S h_k + T norm(e(t_{k-1})))

    with h_k the position's last state, e the token embedding (not scaled) and O zero at the start,
    so that training begins at the drafter without a head. The idea is that of Hydra (Ankner et al.
    2024) and ReDrafter (Zhang et al. 2024), for one parallel block instead of several heads.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.state = nn.Linear(dim, hidden_dim)
        self.token = nn.Linear(dim, hidden_dim, bias=False)
        self.out = nn.Linear(hidden_dim, dim)
        self.forget()

    def forget(self) -> None:
        """Begin by changing nothing."""
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, before: Tensor) -> Tensor:
        """Corrected states [N, D] of states [N, D] and embeddings [N, D] of the tokens before."""
        hidden = self.state(states) + self.token(self.norm(before))
        corrected: Tensor = states + self.out(F.relu(hidden))
        return corrected
