"""Small fairseq models for the tests, built without data."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel

from specdec_plugins.models.assistant_transformer import (
    AssistantTransformer,
    assistant_architecture,
)
from specdec_plugins.models.block_drafter import BlockDrafter
from specdec_plugins.models.early_exit_transformer import EarlyExitTransformer
from specdec_plugins.models.medusa_heads import MedusaHeads
from specdec_plugins.tasks.block_mask import mask_blocks
from specdec_plugins.training.initialise import numbered_dictionaries
from tests.fairseq_checkpoints import LEARNED, settings


def build(arch: str, seed: int = 0, **changes: Any) -> tuple[Any, Namespace]:
    """A small model of 30 types with fresh weights, in training mode, and its settings."""
    args = settings(arch, **{"share_all_embeddings": True, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ARCH_MODEL_REGISTRY[arch].build_model(args, numbered_dictionaries(30, 30)), args


def build_drafter(**changes: Any) -> BlockDrafter:
    """A drafter as published."""
    published = {"src_embedding_copy": True, "apply_bert_init": True, "activation_fn": "gelu"}
    return build("block", **{**LEARNED, **published, **changes})[0]


def build_verifier(**changes: Any) -> tuple[TransformerModel, Namespace]:
    """A stock fairseq Transformer, and its settings."""
    return build("transformer", **changes)


def build_early_exit(**changes: Any) -> EarlyExitTransformer:
    return build("early_exit_transformer", **changes)[0]


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
