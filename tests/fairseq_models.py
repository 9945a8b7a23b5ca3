"""Small fairseq models for the tests, built without data."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture

from specdec_plugins.models.assistant_transformer import (
    AssistantTransformer,
    assistant_architecture,
)
from specdec_plugins.models.block_drafter import BlockDrafter, block_architecture
from specdec_plugins.models.early_exit_transformer import (
    EarlyExitTransformer,
    early_exit_architecture,
)
from specdec_plugins.models.medusa_heads import MedusaHeads
from specdec_plugins.tasks.block_mask import mask_blocks
from specdec_plugins.training.initialise import numbered_dictionaries
from tests.fairseq_checkpoints import LEARNED, settings


def drafter_args(**changes: Any) -> Namespace:
    """Settings of a drafter as published, but small."""
    published = {"src_embedding_copy": True, "apply_bert_init": True, "activation_fn": "gelu"}
    args = _args("block", **{**LEARNED, **published, **changes})
    block_architecture(args)
    return args


def _args(arch: str, **changes: Any) -> Namespace:
    return settings(arch, **{"share_all_embeddings": True, **changes})


def _fresh(cls: Any, args: Namespace, num_types: int, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls.build_model(args, numbered_dictionaries(num_types, num_types))


def build_drafter(num_types: int = 30, seed: int = 0, **changes: Any) -> BlockDrafter:
    """A drafter with fresh weights, in training mode."""
    return _fresh(BlockDrafter, drafter_args(**changes), num_types, seed)


def build_verifier(
    num_types: int = 30, seed: int = 0, **changes: Any
) -> tuple[TransformerModel, Namespace]:
    """A stock fairseq Transformer with fresh weights, and its settings."""
    args = _args("transformer", **changes)
    transformer_architecture(args)
    return _fresh(TransformerModel, args, num_types, seed), args


def build_early_exit(num_types: int = 30, seed: int = 0, **changes: Any) -> EarlyExitTransformer:
    """An early-exit Transformer with fresh weights, in training mode."""
    args = _args("early_exit_transformer", **changes)
    early_exit_architecture(args)
    return _fresh(EarlyExitTransformer, args, num_types, seed)


def build_heads(num_heads: int = 3, seed: int = 0) -> MedusaHeads:
    """Heads with random weights on a fresh verifier, in training mode."""
    verifier, _ = build_verifier(seed=seed, dropout=0.3)
    heads = MedusaHeads(verifier, verifier.decoder.embed_dim, num_heads)
    generator = torch.Generator().manual_seed(seed)
    for parameter in heads.blocks.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return heads.train()


def build_assistant(verifier_path: Any = None, **changes: Any) -> AssistantTransformer:
    """An assistant of the verifier in that checkpoint, in training mode."""
    sizes = vars(settings("assistant_transformer")).items()
    decoder = {name: value for name, value in sizes if name.startswith("decoder_")}
    args = Namespace(**{**decoder, "verifier_path": verifier_path, "dropout": 0.5, **changes})
    assistant_architecture(args)
    return AssistantTransformer.build_model(args, numbered_dictionaries(30, 30))


def block_sample() -> dict[str, Any]:
    """Two sentences with masked blocks, as the task collates them."""
    target = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]])
    return {
        "net_input": {"src_tokens": target, "src_lengths": torch.tensor([4, 3])},
        "target": target,
        "ntokens": 7,
        "nsentences": 2,
        "blocks": mask_blocks(target, torch.tensor([1, 0]), 2, mask=3, pad=1),
    }
