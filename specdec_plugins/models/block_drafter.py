"""The block drafter: a Transformer that predicts the next k target tokens in one pass.

Source: SpecDec (Xia et al., Findings of EMNLP 2023), whose drafter stems from GLAT (Qian et al.,
ACL 2021). Trained here with fairseq; ``specdec_plugins.decoding`` holds its twin for inference.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from typing import Any, NamedTuple

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerEncoder, TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn
from torch.nn.functional import pad

from specdec_plugins.decoding import networks as decoding
from specdec_plugins.errors import require
from specdec_plugins.models.block_decoder import BlockDecoder, EncoderOut, Layout, swish
from specdec_plugins.models.glancing import Glance, glance

# Switches of this model: what each does, in the order of the flags.
SWITCHES = {
    "src_embedding_copy": "feed masked positions a mixture of source embeddings instead of <unk>",
    "apply_bert_init": "initialise weights as BERT does: normal with standard deviation 0.02",
    "scale_encoder_embedding": "scale the encoder's token embeddings by sqrt(d), as the verifier "
    "does (published drafters do not)",
    "scale_decoder_embedding": "scale the decoder's token embeddings too",
    "freeze_encoder": "keep the encoder of the initial checkpoint, without dropout: it stays the "
    "verifier's, so that the drafter can read the verifier's output instead of encoding again",
    "cached_prefix": "let prefix positions see only the prefix up to them, so that decoding can "
    "cache their states; the block still sees everything",
    "swish": "the activation x * sigmoid(x), which --activation-fn lacks",
}

# Switches that distinguish the fast drafter from the published one.
_FAST = ("scale_encoder_embedding", "scale_decoder_embedding", "freeze_encoder", "cached_prefix")


class BlockOutput(NamedTuple):
    """What one pass over a batch of blocks yields; N is the number of scored positions."""

    logits: Tensor  # [N, V], row by row of the scored mask; after the head, if there is one
    targets: Tensor  # [N] int64
    num_masked: Tensor  # [] int64: positions with an answer before glancing
    num_right: Tensor | None  # [] int64: of these, predicted right; None: not glanced
    places: Tensor  # [N] int64, position within its block, from 0
    first: Tensor  # [N] bool: in the first block of its sentence
    plain_logits: Tensor | None = None  # [M, V] before the head, of the first blocks


class BlockEncoder(TransformerEncoder):
    """A fairseq encoder that adds positions to unscaled embeddings, unless a switch scales them."""

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        scale = getattr(args, "scale_encoder_embedding", False)
        self.embed_scale = math.sqrt(embed_tokens.embedding_dim) if scale else 1.0
        if args.swish:
            swish(self.layers)


@register_model("block")
class BlockDrafter(TransformerModel):
    """Encoder, bidirectional decoder and tied output projection; see the module."""

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        for name, meaning in SWITCHES.items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, action=BooleanOptionalAction, help=meaning)
        parser.add_argument(
            "--sequential-head",
            type=int,
            metavar="N",
            help="hidden width of a sequential head, which tells each position of a block the "
            "token before it; 0 = none (default: twice the decoder's width for block_fast, where "
            "the projection is tied, else 0)",
        )
        parser.add_argument(
            "--head-attention",
            type=int,
            metavar="N",
            help="attention heads with which the sequential head reads the source; 0 = none "
            "(default: the decoder's if --sequential-head is left to block_fast, else 0)",
        )
        parser.add_argument(
            "--start-token",
            type=int,
            metavar="ID",
            help="target id that opens the verifier's input, which a sequential head reads "
            "before the first token (default: that of </s>, as in fairseq)",
        )

    def __init__(self, args: Any, encoder: BlockEncoder, decoder: BlockDecoder) -> None:
        super().__init__(args, encoder, decoder)
        self.encoder_is_frozen = bool(args.freeze_encoder)
        if self.encoder_is_frozen:
            encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> BlockDrafter:
        """A frozen encoder stays in eval mode: it must give what the verifier's gives."""
        super().train(mode)
        if self.encoder_is_frozen:
            self.encoder.eval()
        return self

    @classmethod
    def build_model(cls, args: Any, task: Any) -> BlockDrafter:
        for name in ("encoder_layerdrop", "decoder_layerdrop", *decoding.BlockDrafter.unsupported):
            flag = "--" + name.replace("_", "-")
            is_given = bool(getattr(args, name, None))
            require(not is_given, f"{flag} is not supported by --arch block; leave it out")
        head, tied = args.sequential_head, args.share_decoder_input_output_embed
        require(head >= 0, f"--sequential-head is {head}, expected 0 or more")
        reading, width = args.head_attention, args.decoder_embed_dim
        require(
            reading == 0 or (reading > 0 and head > 0 and width % reading == 0),
            f"--head-attention is {reading}, expected 0, or a number that divides "
            f"--decoder-embed-dim {width}, with --sequential-head",
        )
        require(
            head == 0 or bool(tied or args.share_all_embeddings),
            "--sequential-head scores tokens by their embeddings; add "
            "--share-decoder-input-output-embed (or --share-all-embeddings)",
        )
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
            if decoder.head is not None:
                decoder.head.forget()
        return decoder

    def forward(
        self,
        src_tokens: Tensor,  # [B, S] int64, right-padded
        src_lengths: Tensor,  # [B] int64
        input_tokens: Tensor,  # [B, W] int64
        target_tokens: Tensor,  # [B, W] int64
        scored_mask: Tensor,  # [B, W] bool
        glancing: Glance | None = None,
        starts: Tensor | None = None,  # [B, N] int64, of blocks that share a prefix
    ) -> BlockOutput:
        """Logits of the scored positions of each block, after glancing if `glancing` is given.

        The glancing pass and the scored pass use the same dropout. The encoder would give the same
        states both times, so it runs once. The decoder's last layer computes only the columns of
        blocks. With `starts` a row holds several blocks after a prefix that they share
        (``tasks.block_mask.share_prefix``), else one, in place.
        """
        source = self._read_source(src_tokens, src_lengths)
        layout = Layout.find(scored_mask, starts)
        num_masked = scored_mask.sum()
        num_right = None
        if glancing is not None:
            right_mask = self._predicted_right(
                input_tokens, target_tokens, scored_mask, source, layout
            )
            num_right = right_mask.sum()
            input_tokens, scored_mask = glance(
                input_tokens, target_tokens, scored_mask, right_mask, glancing
            )
        states, scored_at = self._states(input_tokens, scored_mask, source, layout)
        targets = target_tokens[scored_mask]  # [N]
        logits = self._logits(states, scored_at, target_tokens, source, layout)
        places, first = (found[scored_mask] for found in (layout.places, layout.block == 0))
        plain = None
        if self.decoder.head is not None:
            plain = self.decoder.output_layer(states[scored_at][first])
        return BlockOutput(logits, targets, num_masked, num_right, places, first, plain)

    def _read_source(
        self, src_tokens: Tensor, src_lengths: Tensor
    ) -> tuple[EncoderOut, Tensor | None, Tensor | None]:
        """The encoder's output, and values and keys of the copy attention."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder_is_frozen):
            encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
            return (encoder_out, *self._copy_source(src_tokens, encoder_out))

    def _states(
        self, input_tokens: Tensor, scored_mask: Tensor, source: tuple[Any, ...], layout: Layout
    ) -> tuple[Tensor, Tensor]:  # [B, n, D], [B, n] bool
        """Last states of the blocks' columns, and which of these are scored."""
        columns = layout.columns
        # Columns of a row with few scored positions may lie past the last one.
        scored_at = pad(scored_mask, (0, columns.size(1))).gather(1, columns)
        return self.decoder(input_tokens, *source, layout), scored_at

    def _logits(
        self,
        states: Tensor,  # [B, n, D] of the blocks' columns
        scored_at: Tensor,  # [B, n] bool
        target_tokens: Tensor,  # [B, W] int64
        source: tuple[Any, ...],
        layout: Layout,
    ) -> Tensor:  # [N, V]
        """Logits of the scored positions; the head is fed the true tokens before them."""
        if self.decoder.head is not None:
            opened = pad(target_tokens, (1, 0), value=self.decoder.start)
            # Scored positions lie inside the target; others may lie after it.
            columns = layout.columns.clamp(max=layout.positions.size(1) - 1)
            positions = layout.positions.gather(1, columns).clamp(max=opened.size(1) - 1)
            before = self.decoder.embed_tokens(opened.gather(1, positions))
            memory = source[0]["encoder_out"][0].transpose(0, 1)  # [B, S, D]
            states = self.decoder.head(states, before, memory, source[0]["encoder_padding_mask"][0])
        logits: Tensor = self.decoder.output_layer(states[scored_at])
        return logits

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
        if self.encoder.layernorm_embedding is not None:
            keys = self.encoder.layernorm_embedding(keys)
        return embedded / self.encoder.embed_scale, keys

    @torch.no_grad()
    def _predicted_right(
        self,
        input_tokens: Tensor,
        target_tokens: Tensor,
        scored_mask: Tensor,
        source: tuple[Any, ...],
        layout: Layout,
    ) -> Tensor:  # [B, W] bool
        """Which scored positions the drafter predicts right, leaving the random state as it was."""
        device = input_tokens.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            states, scored_at = self._states(input_tokens, scored_mask, source, layout)
            logits = self._logits(states, scored_at, target_tokens, source, layout)
            best = logits.argmax(dim=-1)
        right_mask = torch.zeros_like(scored_mask)
        right_mask[scored_mask] = best.eq(target_tokens[scored_mask])
        return right_mask


