"""Exports a verifier to CTranslate2, through its specification and its converter for fairseq.

That converter reads fairseq modules. Here it is given weights, so fairseq is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdec_plugins.decoding.networks import TransformerConfig
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
    translator can still quantise when it loads them. The translator adds eos to the source itself.
    Raises UserError if ctranslate2 is not installed, the folder is taken, or CTranslate2 cannot
    express the model.
    """
    specs = imported("ctranslate2.specs", "convert")
    converter = imported("ctranslate2.converters.converter", "convert")
    choices = specs.model_spec.ACCEPTED_MODEL_TYPES
    require(
        quantization is None or quantization in choices,
        f"CTranslate2 does not support {quantization!r}; choose one of: {', '.join(choices)}.",
    )
    spec = _specification(verifier, dictionaries)

    class FromNetwork(converter.Converter):  # type: ignore[name-defined]
        def _load(self) -> Any:
            return spec

    with new_folder(folder, "model.bin", force) as made:
        FromNetwork().convert(str(made), quantization=quantization, force=True)
    return Path(folder)


def _specification(verifier: Model, dictionaries: Dictionaries) -> Any:
    from ctranslate2.converters import fairseq as converter
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
            norms["alignment_heads"] = 0  # as in its converter for fairseq
        specs.append(new(stack.num_layers, stack.num_heads, **norms, **options))
    spec = transformer_spec.TransformerSpec(*specs)
    state = {name: tensor.float() for name, tensor in verifier.state.items()}
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        module: Any = _Weights(state, side)
        module.embed_scale = stack.dim**0.5 if config.scale_embedding else 1.0
        table = positions_of(verifier, side, stack)
        module.embed_positions = SimpleNamespace(weights=table, padding_idx=-1)
        getattr(converter, f"set_transformer_{side}")(getattr(spec, side), module)
    spec.register_source_vocabulary(_vocabulary(dictionaries.source))
    spec.register_target_vocabulary(_vocabulary(dictionaries.target))
    # A source ends with eos, and fairseq's targets start with it.
    spec.config.decoder_start_token = dictionaries.target.symbols[dictionaries.target.start]
    spec.config.add_source_eos = True
    return spec


def _expressible(verifier: Model) -> TransformerConfig:
    """The verifier's configuration. Raises UserError if CTranslate2 cannot express the model."""
    config: TransformerConfig = verifier.config
    has_one_width = config.input_dim == config.decoder.dim == config.output_dim
    asked = [
        (config.activation in _ACTIVATIONS, f"the activation {config.activation}"),
        (has_one_width, "a decoder whose embeddings have a different width"),
    ]
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        asked.append((not stack.switches, "the layers of T5"))
        what = f"a norm after the last {side} layer of a post-norm stack"
        asked.append((stack.normalize_before or not stack.final_norm, what))
    for condition, what in asked:
        verifier.only_if(condition, "CTranslate2", what)
    return config


class _Weights:
    """Weights under one name, which CTranslate2's converter reads like a fairseq module.

    A missing part is None; the parts of a list are numbered.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    def __getattr__(self, part: str) -> Any:
        name = f"{self._name}.{part}"
        inside = any(other.startswith(f"{name}.") for other in self._state)
        return _Weights(self._state, name) if inside else self._state.get(name)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(number)) for number in count())


def _vocabulary(dictionary: Dictionary) -> list[str]:
    """The symbols as CTranslate2 names them: padding is `<blank>`."""
    return ["<blank>" if s == "<pad>" else s for s in dictionary.symbols]
