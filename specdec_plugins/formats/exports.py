"""Exports of a verifier: for transformers, as a MarianMT model, and for CTranslate2.

MarianMT is fairseq's post-norm Transformer under other names, except for positions: its sinusoids
have other frequencies and begin two rows earlier. Its position table is a weight, so the export
stores ours there, learned or not. `save_pretrained` omits the table: a folder that transformers has
saved again has lost it.

CTranslate2's specification is filled by its converter for fairseq, which reads fairseq modules.
Here it is given weights, so fairseq is not needed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.layers import sinusoids
from specdec_plugins.decoding.networks.reading import all_read
from specdec_plugins.decoding.networks.trained import Model, State
from specdec_plugins.errors import imported, require
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary
from specdec_plugins.formats.output import new_folder
from specdec_plugins.formats.pretrained.segmenters import CODES, TEXT

if TYPE_CHECKING:
    from transformers import MarianMTModel

# fairseq's names: those of transformers, and of CTranslate2, which has not all.
_ACTIVATIONS = {
    "relu": ("relu", "RELU"),
    "relu_squared": ("relu2", None),
    "gelu": ("gelu", "GELU"),
    "gelu_fast": ("gelu_pytorch_tanh", "GELUTanh"),
    "gelu_accurate": ("gelu_pytorch_tanh", "GELUTanh"),
    "tanh": ("tanh", "Tanh"),
    "swish": ("swish", "SWISH"),
    "linear": ("linear", None),
}
_SPECIAL = {
    "eos_token_id": Dictionary.eos,
    "bos_token_id": Dictionary.bos,
    "pad_token_id": Dictionary.pad,
}
_MAX_NEW_TOKENS = 200  # as inference.py's --max-len-b


def export_marian(
    verifier: Model,
    dictionaries: Dictionaries,
    folder: str | Path,
    force: bool = False,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """Write the folder; float32, token ids as in our dictionaries, greedy search by default.

    `AutoTokenizer` maps BPE text there, as Marian's own tokenizer reads sentencepiece only. If the
    target has other symbols, `target_tokenizer.json` has them. text: arguments of `TextPipeline`,
    by which this project reads raw text when it loads the folder. Raises UserError if transformers
    is not installed, the folder is taken, or MarianMT cannot express the model.
    """
    transformers = import_transformers()
    config: TransformerConfig = verifier.config
    _check_marian(verifier, config)
    special = {**_SPECIAL, "decoder_start_token_id": dictionaries.target.start}
    with new_folder(folder, "config.json", force) as made:
        settings = transformers.MarianConfig(**_marian_settings(config), **special)
        settings.architectures = ["MarianMTModel"]
        settings.save_pretrained(made)
        generation = transformers.GenerationConfig(
            **special, num_beams=1, do_sample=False, max_new_tokens=_MAX_NEW_TOKENS
        )
        generation.save_pretrained(made)
        weights = _weights(verifier, config, settings.max_position_embeddings)
        save_file(weights, made / "model.safetensors", {"format": "pt"})
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=_tokenizer(dictionaries.source),
            **{"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
        ).save_pretrained(made)
        if dictionaries.source != dictionaries.target:
            _tokenizer(dictionaries.target).save(str(made / "target_tokenizer.json"))
        if text is not None:
            _write_text(made, dictionaries, dict(text))
        for path in made.iterdir():
            path.chmod(0o644)
    return Path(folder)


def _write_text(made: Path, dictionaries: Dictionaries, text: dict[str, Any]) -> None:
    """Write the text settings, and copy the BPE codes, whose path is `bpe_codes`."""
    if text.get("bpe_codes") is not None:
        shutil.copyfile(text["bpe_codes"], made / CODES)
        text["bpe_codes"] = CODES
    languages = {"source_lang": dictionaries.source_lang, "target_lang": dictionaries.target_lang}
    (made / TEXT).write_text(json.dumps(languages | text, indent=1) + "\n", encoding="utf-8")


def load_marian(folder: str | Path, dtype: torch.dtype = torch.float32) -> MarianMTModel:
    """The exported model in eval mode. Raises UserError where transformers is not installed."""
    loaded: Any = import_transformers().MarianMTModel.from_pretrained(str(folder), dtype=dtype)
    return loaded.eval()


def positions_of(verifier: Model, side: str, stack: StackConfig) -> Tensor:
    """The table of position embeddings, from the first position: [max_positions, D] float32."""
    if stack.positions == "none":
        return torch.zeros(stack.max_positions, stack.dim)
    first = Dictionary.pad + 1
    if stack.positions == "learned":
        table = verifier.state[f"{side}.embed_positions.weight"]
        return table[first : first + stack.max_positions].float()
    return sinusoids(stack.max_positions + first, stack.dim)[first:]


def import_transformers() -> Any:
    transformers = imported("transformers", "convert")
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        # fairseq installs one that may not fit today's torch, and transformers would load it too.
        checks: Any = transformers.utils
        checks.is_torchaudio_available = lambda: False
    return transformers


def _check_marian(verifier: Model, config: TransformerConfig) -> None:
    """Raises UserError if MarianMT cannot express the model."""
    stacks = (config.encoder, config.decoder)
    widths = {*(stack.dim for stack in stacks), config.input_dim, config.output_dim}
    for condition, what in (
        (not any(s.switches for s in stacks), "the layers of T5"),
        (not any(s.normalize_before for s in stacks), "norms before each layer (pre-norm)"),
        (not any(s.final_norm for s in stacks), "a norm after the last layer"),
        (not config.norm_embedding, "a norm of the embeddings"),
        (len(widths) == 1, "encoder, decoder and embeddings of different widths"),
    ):
        verifier.only_if(condition, "MarianMT", what)


def _marian_settings(config: TransformerConfig) -> dict[str, Any]:
    encoder, decoder = config.encoder, config.decoder
    return {
        "vocab_size": encoder.vocab_size,
        "decoder_vocab_size": decoder.vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings and config.tie_output,
        "tie_word_embeddings": config.tie_output,
        "max_position_embeddings": min(encoder.max_positions, decoder.max_positions),
        "d_model": decoder.dim,
        "encoder_layers": encoder.num_layers,
        "encoder_ffn_dim": encoder.ffn_dim,
        "encoder_attention_heads": encoder.num_heads,
        "decoder_layers": decoder.num_layers,
        "decoder_ffn_dim": decoder.ffn_dim,
        "decoder_attention_heads": decoder.num_heads,
        "activation_function": _ACTIVATIONS[config.activation][0],
        "scale_embedding": config.scale_embedding,
        "dropout": 0.0,
        "forced_eos_token_id": None,
    }


def _weights(verifier: Model, config: TransformerConfig, num_positions: int) -> dict[str, Tensor]:
    """The weights under MarianMT's names, which are fairseq's with a prefix."""
    named: dict[str, Tensor] = {}
    state = all_read(verifier.state)
    bias = state.pop("decoder.output_projection.bias", torch.zeros(config.decoder.vocab_size))
    for name, tensor in state.items():
        name = f"model.{name}" if "output_projection" not in name else "lm_head.weight"
        named[name] = tensor.float()
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        table = positions_of(verifier, side, stack)[:num_positions]
        named[f"model.{side}.embed_positions.weight"] = table
    named["final_logits_bias"] = bias.float()[None]
    if config.share_embeddings and config.tie_output:
        named["model.shared.weight"] = named.pop("model.encoder.embed_tokens.weight")
        del named["model.decoder.embed_tokens.weight"], named["lm_head.weight"]
    # safetensors refuses tensors that share memory.
    return {name: tensor.clone().contiguous() for name, tensor in named.items()}


def _tokenizer(dictionary: Dictionary) -> Any:
    """A tokenizer of space-separated symbols that appends eos."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    ids = {symbol: index for index, symbol in enumerate(dictionary.symbols)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", dictionary.eos)]
    )
    return tokenizer


