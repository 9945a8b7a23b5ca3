"""Small random models of transformers, with the configurations of models that people have.

`CONFIGS` are config.json and generation_config.json of these models, whole but for labels and for
what is cut: depth, width, vocabulary, positions and lengths. Token ids count back from the end of
the vocabulary where they do so in the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_plugins.decoding.contract import SpecialTokens
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.formats.dictionaries import Dictionary, order_of, ours
from specdec_plugins.formats.exports import import_transformers
from specdec_plugins.formats.pretrained.config import Generation, PretrainedConfig, read_config
from specdec_plugins.formats.pretrained.weights import expected_shapes, read_model

VOCAB, POSITIONS = 57, 48
_MARIAN_PAD = VOCAB - 1
_CUT = {
    **{f"{side}_layers": layers for side, layers in (("encoder", 1), ("decoder", 2))},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{"encoder_ffn_dim": 20, "decoder_ffn_dim": 24},
    **{"d_model": 16, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS},
}
_DROPOUT = {
    **{"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0},
    **{"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "init_std": 0.02},
    **{"use_cache": True, "is_encoder_decoder": True, "num_hidden_layers": 1},
}
_T5 = {
    **{"d_model": 16, "d_kv": 12, "d_ff": 20, "num_heads": 3, "vocab_size": VOCAB},
    **{"num_layers": 2, "num_decoder_layers": 2, "dropout_rate": 0.1, "initializer_factor": 1.0},
    **{"layer_norm_epsilon": 1e-06, "use_cache": True, "relative_attention_num_buckets": 8},
    **{"relative_attention_max_distance": 12},
}
_FAIRSEQ = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_OLD = {"classif_dropout": 0.0, "classifier_dropout": 0.0, "gradient_checkpointing": False}

CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "opus-mt-en-de": (
        {
            **{**_CUT, **_DROPOUT, "model_type": "marian", "architectures": ["MarianMTModel"]},
            **{"activation_function": "swish", "scale_embedding": True},
            **{"add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0},
            **{"normalize_before": False, "normalize_embedding": False},
            **{"static_position_embeddings": True, "extra_pos_embeddings": VOCAB},
            **{"bad_words_ids": [[_MARIAN_PAD]], "num_beams": 6, "max_length": 30},
            **{"bos_token_id": 0, "eos_token_id": 0, "forced_eos_token_id": 0},
            **{"pad_token_id": _MARIAN_PAD, "decoder_start_token_id": _MARIAN_PAD},
            **{"decoder_vocab_size": VOCAB, "share_encoder_decoder_embeddings": True},
        },
        {
            **{"_from_model_config": True, "bad_words_ids": [[_MARIAN_PAD]], "bos_token_id": 0},
            **{"decoder_start_token_id": _MARIAN_PAD, "eos_token_id": 0, "forced_eos_token_id": 0},
            **{"max_length": 30, "num_beams": 4, "pad_token_id": _MARIAN_PAD},
            **{"renormalize_logits": True, "transformers_version": "4.31.0.dev0"},
        },
    ),
    "nllb-200-distilled-600M": (
        {
            **{**_CUT, **_DROPOUT, **_FAIRSEQ, "model_type": "m2m_100"},
            **{"architectures": ["M2M100ForConditionalGeneration"], "torch_dtype": "float32"},
            **{"activation_function": "relu", "scale_embedding": True, "max_length": 26},
            **{"tokenizer_class": "NllbTokenizer", "attention_dropout": 0.1},
        },
        {"_from_model_config": True, **_FAIRSEQ, "max_length": 26, "transformers_version": "4.27"},
    ),
    "m2m100_418M": (
        {
            **{**_CUT, **_DROPOUT, **_FAIRSEQ, "model_type": "m2m_100", "encoder_layerdrop": 0.05},
            **{"architectures": ["M2M100ForConditionalGeneration"], "decoder_layerdrop": 0.05},
            **{"activation_function": "relu", "scale_embedding": True, "max_length": 26},
            **{"early_stopping": True, "num_beams": 5, "gradient_checkpointing": False},
        },
        {
            **{"_from_model_config": True, **_FAIRSEQ, "max_length": 26, "num_beams": 5},
            **{"early_stopping": True, "transformers_version": "4.27.0.dev0"},
        },
    ),
    "bart-large-cnn": (
        {
            **{**_CUT, **_DROPOUT, **_FAIRSEQ, **_OLD, "model_type": "bart", "_num_labels": 3},
            **{"architectures": ["BartForConditionalGeneration"], "activation_function": "gelu"},
            **{"add_final_layer_norm": False, "normalize_before": False, "output_past": True},
            **{"scale_embedding": False, "prefix": " ", "task_specific_params": {"a": {"b": 1}}},
            **{"force_bos_token_to_be_generated": True, "forced_bos_token_id": 0},
            **{"forced_eos_token_id": 2, "early_stopping": True, "length_penalty": 2.0},
            **{"max_length": 32, "min_length": 12, "no_repeat_ngram_size": 3, "num_beams": 4},
        },
        {
            **{"_from_model_config": True, **_FAIRSEQ, "early_stopping": True},
            **{"forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2.0},
            **{"max_length": 32, "min_length": 12, "no_repeat_ngram_size": 3, "num_beams": 4},
        },
    ),
    "mbart-large-50": (
        {
            **{**_CUT, **_DROPOUT, **_FAIRSEQ, **_OLD, "model_type": "mbart", "_num_labels": 3},
            **{"architectures": ["MBartForConditionalGeneration"], "activation_function": "relu"},
            **{"add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True},
            **{"normalize_embedding": True, "static_position_embeddings": False},
            **{"output_past": True, "scale_embedding": True, "tokenizer_class": "MBart50Tokenizer"},
            **{"early_stopping": True, "forced_eos_token_id": 2, "max_length": 28, "num_beams": 5},
        },
        None,  # as before there was such a file
    ),
    "t5-small": (
        {
            **{**_T5, "model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            **{"feed_forward_proj": "relu", "is_encoder_decoder": True, "output_past": True},
            **{"n_positions": 512, "task_specific_params": {"translation_en_to_de": {"a": 1}}},
            **{"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
        },
        {
            **{"_from_model_config": True, "decoder_start_token_id": 0, "eos_token_id": 1},
            **{"pad_token_id": 0, "max_length": 27, "transformers_version": "4.27.0.dev0"},
        },
    ),
    "madlad400-3b-mt": (
        {
            **{**_T5, "model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            **{"feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new"},
            **{"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
            **{"tie_word_embeddings": False, "is_encoder_decoder": True, "n_positions": 512},
        },
        {
            **{"_from_model_config": True, "decoder_start_token_id": 0, "eos_token_id": 2},
            **{"pad_token_id": 1, "max_length": 25, "transformers_version": "4.23.1"},
        },
    ),
    "umt5-small": (
        {
            **{**_T5, "model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]},
            **{"feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new"},
            **{"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
            **{"tokenizer_class": "T5Tokenizer", "scalable_attention": True, "max_length": 24},
        },
        None,
    ),
}
_DEEPER = {  # as 24 layers are to 12, in M2M-100 1.2B and NLLB-200 1.3B, too
    **{f"{side}_layers": 3 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 40 for side in ("encoder", "decoder")},
    "num_hidden_layers": 3,
}
_UNTIED = {"tie_word_embeddings": False}
# What else the architectures can be told, each beside the model that it is a variant of.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "two vocabularies": (
        "opus-mt-en-de",
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB + 4},
    ),
    "untied": ("opus-mt-en-de", {"share_encoder_decoder_embeddings": False, **_UNTIED}),
    "unscaled": ("opus-mt-en-de", {"scale_embedding": False, "activation_function": "relu"}),
    "opus-mt-tc-big": (
        "opus-mt-en-de",
        {"activation_function": "relu", "eos_token_id": 51, "forced_eos_token_id": 51},
    ),
    "odd width": (
        "opus-mt-en-de",
        {"d_model": 15, **{f"{s}_attention_heads": 3 for s in ("encoder", "decoder")}},
    ),
    "small100": (
        "m2m100_418M",
        {
            **{"encoder_layers": 3, "decoder_layers": 1, "num_hidden_layers": 3},
            **{"attention_dropout": 0.1, "tokenizer_class": "SMALL100Tokenizer"},
        },
    ),
    "nllb-200-3.3B": (
        "nllb-200-distilled-600M",
        {**_DEEPER, "d_model": 32, "encoder_layerdrop": 0, "decoder_layerdrop": 0},
    ),
    "untied m2m": ("m2m100_418M", {**_UNTIED, "scale_embedding": False}),
    "tanh gelu": ("bart-large-cnn", {"activation_function": "gelu_new", "scale_embedding": True}),
    "untied mbart": ("mbart-large-50", {**_UNTIED, "activation_function": "gelu"}),
    "mt5": (
        "madlad400-3b-mt",
        {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]},
    ),
}
CASES = {name: (name, dict[str, Any]()) for name in CONFIGS} | VARIANTS
LARGER = ("small100", "nllb-200-3.3B")  # variants that many people have
_LANGUAGES = {"nllb-200-distilled-600M": 50, "m2m100_418M": 51, "mbart-large-50": 52}


def language_of(case: str) -> int | None:
    """The id that targets begin with; SMaLL-100's is in the source."""
    return None if case == "small100" else _LANGUAGES.get(CASES[case][0])


