"""Inference twin of the block drafter: prefix and masks in, the masks' tokens out, one pass.

Source: SpecDec (Xia et al., Findings of EMNLP 2023); the architecture stems from GLAT (Qian et
al., ACL 2021).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.networks.config import BlockConfig
from specdec_plugins.decoding.networks.embedding import PositionTable, additive, count_tokens
from specdec_plugins.decoding.networks.layers import layer_stack, source_keys_values
from specdec_plugins.decoding.networks.transformer import (
    Encoder,
    Source,
    output_projection,
    token_tables,
)


class CopySource(Source, Protocol):
    """A source whose embeddings can be copied."""

    @property
    def extras(self) -> tuple[Tensor, ...]:  # keys and values, [B, S, D] each
        ...


class BidirectionalDecoder(nn.Module):
    """Every position sees every other, and the positions enter at every layer.

    A prefix state depends on the masks behind it, so nothing can be cached.
    """

    def __init__(self, config: BlockConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        stack = config.decoder
        self.pad, self.mask = config.pad, config.mask
        self.tokens = tokens
        self.positions = PositionTable(stack, config.pad)
        self.layers = layer_stack(stack, config.activation, config.encoder.dim)
        self.copy: nn.Linear | None = None
        if config.copy_source:
            self.copy = nn.Linear(stack.dim, stack.dim, bias=False)
        self.output = output_projection(config, tokens)

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of the source for each layer, [B, S, 2, H, d], of its states."""
        return source_keys_values(self.layers, states)

    def forward(self, tokens: Tensor, source: CopySource, columns: Tensor | None = None) -> Tensor:
        """Last states [B, m, D] at columns [B, m] int64 of tokens [B, W] int64; None = all.

        The tokens are prefix, masks, and padding on the right. The last layer computes nothing
        but the keys and values of the other columns.
        """
        indices, padding_mask = count_tokens(tokens, self.pad)
        positions = self.positions(indices)  # [B, W, D]
        x: Tensor = self.tokens(tokens)
        if self.copy is not None:
            mixed = self._mix(self.copy(positions), source)
            x = torch.where((tokens == self.mask)[..., None], mixed, x)
        mask = additive(~padding_mask, x.dtype)[:, None, None]  # [B, 1, 1, W]
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(
                x + positions,
                mask,
                source=source.keys_values[index],
                source_mask=source.mask,
                columns=columns if index == last else None,
            )
        return x

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] of last states [..., D]."""
        scores: Tensor = self.output(states)
        return scores

    @staticmethod
    def _mix(queries: Tensor, source: CopySource) -> Tensor:
        """Source embeddings mixed by attention from the target positions alone: [B, W, D].

        queries [B, W, D]. Their products are not divided by sqrt(D), as published.
        """
        keys, values = source.extras  # [B, S, D]
        mixed = F.scaled_dot_product_attention(
            queries[:, None], keys[:, None], values[:, None], attn_mask=source.mask, scale=1.0
        )
        return mixed[:, 0]


class BlockDrafter(nn.Module):
    """The drafter's own encoder and its bidirectional decoder."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        source, target = token_tables(config)
        self.encoder = Encoder(config, source)
        self.decoder = BidirectionalDecoder(config, target)

    def copied(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of what can be copied, [B, S, D] each, of source tokens [B, S] int64.

        The keys are what the encoder's first layer reads, the values bare embeddings, like those
        of target tokens. Empty where the network does not copy.
        """
        if not self.config.copy_source:
            return ()
        positions, _ = count_tokens(tokens, self.config.pad)
        return self.encoder.embedding(tokens, positions), self.encoder.embedding.tokens(tokens)
