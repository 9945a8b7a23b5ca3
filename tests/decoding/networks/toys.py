"""Small random inference networks, and the slow way to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.contract import Drafter
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    StackConfig,
    Transformer,
    TransformerConfig,
)
from specdec_plugins.decoding.networks.cache import KVCache, SourceMemory
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_model_of
from tests import fairseq_checkpoints
from tests.decoding.toys import CPU, SPECIAL, requests

N = TypeVar("N", Transformer, BlockDrafter)
VOCAB = 23
PAD, EOS, UNK = 1, 2, 3
_STACK = StackConfig(
    num_layers=2, dim=16, ffn_dim=24, num_heads=2, vocab_size=VOCAB, max_positions=48
)


def randomise(network: nn.Module, seed: int) -> nn.Module:
    """Every parameter away from its initial value, in double precision and eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        # large embeddings and small biases, or every position would predict the same token
        large = "tokens" in name or "positions" in name
        parameter.data = noise * (1.5 if large else 0.3 if parameter.dim() > 1 else 0.1)
        if "norm" in name and name.endswith("weight"):
            parameter.data += 1.0
    return network.double().eval().requires_grad_(False)


T5: dict[str, Any] = {  # the switches of its layers
    **{"positions": "relative", "num_buckets": 8, "max_distance": 12, "bias_each_layer": True},
    **{"normalize_before": True, "final_norm": True, "norm": "rms", "norm_epsilon": 1e-6},
    **{"attention_dim": 18, "scales_scores": False, "biases": False, "gated": True},
}


def t5() -> Transformer:
    """One with the layers of T5 on both sides."""
    stack = replace(_STACK, **T5)
    network = Transformer(TransformerConfig(stack, stack, activation="gelu_accurate"))
    randomise(network, seed=0)
    return network


def transformer(
    seed: int = 0, max_positions: int = 48, positions: str = "learned", **decoder: Any
) -> Transformer:
    stack = replace(_STACK, max_positions=max_positions, positions=positions, **decoder)
    network = Transformer(TransformerConfig(encoder=_STACK, decoder=stack))
    randomise(network, seed)
    return network


def block_drafter(
    seed: int = 0, block_size: int = 6, copy_source: bool = True, **changes: Any
) -> BlockDrafter:
    stack = replace(_STACK, positions="learned")
    config = BlockConfig(
        encoder=stack,
        decoder=stack,
        activation="gelu",
        scale_embedding=False,
        share_embeddings=True,
        tie_output=True,
        mask=UNK,
        block_size=block_size,
        copy_source=copy_source,
        **changes,
    )
    network = BlockDrafter(config)
    randomise(network, seed)
    return network


def fast_drafter(verifier: Transformer, seed: int = 3, num_layers: int = 2) -> BlockDrafter:
    """One whose encoder is that verifier's, and whose prefix can be kept."""
    theirs = verifier.config
    stack = replace(_STACK, positions="learned", num_layers=num_layers)
    config = BlockConfig(
        encoder=theirs.encoder,
        decoder=stack,
        activation=theirs.activation,
        scale_embedding=theirs.scale_embedding,
        mask=UNK,
        block_size=25,
        scale_decoder=True,
        cached_prefix=True,
    )
    network = BlockDrafter(config)
    randomise(network, seed)
    network.encoder.load_state_dict(verifier.encoder.state_dict())
    return network


def load_network(
    kind: type[Any], path: Path, *dictionaries: Dictionary, exit_layer: int | None = None
) -> Any:
    """The network of a file, in double precision."""
    model = read_model_of(kind, path, *dictionaries)
    model = model if exit_layer is None else model.until(exit_layer)
    return model.network(torch.float64, CPU)


def trained_pair(
    arch: str, kind: type[N], case: dict[str, Any], folder: Path
) -> tuple[nn.Module, N]:
    """fairseq's random model with these settings, and our network from its checkpoint."""
    shared = case.get("share_all_embeddings", False)
    data = fairseq_checkpoints.dictionaries(folder, 30, 30 if shared else 25)
    args = fairseq_checkpoints.settings(arch, **case)
    model = fairseq_checkpoints.build(args, data)
    path = fairseq_checkpoints.save(model, args, folder / "model.pt")
    source, target = (Dictionary.load(data / f"dict.{side}.txt") for side in ("en", "de"))
    return model, load_network(kind, path, source, target)


def fast_pair() -> tuple[TransformerVerifier, Drafter]:
    """A verifier, and the fast block drafter, which reads its encoding and keeps its prefix."""
    verifier = TransformerVerifier(transformer(), SPECIAL)
    context = DraftContext(verifier, fast_drafter(verifier.network))
    return verifier, DRAFTERS.build("block", context)


def remember(network: Transformer | BlockDrafter, tokens: Tensor) -> SourceMemory:
    """The memory of source tokens [B, S] int64."""
    states, padding_mask = network.encoder(tokens)
    is_drafter = isinstance(network, BlockDrafter)
    reads = network.decoder if is_drafter else network.decoder.layers
    return SourceMemory(
        lengths=(~padding_mask).sum(1),
        padding_mask=padding_mask,
        keys_values=reads.keys_values(states),
        extras=network.copied(tokens) if is_drafter else (),
    ).trimmed()


@torch.inference_mode()
def full_logits(network: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """All at once, from an empty cache: [B, T, V] of source [B, S] and target [B, T] int64."""
    dtype = network.decoder.layers.attention_dtype
    cache = KVCache(network.config.decoder, len(target), target.device, dtype)
    window = cache.window(target.shape[1], width=0)
    states = network.decoder(target, window, remember(network, source))
    return network.decoder.logits(states)


def random_ids(generator: torch.Generator, length: int) -> list[int]:
    """Ordinary tokens, `<unk>` among them, no padding and no eos."""
    return torch.randint(UNK, VOCAB, (length,), generator=generator).tolist()


def sentences(
    count: int,
    num_forced: Callable[[int], int] = lambda i: 0,
    length: Callable[[int], int] = lambda i: 1 + 5 * i % 9,
    **options: Any,
) -> list[Request]:
    """As the tables' `requests`, but for networks: random sources of many lengths."""
    generator = torch.Generator().manual_seed(5)
    return [
        replace(job, source_ids=[*random_ids(generator, length(i)), EOS])
        for i, job in enumerate(requests(count, num_forced, **options))
    ]