# --- CTranslate2 ------------------------------------------------------------------------------


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
    choices = imported("ctranslate2.specs", "convert").model_spec.ACCEPTED_MODEL_TYPES
    require(
        quantization is None or quantization in choices,
        f"CTranslate2 does not support {quantization!r}; choose one of: {', '.join(choices)}.",
    )
    spec = _specification(verifier, dictionaries)
    spec.validate()
    spec.optimize(quantization)
    with new_folder(folder, "model.bin", force) as made:
        spec.save(str(made))
    return Path(folder)


def _specification(verifier: Model, dictionaries: Dictionaries) -> Any:
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs import common_spec, transformer_spec

    config: TransformerConfig = verifier.config
    _check_ctranslate2(verifier, config)
    options: dict[str, Any] = {
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation][1]],
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


def _check_ctranslate2(verifier: Model, config: TransformerConfig) -> None:
    """Raises UserError if CTranslate2 cannot express the model."""
    has_one_width = config.input_dim == config.decoder.dim == config.output_dim
    asked = [
        (_ACTIVATIONS[config.activation][1] is not None, f"the activation {config.activation}"),
        (has_one_width, "a decoder whose embeddings have a different width"),
    ]
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        asked.append((not stack.switches, "the layers of T5"))
        what = f"a norm after the last {side} layer of a post-norm stack"
        asked.append((stack.normalize_before or not stack.final_norm, what))
    for condition, what in asked:
        verifier.only_if(condition, "CTranslate2", what)


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
