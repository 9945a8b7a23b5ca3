"""Networks trained as fairseq's modules: their shape, and their weights under fairseq's names.

Sizes are read from the weights, which are always right; switches from the settings that fairseq
stores with them. Unsupported features are refused by the name of their option.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.config import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.reading import Joined, LazyState, Part, parts_of
from specdec_plugins.decoding.networks.trained import (
    State,
    TrainedNetwork,
    TrainingSettings,
    layer_number,
)
from specdec_plugins.errors import UserError, require

_PAD = 1  # in every dictionary of fairseq

_LAYER_NAMES = {
    "self_attn.out_proj": "self_attention.out",
    "self_attn_layer_norm": "self_norm",
    "self_attn.relative": "self_attention.relative",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.out_proj": "cross_attention.out",
    "encoder_attn_layer_norm": "cross_norm",
    "fc1": "up",
    "fc2": "down",
    "final_layer_norm": "ffn_norm",
}

_FUSED = {  # products that read the same input become one
    "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}

_EMBEDDING_NAMES = {
    "embed_tokens": "embedding.tokens",
    "embed_positions": "embedding.positions",
    "layernorm_embedding": "embedding.norm",
    "project_in_dim": "embedding.project",
}

_STACK_NAMES = {
    "layer_norm": "norm",
    "project_out_dim": "project",
    "output_projection": "output",
    "copy_attn": "copy",
}


class EncoderDecoder(TrainedNetwork):
    """Base of the encoder-decoder networks whose layers are fairseq's."""

    Config: ClassVar[type[TransformerConfig]]
    config: TransformerConfig
    int8 = True
    unsupported: ClassVar[tuple[str, ...]] = (  # training flags that change the network
        "adaptive_input",
        "adaptive_softmax_cutoff",
        "base_layers",
        "char_inputs",
        "cross_self_attention",
        "decoder_layers_to_keep",
        "decoder_xformers_att_config",
        "encoder_layers_to_keep",
        "encoder_xformers_att_config",
        "merge_src_tgt_embed",
        "no_cross_attention",
        "quant_noise_pq",
        "quant_noise_scalar",
        "scale_attn",
        "scale_fc",
        "scale_heads",
        "scale_resids",
        "tie_adaptive_weights",
    )
    bidirectional: ClassVar[bool] = False  # True = the decoder holds its embeddings directly

    @classmethod
    @abstractmethod
    def switches(cls, state: State, settings: TrainingSettings) -> dict[str, Any]:
        """The values of its configuration beyond `_shape`."""

    @classmethod
    def configure(cls, state: State, settings: TrainingSettings) -> TransformerConfig:
        for name in cls.unsupported:
            flag = "--" + name.replace("_", "-")
            require(
                not settings.get(name),
                f"the model was trained with {flag}, which is not supported here.",
            )
        return cls.Config(**_shape(state, settings), **cls.switches(state, settings))

    @classmethod
    def described(
        cls, architecture: dict[str, Any], state: Mapping[str, Tensor]
    ) -> TransformerConfig:
        return cls.Config.from_dict(architecture)

    @classmethod
    def own_state(cls, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return network_state(state, cls.bidirectional)


def _weight(state: State, name: str) -> Tensor:
    """Raises UserError where there is no weight of that name."""
    if name not in state:
        raise UserError(f"not a fairseq translation Transformer: it has no weights named {name}.")
    return state[name]


def _shape(state: State, settings: TrainingSettings) -> dict[str, Any]:
    """The values that all these networks read from weights and settings."""
    source_table = _weight(state, "encoder.embed_tokens.weight")
    target_table = _weight(state, "decoder.embed_tokens.weight")
    output = _weight(state, "decoder.output_projection.weight")
    return {
        "encoder": _stack("encoder", "max_source_positions", state, settings),
        "decoder": _stack("decoder", "max_target_positions", state, settings),
        "pad": _PAD,
        "activation": settings.get("activation_fn", "relu"),
        "share_embeddings": torch.equal(source_table, target_table),
        "tie_output": torch.equal(target_table, output),
    }


def _stack(side: str, limit: str, state: State, settings: TrainingSettings) -> StackConfig:
    up = _weight(state, f"{side}.layers.0.fc1.weight")
    num_layers = 1 + max(layer_number(side, name) for name in state)
    # Old checkpoints have one limit for both sides.
    max_positions = int(settings.get(limit) or settings.get("max_positions") or 1024)
    learned = state.get(f"{side}.embed_positions.weight")
    if learned is not None:
        max_positions = min(max_positions, learned.shape[0] - _PAD - 1)
    positions = "sinusoidal" if learned is None else "learned"
    if settings.get("no_token_positional_embeddings"):
        positions = "none"
    shape: dict[str, Any] = dict(
        num_layers=num_layers,
        dim=up.shape[1],
        ffn_dim=up.shape[0],
        num_heads=int(settings.get(f"{side}_attention_heads", 8)),
        vocab_size=state[f"{side}.embed_tokens.weight"].shape[0],
        max_positions=max_positions,
        positions=positions,
        normalize_before=bool(settings.get(f"{side}_normalize_before", False)),
        final_norm=f"{side}.layer_norm.weight" in state,
    )
    # What a drafter's encoder may have beyond fairseq's: it is the verifier's.
    return StackConfig(**{**shape, **(settings.get(f"{side}_switches") or {})})


def network_state(state: Mapping[str, Tensor], bidirectional: bool) -> LazyState:
    """An upgraded state dict under the networks' names, products fused when they are read.

    `bidirectional`: the decoder is the block drafter's, which holds its embeddings directly.
    Unknown names are left as they are, for `Weights` to complain about.
    """
    parts, renamed = dict(parts_of(state)), dict[str, Part]()
    layers = {m.group() for name in parts if (m := re.match(r"\w+\.layers\.\d+\.", name))}
    for layer in layers:
        for new, old in _FUSED.items():
            for kind in ("weight", "bias"):
                names = [f"{layer}{part}.{kind}" for part in old]
                if all(name in parts for name in names):
                    renamed[f"{layer}{new}.{kind}"] = Joined.of([parts.pop(n) for n in names])
    renamed.update((_network_name(name, bidirectional), part) for name, part in parts.items())
    return LazyState(renamed)


def _network_name(name: str, bidirectional: bool) -> str:
    module, _, kind = name.rpartition(".")
    layer = re.match(r"\w+\.layers\.\d+\.", module)
    if layer:
        inner = module[layer.end() :]
        return f"{layer.group()}{_LAYER_NAMES.get(inner, inner)}.{kind}"
    side, _, inner = module.partition(".")
    inner = _EMBEDDING_NAMES.get(inner, _STACK_NAMES.get(inner, inner))
    if bidirectional and side == "decoder":
        inner = inner.removeprefix("embedding.")
    return f"{side}.{inner}.{kind}"


def stored_state(state: State) -> State:
    """The inverse of `network_state`, for a bidirectional decoder: fairseq's names."""
    stored: State = {}
    for name, tensor in state.items():
        for new, parts in _FUSED.items():
            module, found, kind = name.rpartition(f"{new}.")
            if found:
                names = [f"{module}{part}.{kind}" for part in parts]
                stored |= zip(names, tensor.chunk(len(parts)), strict=True)
                break
        else:
            stored[_stored_name(name)] = tensor
    return stored


def _stored_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if layer := re.match(r"\w+\.layers\.\d+\.", module):
        names = {new: old for old, new in _LAYER_NAMES.items()}
        inner = module[layer.end() :]
        return f"{layer.group()}{names.get(inner, inner)}.{kind}"
    side, _, inner = module.partition(".")
    names = {new: old for old, new in (_STACK_NAMES | _EMBEDDING_NAMES).items()}
    within = inner if side == "encoder" else f"embedding.{inner}"
    return f"{side}.{names.get(inner) or names.get(within, inner)}.{kind}"