@dataclass(frozen=True)
class Pair:
    """transformers' model of a folder, and ours."""

    theirs: Any  # in double precision
    config: PretrainedConfig
    source_order: list[int]
    target_order: list[int]
    network: Transformer  # in double precision
    language: int | None  # the file's id of the first target token, where a user asks for one

    @property
    def special(self) -> SpecialTokens:
        return SpecialTokens(self.generation.start, Dictionary.pad, Dictionary.eos, Dictionary.unk)

    @property
    def generation(self) -> Generation:
        first = (self.config.forced_bos_token_id, self.language)
        return self.config.generation(self.target_order, int(first != (None, None)))

    def our_ids(self, order: Sequence[int], ids: Tensor) -> Tensor:
        """Ids of the file's, of any shape, in ours."""
        table = torch.tensor([ours(order).get(i, 0) for i in range(max(order) + 1)])
        return table[ids]

    def sources(self, count: int = 7) -> Tensor:
        """Ragged rows that end in eos, padded on the right, in the file's ids: [B, S] int64."""
        generator = torch.Generator().manual_seed(count)
        rows = torch.randint(4, 50, (count, 11), generator=generator)
        for row, length in enumerate(torch.randint(2, 12, (count,), generator=generator).tolist()):
            rows[row, length - 1] = self.config.eos_token_id
            rows[row, length:] = self.config.pad_token_id
        return rows

    def generate(self, source: Tensor, **options: Any) -> list[list[int]]:
        """Greedy texts of transformers in the file's ids, the start token left out."""
        found = self.theirs.generate(
            input_ids=source,
            attention_mask=source != self.config.pad_token_id,
            **({} if self.language is None else {"forced_bos_token_id": self.language}),
            **{"num_beams": 1, **options},
        )
        texts = [row[1:] for row in found.tolist()]
        eos = self.config.eos_token_id
        return [row[: row.index(eos) + 1] if eos in row else row for row in texts]

    def requests(self, source: Tensor, block_size: int) -> list[Request]:
        """What these sources ask of our engine."""
        generation, first = self.generation, self.language
        first = self.config.forced_bos_token_id if first is None else first
        forced = [] if first is None else [ours(self.target_order)[first]]
        assert generation.max_len is not None
        params = DecodeParams(block_size, generation.max_len, generation.min_len)
        rows = self.our_ids(self.source_order, source).tolist()
        kept = [[token for token in row if token != Dictionary.pad] for row in rows]
        return [Request(str(i), row, params, forced) for i, row in enumerate(kept)]

    def their_ids(self, text: Sequence[int]) -> list[int]:
        return [self.target_order[token] for token in text]


