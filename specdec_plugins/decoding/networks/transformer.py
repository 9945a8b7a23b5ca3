"""Inference twins of fairseq's Transformer: an encoder, and a decoder that extends a cache.

No dropout, no training, no dictionary; the builder of a network loads its weights. Equality
with fairseq's own modules is tested in double precision for every switch of the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks.cache import CacheWindow, SourceMemory
from specdec_plugins.decoding.networks.config import TransformerConfig
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.products import FAST_PRODUCTS, NativeLayers, NativeLinear
from specdec_plugins.decoding.networks.fairseq_names import EncoderDecoder
from specdec_plugins.decoding.networks.layers import LayerStack, PositionTable, new_norm
from specdec_plugins.decoding.networks.reading import Part, now, parts_of, same_numbers
from specdec_plugins.decoding.networks.trained import NETWORKS, VERIFIER, State, TrainingSettings


class Embedding(nn.Module):
    """Tokens and positions to the first layer's input."""

    def __init__(self, tokens: nn.Embedding, config: TransformerConfig, side: str) -> None:
        super().__init__()
        stack = config.encoder if side == "encoder" else config.decoder
        self.tokens = tokens
        self.scale = math.sqrt(stack.dim) if config.scale_embedding else 1.0
        width = tokens.embedding_dim
        self.project = nn.Linear(width, stack.dim, bias=False) if width != stack.dim else None
        has_table = stack.positions in ("sinusoidal", "learned")
        self.positions = PositionTable(stack, config.pad) if has_table else None
        self.norm = nn.LayerNorm(stack.dim) if config.norm_embedding else None

    def reader(self, layers: nn.Module, norm: nn.Module | None) -> tuple[Any, ...]:
        """See `NativeLayers.reader`; norm: behind the layers."""
        own = cast(NativeLayers, layers)
        return own.reader(self.tokens, self.scale, self.positions, (self.norm, norm))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, n, D] of tokens and positions, both [B, n] int64."""
        x: Tensor = self.tokens(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.project is not None:
            x = self.project(x)
        x = x if self.positions is None else x + self.positions(positions)
        return x if self.norm is None else self.norm(x)


class Encoder(nn.Module):
    """Source tokens to states."""

    def __init__(self, config: TransformerConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        stack = config.encoder
        self.pad, self.is_relative = config.pad, stack.positions == "relative"
        # What determines its output beside the weights, except kind and number of positions.
        self.kind = (
            replace(stack, positions="none", max_positions=0),
            *(config.pad, config.activation, config.scale_embedding, config.norm_embedding),
        )
        self.embedding = Embedding(tokens, config, "encoder")
        self.layers = LayerStack(stack, config.activation, source_dim=None)
        self.norm = new_norm(stack) if stack.final_norm else None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """States [B, S, D] (junk at padding) and padding [B, S] bool of tokens [B, S] int64.

        Positions count only tokens that are not padding, so a row may be padded on either side.
        """
        positions, padding_mask = ops.count_tokens(tokens, self.pad)
        x: Tensor = self.embedding(tokens, positions)
        mask = ops.additive(~padding_mask, x.dtype)[:, None, None]  # [B, 1, 1, S]
        distances = self._distances(positions, padding_mask) if self.is_relative else None
        x = self.layers(x, mask, distances=distances)
        return (x if self.norm is None else self.norm(x)), padding_mask

    @staticmethod
    def _distances(positions: Tensor, padding_mask: Tensor) -> Tensor:
        """[B, S, S] int64 from each token to each, or [1, S, S] if no row is padded on the left."""
        if positions.is_cpu and not padding_mask[:, 0].any():  # else the host would have to wait
            positions = torch.arange(positions.shape[1])[None]
        return positions[:, None] - positions[..., None]


def same_encoder(
    first: Encoder,
    second: Encoder,
    unread: tuple[Mapping[str, Tensor] | None, Mapping[str, Tensor] | None] = (None, None),
) -> bool:
    """True if both give the same states for every source that both have positions for.

    unread: their weights, where they are still to be read. Weights that were once stored in half
    precision count as equal to those they were rounded from: training in half precision rounds an
    encoder that it leaves alone.
    """
    if first is second:
        return True
    if any(isinstance(m, FAST_PRODUCTS) for encoder in (first, second) for m in encoder.modules()):
        return False  # their weights cannot be compared any more
    both = (first, second)
    positions = [encoder.embedding.positions for encoder in both]
    own = [one.state_dict() if s is None else s for one, s in zip(both, unread, strict=True)]
    states = [dict(parts_of(state)) for state in own]
    if first.kind != second.kind or (positions[0] is None) != (positions[1] is None):
        return False
    stored = [state.pop("embedding.positions.weight", None) for state in states]
    if not _same_positions(positions, stored):
        return False
    tables = [encoder.embedding.tokens.weight for encoder in both]
    if (tables[0].dtype, tables[0].device) != (tables[1].dtype, tables[1].device):
        return False
    return states[0].keys() == states[1].keys() and all(
        same_numbers(part, states[1][name], tables[0].dtype, (torch.float16, torch.bfloat16))
        for name, part in states[0].items()
    )


def _same_positions(tables: Sequence[PositionTable | None], stored: Sequence[Part | None]) -> bool:
    """True if positions that both have are the same. A learned table may hold sinusoids.

    stored: what is still to be read into the tables.
    """
    found = [
        (table.weight if part is None else now(part))[table.offset :].float().cpu()
        for table, part in zip(tables, stored, strict=True)
        if table is not None
    ]
    shared = min(map(len, found), default=0)
    # Sinusoids are not the same on all processors: up to 3e-4 apart at the last positions.
    return all(
        torch.allclose(found[0][:shared], table[:shared], rtol=0, atol=1e-3) for table in found
    )


class CachedDecoder(nn.Module):
    """Target tokens to states, many new positions a row at once, each row at its own length."""

    def __init__(self, config: TransformerConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        stack = config.decoder
        self.embedding = Embedding(tokens, config, "decoder")
        self.layers = LayerStack(stack, config.activation, config.encoder.dim)
        self.norm = new_norm(stack) if stack.final_norm else None
        self.project: nn.Linear | None = None
        if config.output_dim != stack.dim:
            self.project = nn.Linear(stack.dim, config.output_dim, bias=False)
        self.output = output_projection(config, tokens)

    def forward(self, tokens: Tensor, window: CacheWindow, source: SourceMemory) -> Tensor:
        """Last states [B, n, D] of new tokens [B, n] int64, which are written to the window."""
        x: Tensor = self.embedding(tokens, window.positions)
        return self.finish(self.through(x, window, source))

    def through(
        self,
        x: Tensor,  # [B, n, D], embeddings or the input of layer `start`
        window: CacheWindow,
        source: SourceMemory,
        start: int = 0,  # the first layer to run
        stop: int | None = None,  # the first layer not to run; None = run all
    ) -> Tensor:  # [B, n, D]
        """The output of layer `stop` - 1; each layer that runs writes to the window."""
        span = range(start, len(self.layers) if stop is None else stop)
        left: Tensor = self.layers(x, window.mask, window, source, span, distances=window.distances)
        return left

    def finish(self, x: Tensor) -> Tensor:
        """Last states [B, n, D] from the output of the last layer, or of an exit before it."""
        if self.norm is not None:
            x = self.norm(x)
        return x if self.project is None else self.project(x)

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] of last states [..., D]."""
        scores: Tensor = self.output(states)
        return scores


