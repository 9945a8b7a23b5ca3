"""The families of models that can be read, one row each, and why some others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """What a `model_type` determines, and what its config.json has to say."""

    models: str  # what messages call its members
    # Fields of config.json that decide what the network computes, with the defaults of the family.
    # A value has the type of the default; None stands for no number.
    fields: Mapping[str, Any]
    tokens: Mapping[str, int]  # special tokens by default
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of fields
    pre_norm: bool = False  # a norm before each block, and one after the last layer
    norm_embedding: bool = False
    sinusoids: bool = False  # fairseq's, computed; else a table of positions is read
    position_rows: int = 0  # rows of that table before position 0
    is_t5: bool = False  # `t5.py` reads it
    bias_each_layer: bool = False  # every layer has its own table of relative positions
    scales_output: bool = False  # last states are scaled where tables are tied; see `t5.py`


_STACKS = {
    f"{side}_{name}": default
    for side in ("encoder", "decoder")
    for name, default in (("layers", 12), ("ffn_dim", 4096), ("attention_heads", 16))
}
_BART_FIELDS = {
    "vocab_size": 50265,
    "decoder_vocab_size": None,
    "d_model": 1024,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    **_STACKS,
}
_BART_ALIASES = {
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
}
_T5_FIELDS = {
    **{"vocab_size": 32128, "decoder_vocab_size": None, "d_model": 512, "d_kv": 64, "d_ff": 2048},
    **{"num_layers": 6, "num_decoder_layers": None, "num_heads": 8},
    **{"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    **{"layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu"},
    **{"tie_word_embeddings": True, "scale_decoder_outputs": False},
}
_MT5_FIELDS = {
    **_T5_FIELDS,
    **{"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6},
    "feed_forward_proj": "gated-gelu",
}
_T5_ALIASES = {
    **{"hidden_size": "d_model", "num_attention_heads": "num_heads", "head_dim": "d_kv"},
    "num_hidden_layers": "num_layers",
}
_T5_TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
_FAIRSEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_BART_TOKENS = {**_FAIRSEQ, "decoder_start_token_id": 2}
_MARIAN_PAD = 58100  # also begins a target

FAMILIES = {
    "marian": Family(
        "MarianMT",
        {**_BART_FIELDS, "vocab_size": _MARIAN_PAD + 1},
        {"pad_token_id": _MARIAN_PAD, "eos_token_id": 0, "decoder_start_token_id": _MARIAN_PAD},
        _BART_ALIASES,
    ),
    "m2m_100": Family(
        "M2M-100, NLLB-200",
        {
            **_BART_FIELDS,
            "vocab_size": 128112,
            "activation_function": "relu",
            "scale_embedding": True,
        },
        _BART_TOKENS,
        _BART_ALIASES,
        pre_norm=True,
        sinusoids=True,
    ),
    "bart": Family(
        "BART", _BART_FIELDS, _BART_TOKENS, _BART_ALIASES, norm_embedding=True, position_rows=2
    ),
    "mbart": Family(
        "mBART",
        _BART_FIELDS,
        _FAIRSEQ,
        _BART_ALIASES,
        pre_norm=True,
        norm_embedding=True,
        position_rows=2,
    ),
    "t5": Family(
        "T5, MADLAD-400, ByT5", _T5_FIELDS, _T5_TOKENS, _T5_ALIASES, is_t5=True, scales_output=True
    ),
    "mt5": Family("mT5, Aya-101", _MT5_FIELDS, _T5_TOKENS, _T5_ALIASES, is_t5=True),
    "umt5": Family(
        "UMT5",
        _MT5_FIELDS,
        _T5_TOKENS,
        _T5_ALIASES,
        is_t5=True,
        bias_each_layer=True,
        scales_output=True,
    ),
}

# Why some common types are not supported.
REASONS = {
    "nllb-moe": "its layers are mixtures of experts",
    "IndicTrans": "its tokenizer is code of its own, which reads one script for many languages",
    "pegasus": "its positions and norms are different",
    "blenderbot": "it is made for dialogues",
}
REASONS |= {"longt5": "its attention is local", "switch_transformers": REASONS["nllb-moe"]}

ACTIVATIONS = {  # transformers' names to ours
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "gelu_fast": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "tanh": "tanh",
    "linear": "linear",
    "swish": "swish",
    "silu": "swish",
}
