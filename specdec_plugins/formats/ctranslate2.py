"""A verifier as a model of CTranslate2, through its own specification and converter classes.

Its converter for fairseq does the same from a checkpoint, and needs fairseq; the files are equal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.trained import Model, State
from specdec_plugins.errors import imported, require
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary
from specdec_plugins.formats.marian import positions_of
from specdec_plugins.formats.output import new_folder

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_fast": "GELUTanh",
    "gelu_accurate": "GELUTanh",
    "tanh": "Tanh",
    "swish": "SWISH",
}


def export_ctranslate2(
    verifier: Model,
    dictionaries: Dictionaries,
    folder: str | Path,
    quantization: str | None = None,
    force: bool = False,
) -> Path:
    """Write the folder, for `ctranslate2.Translator(folder)`; tokens are those of BPE text.

    quantization: of the stored weights, such as int8 or float16; None = float32, which a
    translator can still quantise when it loads them. The end of the source is added by itself.
    Raises UserError where ctranslate2 is not installed, the folder is taken, or CTranslate2 cannot
    express the model.
    """
    specs = imported("ctranslate2.specs", "convert")
    converter = imported("ctranslate2.converters.converter", "convert")
    choices = specs.model_spec.ACCEPTED_MODEL_TYPES
    require(
        quantization is None or quantization in choices,
        f"CTranslate2 stores no {quantization!r}; choose one of: {', '.join(choices)}.",
    )
    spec = _specification(verifier, dictionaries)

    class FromNetwork(converter.Converter):  # type: ignore[name-defined]
        def _load(self) -> Any:
            return spec

    with new_folder(folder, "model.bin", force) as made:
        FromNetwork().convert(str(made), quantization=quantization, force=True)
    return Path(folder)


def _specification(verifier: Model, dictionaries: Dictionaries) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec

    config = _expressible(verifier)
    options: dict[str, Any] = {
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.norm_embedding,
    }
    specs = []
    for name, stack in (("Encoder", config.encoder), ("Decoder", config.decoder)):
        new = getattr(transformer_spec, f"Transformer{name}Spec")
        norms: dict[str, Any] = {
            "pre_norm": stack.normalize_before,
            "no_final_norm": not stack.final_norm,
        }
        if name == "Decoder":
            norms["alignment_heads"] = 0  # as its converter for fairseq has it: none are asked for
        specs.append(new(stack.num_layers, stack.num_heads, **norms, **options))
    spec = transformer_spec.TransformerSpec(*specs)
    verifier = replace(verifier, state={n: t.float() for n, t in verifier.state.items()})
    _fill_stack(spec.encoder, "encoder", config.encoder, config, verifier)
    _fill_stack(spec.decoder, "decoder", config.decoder, config, verifier)
    _set_linear(spec.encoder.embeddings[0], verifier.state, "encoder.embed_tokens")
    _set_linear(spec.decoder.embeddings, verifier.state, "decoder.embed_tokens")
    _set_linear(spec.decoder.projection, verifier.state, "decoder.output_projection")
    spec.register_source_vocabulary(_vocabulary(dictionaries.source))
    spec.register_target_vocabulary(_vocabulary(dictionaries.target))
    # fairseq starts a target with the end of a sentence, and ends a source with one.
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    return spec


def _expressible(verifier: Model) -> TransformerConfig:
    """Its configuration; raises UserError where CTranslate2 has no such model."""
    config: TransformerConfig = verifier.config
    has_one_width = config.input_dim == config.decoder.dim == config.output_dim
    asked = [
        (config.activation in _ACTIVATIONS, f"the activation {config.activation}"),
        (has_one_width, "a decoder whose embeddings have another width"),
    ]
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        what = f"a norm after the last {side} layer where layers end in one"
        asked.append((stack.normalize_before or not stack.final_norm, what))
    for condition, what in asked:
        verifier.only_if(condition, "CTranslate2", what)
    return config


def _fill_stack(
    spec: Any, side: str, stack: StackConfig, config: TransformerConfig, verifier: Model
) -> None:
    state = verifier.state
    spec.scale_embeddings = stack.dim**0.5 if config.scale_embedding else 1.0
    spec.position_encodings.encodings = positions_of(verifier, side, stack).numpy()
    if stack.final_norm:
        _set_norm(spec.layer_norm, state, f"{side}.layer_norm")
    if config.norm_embedding:
        _set_norm(spec.layernorm_embedding, state, f"{side}.layernorm_embedding")
    for number, layer in enumerate(spec.layer):
        name = f"{side}.layers.{number}"
        own, crossing = (
            [f"{name}.{block}.{part}_proj" for part in ("q", "k", "v", "out")]
            for block in ("self_attn", "encoder_attn")
        )
        _set_linear(layer.self_attention.linear[0], state, *own[:3])
        _set_linear(layer.self_attention.linear[1], state, own[3])
        _set_norm(layer.self_attention.layer_norm, state, f"{name}.self_attn_layer_norm")
        if side == "decoder":
            _set_linear(layer.attention.linear[0], state, crossing[0])
            _set_linear(layer.attention.linear[1], state, *crossing[1:3])
            _set_linear(layer.attention.linear[2], state, crossing[3])
            _set_norm(layer.attention.layer_norm, state, f"{name}.encoder_attn_layer_norm")
        _set_norm(layer.ffn.layer_norm, state, f"{name}.final_layer_norm")
        _set_linear(layer.ffn.linear_0, state, f"{name}.fc1")
        _set_linear(layer.ffn.linear_1, state, f"{name}.fc2")


def _set_linear(spec: Any, state: State, *names: str) -> None:
    """Several products that read the same input become one."""
    spec.weight = torch.cat([state[f"{name}.weight"] for name in names]).numpy()
    if f"{names[0]}.bias" in state:
        spec.bias = torch.cat([state[f"{name}.bias"] for name in names]).numpy()


def _set_norm(spec: Any, state: State, name: str) -> None:
    spec.gamma = state[f"{name}.weight"].numpy()
    spec.beta = state[f"{name}.bias"].numpy()


def _vocabulary(dictionary: Dictionary) -> list[str]:
    """In CTranslate2's words: padding is `<blank>`."""
    return ["<blank>" if s == "<pad>" else s for s in dictionary.symbols]