@NETWORKS.register(VERIFIER)
class Transformer(EncoderDecoder):
    """Encoder and decoder, with the embeddings that they share."""

    Config = TransformerConfig
    arch, noun = "transformer", "a Transformer that translates"

    @classmethod
    def switches(cls, state: State, settings: TrainingSettings) -> dict[str, Any]:
        return {
            "scale_embedding": not settings.get("no_scale_embedding", False),
            "norm_embedding": bool(settings.get("layernorm_embedding", False)),
            "decoder_input_dim": state["decoder.embed_tokens.weight"].shape[1],
            "decoder_output_dim": state["decoder.output_projection.weight"].shape[1],
            "output_bias": "decoder.output_projection.bias" in state,
        }

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        source, target = token_tables(config)
        self.encoder = Encoder(config, source)
        self.decoder = CachedDecoder(config, target)

    def prepare(self) -> None:
        _ = self.at_once

    @cached_property
    def at_once(self) -> Any:
        """All weights, for the kernels' lane; None where they do not do everything."""
        encoder, decoder = self.encoder, self.decoder
        parts = ((encoder.embedding, encoder), (decoder.embedding, decoder))
        if not isinstance(decoder.output, NativeLinear) or decoder.project is not None:
            return None
        if any(e.project or not isinstance(p.layers, NativeLayers) for e, p in parts):
            return None
        return ops.native.Verifying(
            encoder=encoder.embedding.reader(encoder.layers, encoder.norm),
            decoder=decoder.embedding.reader(decoder.layers, decoder.norm),
            keys_values=cast(NativeLayers, decoder.layers).packed_keys_values,
            output=decoder.output.packed,
        )


def token_tables(config: TransformerConfig) -> tuple[nn.Embedding, nn.Embedding]:
    """The token embeddings of source and target; the same module if they are shared."""
    source = nn.Embedding(config.encoder.vocab_size, config.encoder.dim)
    if config.share_embeddings:
        return source, source
    return source, nn.Embedding(config.decoder.vocab_size, config.input_dim)


def output_projection(config: TransformerConfig, tokens: nn.Embedding) -> nn.Linear:
    """States to logits; its weights are the target's embeddings if they are tied."""
    linear = nn.Linear(config.output_dim, config.decoder.vocab_size, bias=config.output_bias)
    if config.tie_output:
        linear.weight = tokens.weight
    return linear
