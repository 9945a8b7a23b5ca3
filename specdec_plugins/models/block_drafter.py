"""The block drafter: a Transformer that predicts the next k target tokens in one pass.

Source: SpecDec (Xia et al., Findings of EMNLP 2023), whose drafter stems from GLAT (Qian et al.,
ACL 2021). Trained here with fairseq; ``specdec_plugins.decoding`` holds its twin for inference.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerEncoder, TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import pad

from specdec_plugins.decoding import networks as decoding
from specdec_plugins.errors import require

EncoderOut = dict[str, list[Tensor]]


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
        mixture: Tensor | None,  # [B, W, D] read in place of masks
        columns: Tensor,  # [B, n] int64
    ) -> Tensor:  # [B, n, D]
        """Last hidden states of these columns; ``encoder_out`` as the encoder returned it."""
        padding_mask = input_tokens.eq(self.padding_idx)  # [B, W]
        x = self.embed_tokens(input_tokens)
        if mixture is not None:
            x = torch.where(input_tokens.eq(self.mask)[..., None], mixture, x)
        x = (x * self.embed_scale).transpose(0, 1)  # W x B x D
        positions = self.positions(input_tokens).transpose(0, 1)
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
        return _layer_at(self.layers[-1], x, encoder_out, padding_mask, columns).transpose(0, 1)

    def positions(self, input_tokens: Tensor) -> Tensor:
        """[B, W, D]: embeddings of the target positions; those past the table use its last."""
        # fairseq derives positions from tokens: a row without padding gives the whole table.
        width = input_tokens.size(1)
        size = min(width, self.embed_positions.max_positions)
        table = self.embed_positions(input_tokens.new_full((1, size), self.mask))[0]
        positions = torch.arange(width, device=input_tokens.device).clamp(max=size - 1)
        return F.embedding(positions.expand_as(input_tokens), table)


def _layer_at(
    layer: Any,  # a decoder layer of fairseq, post-norm
    x: Tensor,  # W x B x D
    encoder_out: EncoderOut,
    padding_mask: Tensor,  # [B, W] bool
    columns: Tensor,  # [B, n] int64
) -> Tensor:  # n x B x D
    """The layer's output at some positions, without computing it at the others.

    Only keys and values are computed at all positions. Nothing reads the states of a prefix after
    the last layer, and most of a small drafter is its last layer.
    """
    rows = torch.arange(x.size(1), device=x.device)[:, None]  # [B, 1]
    x_at = x[columns, rows].transpose(0, 1)  # n x B x D
    attended, _ = layer.self_attn(x_at, x, x, key_padding_mask=padding_mask, need_weights=False)
    x_at = layer.self_attn_layer_norm(x_at + layer.dropout_module(attended))
    states, source_padding = (encoder_out[f"encoder_{name}"][0] for name in ("out", "padding_mask"))
    attended, _ = layer.encoder_attn(
        x_at, states, states, key_padding_mask=source_padding, need_weights=False
    )
    x_at = layer.encoder_attn_layer_norm(x_at + layer.dropout_module(attended))
    inner = layer.activation_dropout_module(layer.activation_fn(layer.fc1(x_at)))
    return layer.final_layer_norm(x_at + layer.dropout_module(layer.fc2(inner)))


# Switches of this model: what each does, in the order of the flags.
SWITCHES = {
    "src_embedding_copy": "feed masked positions a mixture of source embeddings instead of <unk>",
    "apply_bert_init": "initialise weights as BERT does: normal with standard deviation 0.02",
    "scale_encoder_embedding": "scale the encoder's token embeddings by sqrt(d), as the verifier "
    "does (published drafters do not)",
    "scale_decoder_embedding": "scale the decoder's token embeddings too",
}


# --- glancing (Qian et al. 2021): answers are revealed in proportion to the errors ----------------


@dataclass(frozen=True)
class Glance:
    """How much to reveal in one update, and the randomness that chooses where."""

    context_p: float  # answers to reveal, as a share of the wrong predictions, 0 .. 1
    generator: torch.Generator  # on any device; that of the tokens is fastest


class Glanced(NamedTuple):
    """A block after glancing."""

    input_tokens: Tensor  # [B, W] int64: some masks replaced by their answers
    scored_mask: Tensor  # [B, W] bool: positions still masked


def context_share(update: int, start_p: float, minus_p: float, total_up: int) -> float:
    """The share to reveal at an update: from ``start_p`` down to ``start_p - minus_p``, linearly.

    ``total_up`` is the number of updates until the lowest share, which then stays.
    """
    return start_p - minus_p * min(1.0, update / total_up)


def glance(
    input_tokens: Tensor,  # [B, W] int64
    target_tokens: Tensor,  # [B, W] int64
    scored_mask: Tensor,  # [B, W] bool: masked, with an answer
    right_mask: Tensor,  # [B, W] bool: predicted right; read only where scored_mask is set
    settings: Glance,
) -> Glanced:
    """Reveal ``floor(context_p * (masked - right))`` of each row's masked positions at random.

    Every masked position is equally likely to be revealed, whether it was predicted right or
    wrong; only their number depends on the mistakes.
    """
    num_wrong = (scored_mask & ~right_mask).sum(dim=1)  # [B]
    # A little above the product: 0.32 * 25 must count as 8, not as 7.999...
    num_revealed = torch.floor(num_wrong.double() * settings.context_p + 1e-9)  # [B]
    chance = settings.generator
    order = torch.rand(scored_mask.shape, generator=chance, device=chance.device)  # [B, W]
    order = order.to(scored_mask.device)
    order = order.masked_fill(~scored_mask, 2.0)  # after every number in [0, 1)
    sorted_columns = order.argsort(dim=1)  # [B, W]
    first = torch.arange(order.size(1), device=order.device) < num_revealed[:, None]  # [B, W]
    revealed = torch.zeros_like(scored_mask).scatter(1, sorted_columns, first)  # [B, W]
    return Glanced(
        input_tokens=torch.where(revealed, target_tokens, input_tokens),
        scored_mask=scored_mask & ~revealed,
    )


# --- the model ------------------------------------------------------------------------------------


class BlockOutput(NamedTuple):
    """What one pass over a batch of blocks yields; N is the number of scored positions."""

    logits: Tensor  # [N, V], row by row of the scored mask
    targets: Tensor  # [N] int64
    num_masked: Tensor  # [] int64: positions with an answer before glancing
    num_right: Tensor | None  # [] int64: of these, predicted right; None: not glanced
    places: Tensor  # [N] int64, position within its block, from 0


class BlockEncoder(TransformerEncoder):
    """A fairseq encoder that adds positions to unscaled embeddings, unless a switch scales them."""

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        scale = getattr(args, "scale_encoder_embedding", False)
        self.embed_scale = math.sqrt(embed_tokens.embedding_dim) if scale else 1.0


@register_model("block")
class BlockDrafter(TransformerModel):
    """Encoder, bidirectional decoder and tied output projection; see the module."""

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        for name, meaning in SWITCHES.items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, action=BooleanOptionalAction, help=meaning)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> BlockDrafter:
        for name in ("encoder_layerdrop", "decoder_layerdrop", *decoding.BlockDrafter.unsupported):
            flag = "--" + name.replace("_", "-")
            is_given = bool(getattr(args, name, None))
            require(not is_given, f"{flag} is not supported by --arch block; leave it out")
        for side in ("encoder", "decoder"):
            width, heads = (getattr(args, f"{side}_{n}") for n in ("embed_dim", "attention_heads"))
            require(
                width % heads == 0,
                f"--{side}-attention-heads is {heads}, which does not divide "
                f"--{side}-embed-dim {width}; give a number of heads that does",
            )
        return super().build_model(args, task)

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding) -> BlockEncoder:
        encoder = BlockEncoder(args, src_dict, embed_tokens)
        if args.apply_bert_init:
            encoder.apply(init_bert_params)
        return encoder

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> BlockDecoder:
        decoder = BlockDecoder(args, tgt_dict, embed_tokens)
        if args.apply_bert_init:
            decoder.apply(init_bert_params)
        return decoder

    def forward(
        self,
        src_tokens: Tensor,  # [B, S] int64, right-padded
        src_lengths: Tensor,  # [B] int64
        input_tokens: Tensor,  # [B, W] int64
        target_tokens: Tensor,  # [B, W] int64
        scored_mask: Tensor,  # [B, W] bool
        glancing: Glance | None = None,
    ) -> BlockOutput:
        """Logits of the scored positions of each block, after glancing if `glancing` is given.

        The glancing pass and the scored pass use the same dropout. The encoder would give the same
        states both times, so it runs once. The decoder's last layer computes only the columns of
        blocks.
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        mixture = self._mix_source(input_tokens, src_tokens, encoder_out)
        first = scored_mask.int().argmax(dim=1, keepdim=True)  # [B, 1]: where each block begins
        longest = int(scored_mask.sum(dim=1).max())
        columns = first + torch.arange(longest, device=first.device)  # [B, n]
        given = (encoder_out, mixture, columns)
        num_masked = scored_mask.sum()
        num_right = None
        if glancing is not None:
            right_mask = self._predicted_right(input_tokens, target_tokens, scored_mask, *given)
            num_right = right_mask.sum()
            input_tokens, scored_mask = glance(
                input_tokens, target_tokens, scored_mask, right_mask, glancing
            )
        logits = self._logits(input_tokens, scored_mask, *given)
        column = torch.arange(scored_mask.size(1), device=scored_mask.device)
        places = (column - first)[scored_mask]
        return BlockOutput(logits, target_tokens[scored_mask], num_masked, num_right, places)

    def _mix_source(
        self, input_tokens: Tensor, src_tokens: Tensor, encoder_out: EncoderOut
    ) -> Tensor | None:  # [B, W, D]
        """For each target position, source embeddings mixed by attention from its position.

        The values are plain embeddings, like those of the target's tokens; the keys are what the
        encoder itself reads: embeddings (scaled if it scales them) and positions.
        """
        if self.decoder.copy_attn is None:
            return None
        embedded = encoder_out["encoder_embedding"][0]  # [B, S, D]
        keys = embedded + self.encoder.embed_positions(src_tokens)
        if self.encoder.layernorm_embedding is not None:
            keys = self.encoder.layernorm_embedding(keys)
        queries = self.decoder.copy_attn(self.decoder.positions(input_tokens))
        scores = torch.bmm(queries, keys.transpose(1, 2))  # [B, W, S]
        padding_mask = encoder_out["encoder_padding_mask"][0]  # [B, S]
        scores = scores.masked_fill(padding_mask[:, None], -math.inf)
        precision = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=precision).type_as(embedded)  # [B, W, S]
        return torch.bmm(weights, embedded / self.encoder.embed_scale)

    def _logits(
        self,
        input_tokens: Tensor,
        scored_mask: Tensor,
        encoder_out: EncoderOut,
        mixture: Tensor | None,
        columns: Tensor,  # [B, n] int64: all that may be scored
    ) -> Tensor:  # [N, V]
        """Logits of the scored positions."""
        states = self.decoder(input_tokens, encoder_out, mixture, columns)  # [B, n, D]
        # Columns of a row with few scored positions may lie past the last one.
        scored_at = pad(scored_mask, (0, states.size(1))).gather(1, columns)
        logits: Tensor = self.decoder.output_layer(states[scored_at])
        return logits

    @torch.no_grad()
    def _predicted_right(
        self, input_tokens: Tensor, target_tokens: Tensor, scored_mask: Tensor, *given: Any
    ) -> Tensor:  # [B, W] bool
        """Which scored positions the drafter predicts right, leaving the random state as it was."""
        device = input_tokens.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            best = self._logits(input_tokens, scored_mask, *given).argmax(dim=-1)
        right_mask = torch.zeros_like(scored_mask)
        right_mask[scored_mask] = best.eq(target_tokens[scored_mask])
        return right_mask


def block_architecture(args: Namespace) -> None:
    """Six encoder and six decoder layers of 512, as published; the user's flags stay."""
    for name in SWITCHES:
        setattr(args, name, getattr(args, name, False))
    transformer_architecture(args)


for _name in ("block", "block_6e6d512", "block_base"):
    register_model_architecture("block", _name)(block_architecture)