def save(
    folder: Path,
    name: str,
    seed: int = 0,
    asked: dict[str, Any] | None = None,
    ends: float = 0.0,
    **changes: Any,
) -> None:
    """Write a random model of that configuration, and the two files as they are.

    asked: settings of generation in place of the model's. ends: the larger, the sooner texts end.
    """
    transformers = import_transformers()
    config, generation = CONFIGS[name]
    config = {**config, **changes}
    if generation is None:
        config |= asked or {}
    torch.manual_seed(seed)
    kind = transformers.AutoConfig.for_model(**config)
    model = getattr(transformers, config["architectures"][0])(kind).eval()
    _randomise(model, seed, ends)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "generation_config.json"
    path.unlink()
    if generation is not None:
        moved = {name: value for name, value in changes.items() if name in generation}
        path.write_text(json.dumps({**generation, **moved, **(asked or {})}))


def _randomise(model: Any, seed: int, ends: float) -> None:
    """Weights as of a trained model: every position says something else, and a text may end."""
    generator = torch.Generator().manual_seed(seed)
    is_marian = model.config.model_type == "marian"
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in tensors.items():
        if "embed_positions" in name and (is_marian or not name.endswith("weight")):
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        large = "embed" in name or "shared" in name or "lm_head" in name
        scale = 0.5 if large else 0.3 if tensor.dim() > 1 else 0.1
        tensor.data = noise * scale + ("norm" in name and name.endswith("weight"))
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    head = model.get_output_embeddings().weight.data
    head[pad] = 0.0
    head[eos] *= 1.5 + ends
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[:, eos] += ends


