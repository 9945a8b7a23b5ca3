"""Inference twin of the block drafter: prefix and masks in, the masks' tokens out, one pass.

Source: SpecDec (Xia et al., Findings of EMNLP 2023); the architecture stems from GLAT (Qian et
al., ACL 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.networks.cache import CacheWindow, SourceMemory
from specdec_plugins.decoding.networks.config import BlockConfig
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.ops import additive
from specdec_plugins.decoding.networks.cpu.products import NativeHead, NativeLayers, NativeLinear
from specdec_plugins.decoding.networks.fairseq_names import EncoderDecoder
from specdec_plugins.decoding.networks.heads import SequentialHead, Shortlist
from specdec_plugins.decoding.networks.layers import LayerStack, PositionTable
from specdec_plugins.decoding.networks.reading import Weights, parts_of, same_numbers
from specdec_plugins.decoding.networks.trained import (
    NETWORKS,
    State,
    TrainedNetwork,
    TrainingSettings,
)
from specdec_plugins.decoding.networks.transformer import (
    Encoder,
    Transformer,
    output_projection,
    same_encoder,
    token_tables,
)
from specdec_plugins.errors import UserError


class BidirectionalDecoder(nn.Module):
    """Reads prefix and masks; position embeddings are added before every layer.

    As published, every position sees every other: a prefix state depends on the masks after it,
    so nothing can be cached. With `cached_prefix` a prefix position sees the prefix up to itself
    only, and the block still sees everything.
    """

    def __init__(self, config: BlockConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        stack = config.decoder
        self.pad, self.mask = config.pad, config.mask
        self.cached_prefix = config.cached_prefix
        self.scale = math.sqrt(stack.dim) if config.scale_decoder else 1.0
        self.tokens = tokens
        self.positions = PositionTable(stack, config.pad)
        self.layers = LayerStack(stack, config.activation, config.encoder.dim)
        self.copy: nn.Linear | None = None
        if config.copy_source:
            self.copy = nn.Linear(stack.dim, stack.dim, bias=False)
        self._query_table: Tensor | None = None
        self.output = output_projection(config, tokens)
        self.head: SequentialHead | None = None
        if config.sequential_head:
            self.head = SequentialHead(
                stack.dim, config.sequential_head, config.head_attention, config.encoder.dim
            )
        self.shortlist: Shortlist | None = None
        if config.shortlist_common:
            sizes = (config.shortlist_common, config.shortlist_types)
            self.shortlist = Shortlist(config.encoder.vocab_size, *sizes)

    def forward(
        self,
        tokens: Tensor,  # [B, W] int64: prefix, masks, and padding on the right
        source: SourceMemory,
        columns: Tensor | None = None,  # [B, m] int64, whose states are wanted; None = all
        prefix_lengths: Tensor | None = None,  # [B] int64; read with `cached_prefix` only
    ) -> Tensor:  # [B, m, D]
        """Last states of whole rows at once, without a cache.

        The last layer computes only keys and values for columns that are not wanted.
        """
        if self.cached_prefix:
            assert prefix_lengths is not None, "a cached prefix must be told from its block"
            indices = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            # A committed padding token counts as a token: a cache could not tell it from others.
            padding_mask = (tokens == self.pad) & (indices >= prefix_lengths[:, None])
            seen_mask = ~padding_mask[:, None] & _seen(prefix_lengths, indices)  # [B, W, W]
        else:
            indices, padding_mask = ops.count_tokens(tokens, self.pad)
            seen_mask = ~padding_mask[:, None]  # [B, 1, W]
        mask = additive(seen_mask, self.tokens.weight.dtype)[:, None]  # [B, 1, 1 or W, W]
        return self.through(tokens, indices, mask, source, columns)

    def extend(
        self, tokens: Tensor, window: CacheWindow, source: SourceMemory, columns: Tensor
    ) -> Tensor:
        """Last states [B, m, D] at columns [B, m] int64 of tokens [B, n] int64, after a cache.

        The tokens are those of the prefix that the cache lacks, masks, and padding. The caller
        crops the entries of masks and padding, which are for this pass alone. With
        `cached_prefix` only.
        """
        assert self.cached_prefix, "the states of this network's prefix cannot be kept"
        return self.through(tokens, window.positions, window.mask, source, columns, window)

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of the source's states [B, S, D], computed once: for each layer, then for
        the head, if it reads the source.
        """
        read_by_head = () if self.head is None else self.head.keys_values(states)
        return (*self.layers.keys_values(states), *read_by_head)

    def prepare(self) -> None:
        """See `TrainedNetwork.prepare`."""
        if self.copy is not None:
            self._queries()
        if self.head is not None:
            self.head.prepare(self.tokens.weight, lists=self.shortlist is not None)
        if isinstance(self.layers, NativeLayers):
            _ = self.drafter

    @cached_property
    def drafter(self) -> Any:
        """The kernels' block drafter, over these weights."""
        layers, head = cast(NativeLayers, self.layers), self.head
        return ops.native.BlockDrafter(
            **layers.after(self.tokens, self.scale, self.positions),
            mask=self.mask,
            queries=self._queries() if self.copy else None,
            head=head.compiled(self.tokens.weight) if isinstance(head, NativeHead) else None,
        )

    def listed(self, lists: Shortlist) -> tuple[Any, ...]:
        """Shortlists for the kernels' lane."""
        choices = cast(NativeHead, self.head).choosing(self.tokens.weight)
        return lists.starts, lists.types, lists.common, choices

    def through(
        self,
        tokens: Tensor,  # [B, n] int64
        positions: Tensor,  # [B, n] int64
        mask: Tensor,  # [B, 1, 1 or n, T], additive
        source: SourceMemory,
        columns: Tensor | slice | None,  # [B, m] int64
        store: CacheWindow | None = None,
    ) -> Tensor:  # [B, m or n, D]
        """Last states at the columns, of tokens at any positions; training calls this itself."""
        x, places = self._embed(tokens, positions, source)
        left: Tensor = self.layers(x, mask, store, source, positions=places, columns=columns)
        return left

    def _embed(
        self, tokens: Tensor, positions: Tensor, source: SourceMemory
    ) -> tuple[Tensor, Tensor]:
        """The first layer's input, and what is added before each layer: [B, n, D] both.

        If the network copies, masks and committed `<unk>` get a mixture of the source, by
        attention from the target positions alone. tokens and positions: [B, n] int64.
        """
        if isinstance(self.layers, NativeLayers):
            x, places = torch.empty(2, *tokens.shape, self.tokens.embedding_dim)
            self.drafter.embed(tokens, positions, source.compiled, x, places)
            return x, places
        rows = positions.clamp(max=self.positions.last) + self.positions.offset
        x = self.tokens(tokens)
        if self.copy is not None:
            (keys, values), mask = source.extras, source.mask
            mask = None if mask is None else mask.to(x.dtype)
            mixed = _mixed(F.embedding(rows, self._queries()), keys, values, mask)
            x = torch.where((tokens == self.mask)[..., None], mixed, x)
        x = x if self.scale == 1.0 else x * self.scale
        return x, F.embedding(rows, self.positions.weight)

    def _queries(self) -> Tensor:
        """Queries of the positions for copying, one for each row of their table; made once."""
        assert self.copy is not None
        weight = self.positions.weight
        known = self._query_table
        if known is None or (known.device, known.dtype) != (weight.device, weight.dtype):
            known = self.copy(weight)
            if not known.requires_grad:  # in training it changes
                self._query_table = known
        return known

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] of last states [..., D]."""
        scores: Tensor = self.output(states)
        return scores


def _mixed(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of queries [B, n, D] over keys and values [B, S, D]: [B, n, D].

    Products of queries and keys are not divided by sqrt(D), as published.
    """
    if queries.requires_grad:  # as in `layers.attend`; keys and values have no gradient
        scores = queries @ keys.mT
        scores = scores if mask is None else scores + mask[:, 0]
        return scores.softmax(-1).to(values.dtype) @ values
    return F.scaled_dot_product_attention(
        queries[:, None], keys[:, None], values[:, None], attn_mask=mask, scale=1.0
    )[:, 0]


