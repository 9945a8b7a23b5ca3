"""Small fairseq models for the tests, built without data."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture

from specdec_plugins.adapters.vocabularies import numbered_vocabularies
from specdec_plugins.models.block_drafter import BlockDrafter, block_architecture

SIZES = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "share_all_embeddings": True,
    "dropout": 0.0,
}


def drafter_args(**changes: Any) -> Namespace:
    """Settings of a drafter as published, but small."""
    published = {
        "arch": "block",
        "src_embedding_copy": True,
        "apply_bert_init": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "activation_fn": "gelu",
        "max_source_positions": 40,
        "max_target_positions": 40,
    }
    args = Namespace(**{**SIZES, **published, **changes})
    block_architecture(args)
    return args


def build_drafter(num_types: int = 30, seed: int = 0, **changes: Any) -> BlockDrafter:
    """A drafter with fresh weights, in training mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vocabularies = numbered_vocabularies(num_types, num_types)
        return BlockDrafter.build_model(drafter_args(**changes), vocabularies)


def build_verifier(
    num_types: int = 30, seed: int = 0, **changes: Any
) -> tuple[TransformerModel, Namespace]:
    """A stock fairseq Transformer with fresh weights, and its settings."""
    args = Namespace(**{**SIZES, "arch": "transformer", "_name": "transformer", **changes})
    transformer_architecture(args)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vocabularies = numbered_vocabularies(num_types, num_types)
        return TransformerModel.build_model(args, vocabularies), args