def save_large(folder: Path, changes: dict[str, Any], suffix: str) -> int:
    """Write an untied M2M-100 in shards that take turns, in bfloat16; its number of weights.

    Its weights are random, but the same ones over and over, which takes less time.
    """
    config, _ = CONFIGS["m2m100_418M"]
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    shapes = expected_shapes(read_config(folder))
    most = max(math.prod(shape) for shape in shapes.values())
    noise = torch.randn(most, generator=torch.Generator().manual_seed(0)).bfloat16() / 50
    shards: list[dict[str, Tensor]] = [{}, {}]
    for number, (name, shape) in enumerate(shapes.items()):
        shards[number % 2][name] = noise[: math.prod(shape)].reshape(shape).clone()
    files = [f"part-{number}.{suffix}" for number in range(2)]
    for shard, file in zip(shards, files, strict=True):
        (save_file if suffix == "safetensors" else torch.save)(shard, folder / file)
    index = {name: file for shard, file in zip(shards, files, strict=True) for name in shard}
    name = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[suffix]
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": index}))
    return sum(map(math.prod, shapes.values()))


def load(folder: Path, language: int | None = None) -> Pair:
    """Both readings of a folder."""
    transformers = import_transformers()
    config = read_config(folder)
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    theirs = getattr(transformers, kind).from_pretrained(str(folder), dtype=torch.float64)
    unk = {"marian": 1, "t5": 2 - config.pad_token_id * 2, "mt5": 0, "umt5": 2}
    orders = [
        order_of(
            size,
            config.pad_token_id,
            config.eos_token_id,
            unk.get(config.model_type, 3),
            config.decoder_start_token_id,
        )
        for size in (config.vocab_size, config.decoder_vocab_size)
    ]
    for parent, name, norm in [(m, *c) for m in theirs.modules() for c in m.named_children()]:
        if hasattr(norm, "variance_epsilon"):  # T5's, which computes in single precision
            own = torch.nn.RMSNorm(norm.weight.shape, norm.variance_epsilon)
            own.weight = norm.weight
            setattr(parent, name, own)
    network = read_model(config, *orders).network(torch.float64, torch.device("cpu"))
    assert isinstance(network, Transformer)
    return Pair(theirs.eval(), config, *orders, network, language)
