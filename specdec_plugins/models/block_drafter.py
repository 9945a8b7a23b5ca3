"""The block drafter: a Transformer that predicts the next k target tokens in one pass.

Source: SpecDec (Xia et al., Findings of EMNLP 2023), whose drafter stems from GLAT (Qian et al.,
ACL 2021). Trained here with fairseq; ``specdec_plugins.decoding`` holds its twin for inference.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from typing import Any, NamedTuple

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerEncoder, TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from specdec_plugins.errors import UserError
from specdec_plugins.models.glancing import Glance, glance

EncoderOut = dict[str, list[Tensor]]

# fairseq's Transformer flags that would change the network into one that this model is not.
_REFUSED = (
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "cross_self_attention",
    "decoder_layerdrop",
    "decoder_normalize_before",
    "encoder_layerdrop",
    "encoder_normalize_before",
    "layernorm_embedding",
    "merge_src_tgt_embed",
    "no_cross_attention",
    "no_token_positional_embeddings",
    "quant_noise_pq",
    "quant_noise_scalar",
)


class BlockOutput(NamedTuple):
    """What one pass over a batch of blocks yields; N is the number of scored positions."""

    logits: Tensor  # [N, V], row by row of the scored mask
    targets: Tensor  # [N] int64
    num_masked: Tensor  # [] int64: positions with an answer before glancing
    num_right: Tensor  # [] int64: of them, predicted right before glancing


class BlockEncoder(TransformerEncoder):
    """A fairseq encoder that adds its positions to token embeddings which it does not scale."""

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        scale = getattr(args, "scale_encoder_embedding", False)
        self.embed_scale = math.sqrt(embed_tokens.embedding_dim) if scale else 1.0


class BlockDecoder(TransformerDecoder):
    """Reads prefix and masks in both directions; positions enter at every layer.

    It cannot keep a cache of its prefix: each prefix state sees the masks behind it.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.mask = dictionary.unk()
        width = embed_tokens.embedding_dim
        self.copy_attn = nn.Linear(width, width, bias=False) if args.src_embedding_copy else None
        for layer in self.layers:
            layer.need_attn = False  # attention weights are nobody's output here

    def forward(
        self,
        input_tokens: Tensor,  # [B, W] int64: prefix, masks, padding
        encoder_out: EncoderOut,
        source: Tensor | None,  # [B, S, D] token embeddings of the source, unscaled
        source_keys: Tensor | None,  # [B, S, D] what the copy attention compares with
    ) -> Tensor:  # [B, W, D]
        """The last hidden state of every position; ``encoder_out`` as the encoder returned it."""
        padding_mask = input_tokens.eq(self.padding_idx)  # [B, W]
        positions = self.embed_positions(input_tokens)  # [B, W, D]
        x = self.embed_tokens(input_tokens)  # [B, W, D]
        if self.copy_attn is not None:
            assert source is not None
            assert source_keys is not None
            mixture = self._mix_source(positions, source, source_keys, encoder_out)
            x = torch.where(input_tokens.eq(self.mask)[..., None], mixture, x)
        x, positions = x.transpose(0, 1), positions.transpose(0, 1)  # W x B x D
        for layer in self.layers:
            x = self.dropout_module(x + positions)
            x, _, _ = layer(
                x,
                encoder_out["encoder_out"][0],  # S x B x D
                encoder_out["encoder_padding_mask"][0],
                self_attn_padding_mask=padding_mask,
            )
        return x.transpose(0, 1)

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


@register_model("block")
class BlockDrafter(TransformerModel):
    """Encoder, bidirectional decoder and tied output projection; see the module."""

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        parser.add_argument(
            "--src-embedding-copy",
            action="store_true",
            help="feed masked positions a mixture of source embeddings instead of <unk>",
        )
        parser.add_argument(
            "--apply-bert-init",
            action="store_true",
            help="initialise weights as BERT does: normal with standard deviation 0.02",
        )
        parser.add_argument(
            "--scale-encoder-embedding",
            action="store_true",
            help="scale the encoder's token embeddings by sqrt(d), as the verifier does "
            "(published drafters do not)",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> BlockDrafter:
        for name in _REFUSED:
            if getattr(args, name, None):
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag} is not supported by --arch block; leave it out")
        for side in ("encoder", "decoder"):
            width, heads = (getattr(args, f"{side}_{n}") for n in ("embed_dim", "attention_heads"))
            if width % heads:
                raise UserError(
                    f"--{side}-attention-heads is {heads}, which does not divide "
                    f"--{side}-embed-dim {width}; give a number of heads that does"
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
        """Logits of the scored positions of each block, after glancing where it is asked for.

        The glancing pass and the scored pass use the same dropout. With equal dropout the encoder
        gives the same states both times, so it runs once.
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        source, source_keys = self._copy_source(src_tokens, encoder_out)
        context = (encoder_out, source, source_keys)
        num_masked = scored_mask.sum()
        num_right = None
        if glancing is not None:
            right_mask = self._predicted_right(input_tokens, target_tokens, scored_mask, *context)
            num_right = right_mask.sum()
            input_tokens, scored_mask = glance(
                input_tokens, target_tokens, scored_mask, right_mask, glancing
            )
        features = self.decoder(input_tokens, *context)  # [B, W, D]
        logits = self.decoder.output_layer(features[scored_mask])  # [N, V]
        targets = target_tokens[scored_mask]  # [N]
        if num_right is None:
            num_right = logits.argmax(dim=-1).eq(targets).sum()
        return BlockOutput(logits, targets, num_masked, num_right)

    def _copy_source(
        self, src_tokens: Tensor, encoder_out: EncoderOut
    ) -> tuple[Tensor | None, Tensor | None]:
        """Values and keys of the copy attention, each [B, S, D].

        The values are plain embeddings, like those of the target's tokens; the keys are what the
        encoder itself reads: embeddings (scaled if it scales them) and positions.
        """
        if self.decoder.copy_attn is None:
            return None, None
        embedded = encoder_out["encoder_embedding"][0]  # [B, S, D]
        keys = embedded + self.encoder.embed_positions(src_tokens)
        return embedded / self.encoder.embed_scale, keys

    @torch.no_grad()
    def _predicted_right(
        self,
        input_tokens: Tensor,
        target_tokens: Tensor,
        scored_mask: Tensor,
        *context: Any,
    ) -> Tensor:  # [B, W] bool
        """Which scored positions the drafter predicts right, leaving the random state as it was."""
        device = input_tokens.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            features = self.decoder(input_tokens, *context)
        best = self.decoder.output_layer(features[scored_mask]).argmax(dim=-1)  # [N]
        right_mask = torch.zeros_like(scored_mask)
        right_mask[scored_mask] = best.eq(target_tokens[scored_mask])
        return right_mask


def block_architecture(args: Namespace) -> None:
    """Six and six layers of 512, as published; every flag given by the user stays."""
    args.src_embedding_copy = getattr(args, "src_embedding_copy", False)
    args.apply_bert_init = getattr(args, "apply_bert_init", False)
    args.scale_encoder_embedding = getattr(args, "scale_encoder_embedding", False)
    transformer_architecture(args)


for _name in ("block", "block_6e6d512", "block_base"):
    register_model_architecture("block", _name)(block_architecture)
