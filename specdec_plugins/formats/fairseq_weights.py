"""fairseq's parameter names, old and new, into those of the inference networks."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from specdec_plugins.errors import UserError

State = dict[str, Tensor]

# Buffers that say how a file was written, and tables that are computed anyway.
_IGNORED = re.compile(r"\.version$|\.embed_positions\.(_float_tensor|weights)$")

_OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}

_LAYER_NAMES = {
    "self_attn.out_proj": "self_attention.out",
    "self_attn_layer_norm": "self_norm",
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


def upgrade(state: State) -> State:
    """The state dict of a fairseq checkpoint in today's names, whatever version wrote it."""
    upgraded: State = {}
    for name, tensor in state.items():
        if not _IGNORED.search(name):
            upgraded.update(_modern(name, tensor))
    return upgraded


def _modern(name: str, tensor: Tensor) -> State:
    if name == "decoder.embed_out":
        return {"decoder.output_projection.weight": tensor}
    norm = re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name)
    if norm:
        layer, side, number, kind = norm.groups()
        return {f"{layer}.{_OLD_NORMS[side][int(number)]}.{kind}": tensor}
    fused = re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name)
    if fused:
        prefix, kind = fused.groups()
        names = [f"{prefix}.{letter}_proj.{kind}" for letter in "qkv"]
        return dict(zip(names, tensor.chunk(3), strict=True))
    return {name: tensor}


def network_state(state: State, bidirectional: bool) -> State:
    """An upgraded state dict in the networks' names, products fused.

    `bidirectional`: the decoder is the block drafter's, which keeps its embeddings itself. Names
    that mean nothing here are left as they are, for `fill` to complain about.
    """
    state = dict(state)
    renamed: State = {}
    layers = {m.group() for name in state if (m := re.match(r"\w+\.layers\.\d+\.", name))}
    for layer in layers:
        for new, parts in _FUSED.items():
            for kind in ("weight", "bias"):
                names = [f"{layer}{part}.{kind}" for part in parts]
                if all(name in state for name in names):
                    renamed[f"{layer}{new}.{kind}"] = torch.cat([state.pop(n) for n in names])
    renamed.update((_network_name(name, bidirectional), t) for name, t in state.items())
    return renamed


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


def fill(network: nn.Module, state: State, origin: object) -> None:
    """Load every weight, and nothing else. Raises UserError where the two do not match."""
    expected = network.state_dict()
    _complain(origin, "lacks the weights", expected.keys() - state.keys())
    _complain(origin, "has weights of another kind of model,", state.keys() - expected.keys())
    wrong = {name for name, tensor in state.items() if tensor.shape != expected[name].shape}
    _complain(origin, "has weights of unexpected size,", wrong)
    network.load_state_dict(state)


def _complain(origin: object, what: str, names: Iterable[str]) -> None:
    listed = sorted(names)
    if listed:
        more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
        raise UserError(
            f"{origin}: the checkpoint {what} {', '.join(listed[:3])}{more}; "
            "give one of a stock fairseq Transformer, or of the block drafter, as asked for."
        )