def opened(
    prefix: Tensor,  # [B, W] int64, the start token in front
    lengths: Tensor,  # [B] int64, tokens of each prefix, the start token included
    cached: Tensor,  # [B] int64, how many of these, without the start token, are in a cache
    num_masks: Tensor,  # [B] int64
    width: int,
    num_used: int,
    mask: int,
    pad: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The input of one pass of the block drafter, of `width` columns a row.

    Returns the tokens [B, width]: those that the cache lacks, masks, and padding; the last position
    that each may attend to, [B, width]; and the columns of the first masks, [B, num_used]. All are
    int64.
    """
    columns = torch.arange(width, device=prefix.device)
    first = lengths - 1
    num_new = (first - cached)[:, None]
    places = cached[:, None] + columns  # of each row, without the start token
    tokens = prefix.gather(1, (places + 1).clamp(max=prefix.shape[1] - 1))
    tokens = tokens.masked_fill(columns >= num_new, mask)
    tokens = tokens.masked_fill(columns >= num_new + num_masks[:, None], pad)
    last_seen = torch.where(columns < num_new, places, (first + num_masks - 1)[:, None])
    return tokens, last_seen, num_new + columns[:num_used]


def _seen(prefix_lengths: Tensor, columns: Tensor) -> Tensor:
    """[B, W, W] bool of columns [B, W], by query column, then key column: see the decoder."""
    in_block = columns >= prefix_lengths[:, None]  # [B, W]
    return in_block[..., None] | (columns[:, None] <= columns[..., None])


@NETWORKS.register("block")
class BlockDrafter(EncoderDecoder):
    """The drafter's own encoder and its bidirectional decoder."""

    Config = BlockConfig
    arch, noun = "block", "a block drafter"
    bidirectional = True
    unsupported = (
        *EncoderDecoder.unsupported,
        "decoder_normalize_before",
        "no_token_positional_embeddings",
    )
    config: BlockConfig

    def memory(
        self,
        sources: Tensor,  # [B, S] int64
        lengths: Tensor,  # [B] int64
        states: Tensor,  # [B, S, D] of the encoder
        padding_mask: Tensor,  # [B, S] bool
    ) -> SourceMemory:
        """What the decoder reads of sources."""
        keys_values = self.decoder.keys_values(states)
        return SourceMemory(lengths, padding_mask, keys_values, self.copied(sources)).trimmed()

    @classmethod
    def switches(cls, state: State, settings: TrainingSettings) -> dict[str, Any]:
        block_size, head = settings.get("block_size"), state.get("decoder.head.out.weight")
        if not block_size:
            raise UserError(
                "the checkpoint does not say for which --block-size it was trained; train it with "
                "this plugin's task."
            )
        return {
            "scale_embedding": bool(settings.get("scale_encoder_embedding", False)),
            "norm_embedding": bool(settings.get("layernorm_embedding", False)),
            "block_size": int(block_size),
            "copy_source": "decoder.copy_attn.weight" in state,
            "scale_decoder": bool(settings.get("scale_decoder_embedding", False)),
            "cached_prefix": bool(settings.get("cached_prefix", False)),
            "sequential_head": 0 if head is None else head.shape[1],
            "head_attention": int(settings.get("head_attention", None) or 0),
            "shortlist_common": len(state.get("decoder.shortlist.common", ())),
            "shortlist_types": len(state.get("decoder.shortlist.types", ())),
        }

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        source, target = token_tables(config)
        self.encoder = Encoder(config, source)
        self.decoder = BidirectionalDecoder(config, target)

    def prepare(self) -> None:
        self.decoder.prepare()
        _ = self.at_once

    @cached_property
    def at_once(self) -> Any:
        """All weights, for the kernels' lane; None where they do not do everything."""
        decoder, encoder = self.decoder, self.encoder
        layers, head = decoder.layers, decoder.head
        is_fast = all(isinstance(own, NativeLayers) for own in (encoder.layers, layers))
        if not is_fast or encoder.embedding.project:
            return None
        read_by_head: list[Any] = head.packed_keys_values if isinstance(head, NativeHead) else []
        return ops.native.Drafting(
            network=decoder.drafter,
            encoder=encoder.embedding.reader(encoder.layers, encoder.norm),
            keys_values=[*cast(NativeLayers, layers).packed_keys_values, *read_by_head],
            output=cast(NativeLinear, decoder.output).packed,
            keeps_prefix=self.config.cached_prefix,
            pad=self.config.pad,
            longest=self.config.longest_block,
            max_positions=self.config.decoder.max_positions,
        )

    def adopt(
        self, verifier: TrainedNetwork, own: Weights | None = None, theirs: Weights | None = None
    ) -> None:
        """Share the verifier's encoder if it is equal, and its table of tokens."""
        if not isinstance(verifier, Transformer):
            return

        def state(weights: Weights | None, module: nn.Module) -> Mapping[str, Tensor]:
            return module.state_dict() if weights is None else weights.held(module)

        states = state(own, self.encoder), state(theirs, verifier.encoder)
        if not same_encoder(self.encoder, verifier.encoder, states):
            return
        self.encoder, decoder, output = verifier.encoder, self.decoder, verifier.decoder.output
        mine = parts_of(state(own, decoder.output))["weight"]
        table = parts_of(state(theirs, output))["weight"]
        if self.config.tie_output and same_numbers(mine, table, output.weight.dtype):
            if own is not None:
                own.leave(decoder.tokens)
            decoder.tokens.weight = decoder.output.weight = output.weight
        if self.config.share_embeddings:
            self.decoder.tokens = self.encoder.embedding.tokens
            if self.config.tie_output:
                self.decoder.output.weight = self.encoder.embedding.tokens.weight

    def copied(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Keys and values for copying, [B, S, D] each, of source tokens [B, S] int64.

        The keys are the input of the encoder's first layer, the values bare embeddings, like those
        of target tokens. Empty if the network does not copy.
        """
        if not self.config.copy_source:
            return ()
        positions, _ = ops.count_tokens(tokens, self.config.pad)
        return self.encoder.embedding(tokens, positions), self.encoder.embedding.tokens(tokens)
