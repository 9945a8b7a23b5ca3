"""fairseq checkpoints into inference networks: plain torch, without fairseq.

Sizes are read from the weights, which cannot be wrong about them; switches from the settings that
fairseq stores beside them. What the networks do not have is refused by the name of its option.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.networks import BlockConfig, StackConfig, TransformerConfig
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.fairseq_weights import State, upgrade
from specdec_plugins.formats.model import BLOCK, HEADS, VERIFIER, Model, layer_number

_UNSUPPORTED = (
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
_UNSUPPORTED_BY_BLOCK = (
    "decoder_normalize_before",
    "encoder_normalize_before",
    "layernorm_embedding",
    "no_token_positional_embeddings",
)


class Settings:
    """What a checkpoint says about its model: flat or nested, of today or of years ago."""

    def __init__(self, checkpoint: dict[str, Any], path: Path) -> None:
        self.path = path
        config = checkpoint.get("cfg")
        self._task = config.get("task") if config is not None else None
        self._model = config.get("model") if config is not None else checkpoint.get("args")
        if self._model is None:
            raise UserError(
                f"{path}: the checkpoint does not say what its model is (neither 'cfg' nor "
                "'args'); give one that fairseq-train wrote."
            )

    @property
    def arch(self) -> str:
        return str(self.get("_name") or self.get("arch") or "unknown")

    def get(self, name: str, default: Any = None) -> Any:
        """The model's setting; `encoder_layers` may also stand as `encoder.layers`."""
        group, _, rest = name.partition("_")
        for holder, key in ((self._model, name), (_read(self._model, group), rest)):
            value = _read(holder, key)
            if value is not None:
                return value
        return default

    def task(self, name: str) -> Any:
        """The task's setting; older checkpoints keep all settings in one place."""
        value = _read(self._task, name)
        return self.get(name) if value is None else value

    def refuse(self, names: tuple[str, ...]) -> None:
        """Raises UserError where one of these options is in use."""
        for name in names:
            if self.get(name):
                flag = "--" + name.replace("_", "-")
                raise UserError(
                    f"{self.path}: the model was trained with {flag}, which is not supported here."
                )


def _read(holder: Any, name: str) -> Any:
    """A value of a Namespace, a DictConfig or a dictionary; None where there is none."""
    if holder is None or isinstance(holder, (str, int, float)) or not name:
        return None
    if hasattr(holder, "get"):
        return holder.get(name)
    return getattr(holder, name, None)


def read_checkpoint(path: str | Path) -> Model:
    """The model of a fairseq checkpoint: a stock Transformer, a block drafter, or heads.

    Raises UserError where the file is no such checkpoint, or uses an option that the networks do
    not have.
    """
    state, settings = _open(path)
    if settings.arch == "medusa_heads":
        return Model(settings.path, HEADS, settings.arch, None, state)
    if settings.arch.startswith("block"):
        return Model(settings.path, BLOCK, settings.arch, _block_config(state, settings), state)
    config = _verifier_config(state, settings)
    return Model(settings.path, VERIFIER, settings.arch, config, state)


def _verifier_config(state: State, settings: Settings) -> TransformerConfig:
    settings.refuse(_UNSUPPORTED)
    return TransformerConfig(
        **_common(state, settings),
        scale_embedding=not settings.get("no_scale_embedding", False),
        norm_embedding=bool(settings.get("layernorm_embedding", False)),
        decoder_input_dim=_weight(state, "decoder.embed_tokens.weight", settings).shape[1],
        decoder_output_dim=_weight(state, "decoder.output_projection.weight", settings).shape[1],
    )


def _block_config(state: State, settings: Settings) -> BlockConfig:
    settings.refuse(_UNSUPPORTED + _UNSUPPORTED_BY_BLOCK)
    block_size = settings.task("block_size")
    if not block_size:
        raise UserError(
            f"{settings.path}: the checkpoint does not say for which --block-size it was trained; "
            "train it with this plugin's task."
        )
    return BlockConfig(
        **_common(state, settings),
        scale_embedding=bool(settings.get("scale_encoder_embedding", False)),
        mask=Dictionary.unk,
        block_size=int(block_size),
        copy_source="decoder.copy_attn.weight" in state,
        scale_decoder=bool(settings.get("scale_decoder_embedding", False)),
        cached_prefix=bool(settings.get("cached_prefix", False)),
    )


def _open(path: str | Path) -> tuple[State, Settings]:
    if os.pathsep in str(path) and not Path(path).exists():
        raise UserError(
            f"{path}: ensembles are not supported; give one checkpoint, or average them first."
        )
    checkpoint = load_checkpoint(path)
    settings = Settings(checkpoint, Path(path))
    state = upgrade(checkpoint["model"])
    tied = settings.get("share_decoder_input_output_embed") or settings.get("share_all_embeddings")
    if tied and "decoder.embed_tokens.weight" in state:
        # Older versions did not write the projection where it is the embeddings.
        state.setdefault("decoder.output_projection.weight", state["decoder.embed_tokens.weight"])
    return state, settings


def _common(state: State, settings: Settings) -> dict[str, Any]:
    """What all networks read off weights and settings alike."""
    source_table = _weight(state, "encoder.embed_tokens.weight", settings)
    target_table = _weight(state, "decoder.embed_tokens.weight", settings)
    output = _weight(state, "decoder.output_projection.weight", settings)
    return {
        "encoder": _stack("encoder", "max_source_positions", state, settings),
        "decoder": _stack("decoder", "max_target_positions", state, settings),
        "pad": Dictionary.pad,
        "activation": settings.get("activation_fn", "relu"),
        "share_embeddings": torch.equal(source_table, target_table),
        "tie_output": torch.equal(target_table, output),
    }


def _stack(side: str, limit: str, state: State, settings: Settings) -> StackConfig:
    up = _weight(state, f"{side}.layers.0.fc1.weight", settings)
    num_layers = 1 + max(layer_number(side, name) for name in state)
    # Years ago both sides had one limit.
    max_positions = int(settings.get(limit) or settings.get("max_positions") or 1024)
    learned = state.get(f"{side}.embed_positions.weight")
    if learned is not None:
        max_positions = min(max_positions, learned.shape[0] - Dictionary.pad - 1)
    positions = "sinusoidal" if learned is None else "learned"
    return StackConfig(
        num_layers=num_layers,
        dim=up.shape[1],
        ffn_dim=up.shape[0],
        num_heads=int(settings.get(f"{side}_attention_heads", 8)),
        vocab_size=state[f"{side}.embed_tokens.weight"].shape[0],
        max_positions=max_positions,
        positions="none" if settings.get("no_token_positional_embeddings") else positions,
        normalize_before=bool(settings.get(f"{side}_normalize_before", False)),
        final_norm=f"{side}.layer_norm.weight" in state,
    )


def _weight(state: State, name: str, settings: Settings) -> Tensor:
    if name not in state:
        raise UserError(
            f"{settings.path}: no Transformer of fairseq that translates (arch {settings.arch}): "
            f"it has no weights named {name}."
        )
    return state[name]
