"""Exports a verifier as a folder that transformers loads as a MarianMT model.

MarianMT is fairseq's post-norm Transformer under other names, except for positions: its sinusoids
have other frequencies and begin two rows earlier. Its position table is a weight, so the export
stores ours there, learned or not. `save_pretrained` omits the table: a folder that transformers has
saved again has lost it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.layers import sinusoids
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.errors import imported
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary
from specdec_plugins.formats.output import new_folder
from specdec_plugins.formats.pretrained.segmenters import CODES, TEXT

if TYPE_CHECKING:
    from transformers import MarianMTModel

_ACTIVATIONS = {
    "relu": "relu",
    "relu_squared": "relu2",
    "gelu": "gelu",
    "gelu_fast": "gelu_pytorch_tanh",
    "gelu_accurate": "gelu_pytorch_tanh",
    "tanh": "tanh",
    "swish": "swish",
    "linear": "linear",
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
    config = _expressible(verifier)
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


def _expressible(verifier: Model) -> TransformerConfig:
    """The verifier's configuration. Raises UserError if MarianMT cannot express the model."""
    config: TransformerConfig = verifier.config
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
    return config


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
        "activation_function": _ACTIVATIONS[config.activation],
        "scale_embedding": config.scale_embedding,
        "dropout": 0.0,
        "forced_eos_token_id": None,
    }


def _weights(verifier: Model, config: TransformerConfig, num_positions: int) -> dict[str, Tensor]:
    """The weights under MarianMT's names, which are fairseq's with a prefix."""
    named: dict[str, Tensor] = {}
    state = dict(verifier.state)
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