def block_architecture(args: Namespace) -> None:
    """Six encoder and six decoder layers of 512, as published; the user's flags stay."""
    for name in SWITCHES:
        setattr(args, name, getattr(args, name, False))
    args.sequential_head = getattr(args, "sequential_head", None) or 0
    args.head_attention = getattr(args, "head_attention", None) or 0
    args.start_token = getattr(args, "start_token", None)
    if args.swish:
        args.activation_fn = "swish"  # the name in decoding
    transformer_architecture(args)


for _name in ("block", "block_6e6d512", "block_base"):
    register_model_architecture("block", _name)(block_architecture)


@register_model_architecture("block", "block_fast")
def fast_architecture(args: Namespace) -> None:
    """The verifier's encoder, kept as it is, and two decoder layers whose prefix can be cached.

    The encoder's sizes and switches must be the verifier's: `encoder_initial.py` prints them.
    """
    for name in (*_FAST, "src_embedding_copy"):
        setattr(args, name, getattr(args, name, True))
    args.decoder_layers = getattr(args, "decoder_layers", 2)
    tied = ("share_all_embeddings", "share_decoder_input_output_embed")
    if getattr(args, "sequential_head", None) is None and any(getattr(args, n, 0) for n in tied):
        args.sequential_head = 2 * getattr(args, "decoder_embed_dim", 512)
        args.head_attention = getattr(args, "head_attention", None)
    # A width without this attribute means an older head, which does not read the source.
    if getattr(args, "head_attention", 0) is None and args.sequential_head:
        args.head_attention = getattr(args, "decoder_attention_heads", 8)
    block_architecture(args)
