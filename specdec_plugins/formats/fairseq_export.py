"""Models back into fairseq checkpoints, which its trainer and fairseq-generate load."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.networks import BlockConfig, StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.trained import NETWORKS, Model, State
from specdec_plugins.errors import UserError

_VERSION = 3.0  # from 2 on a stack may end in a norm, from 3 on layers are laid out as today


def to_checkpoint(model: Model, source_lang: str, target_lang: str) -> dict[str, Any]:
    """A checkpoint as fairseq's trainer reads it, before the first update; float32 weights.

    Raises UserError where fairseq has no option for what the model does.
    """
    if not isinstance(model.config, TransformerConfig):
        raise UserError(
            f"{model.path}: {NETWORKS.get(model.kind).noun} is no encoder-decoder of fairseq's; "
            "convert its verifier."
        )
    settings = _settings(model, model.config)
    settings.update(source_lang=source_lang, target_lang=target_lang, data=None)
    state = _in_float32(model.state)
    for side, stack in (("encoder", model.config.encoder), ("decoder", model.config.decoder)):
        state[f"{side}.version"] = torch.tensor([_VERSION])
        if stack.positions == "sinusoidal":
            state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    last = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    return {
        "args": Namespace(**settings),
        "cfg": None,
        "model": state,
        "criterion": None,
        "optimizer_history": [last],
        "task_state": {},
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }


def _in_float32(state: State) -> State:
    """Tied weights stay one tensor, which a file holds once."""
    converted: dict[int, Tensor] = {}
    for tensor in state.values():
        converted.setdefault(id(tensor), tensor.float())
    return {name: converted[id(tensor)] for name, tensor in state.items()}


def _settings(model: Model, config: TransformerConfig) -> dict[str, Any]:
    """The flags that build this network, every default spelt out."""
    settings: dict[str, Any] = {
        "no_token_positional_embeddings": _without_positions(model, config),
        "activation_fn": config.activation,
        "layernorm_embedding": config.norm_embedding,
        "share_all_embeddings": config.share_embeddings and config.tie_output,
        "share_decoder_input_output_embed": config.tie_output,
        "decoder_input_dim": config.input_dim,
        "decoder_output_dim": config.output_dim,
        **_stack("encoder", config.encoder),
        **_stack("decoder", config.decoder),
        "max_source_positions": config.encoder.max_positions,
        "max_target_positions": config.decoder.max_positions,
        "left_pad_source": False,
    }
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack.final_norm == stack.normalize_before:
            continue
        if side == "encoder" or stack.final_norm:
            raise UserError(
                f"{model.path}: fairseq's {side} ends in a norm where its layers begin with one, "
                "and only there; this model cannot be written as one of its checkpoints."
            )
        settings["no_decoder_final_norm"] = True
    if isinstance(config, BlockConfig):
        own: dict[str, Any] = {
            "arch": model.kind,
            "task": "translation_lev_modified",
            "block_size": config.block_size,
        }
        own |= {"src_embedding_copy": config.copy_source, "apply_bert_init": False}
        own |= {"scale_encoder_embedding": config.scale_embedding}
        own |= {"scale_decoder_embedding": config.scale_decoder}
        return {**settings, **own, "cached_prefix": config.cached_prefix}
    settings |= {"arch": "transformer", "task": "translation"}
    return {**settings, "no_scale_embedding": not config.scale_embedding}


def _stack(side: str, stack: StackConfig) -> dict[str, Any]:
    return {
        f"{side}_layers": stack.num_layers,
        f"{side}_embed_dim": stack.dim,
        f"{side}_ffn_embed_dim": stack.ffn_dim,
        f"{side}_attention_heads": stack.num_heads,
        f"{side}_normalize_before": stack.normalize_before,
        f"{side}_learned_pos": stack.positions == "learned",
    }


def _without_positions(model: Model, config: TransformerConfig) -> bool:
    absent = {stack.positions == "none" for stack in (config.encoder, config.decoder)}
    if len(absent) > 1:
        raise UserError(
            f"{model.path}: fairseq has positions on both sides or on neither, this model on one."
        )
    return absent.pop()
