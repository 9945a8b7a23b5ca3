"""Reads config.json and generation_config.json of a transformers folder, without transformers.

`ARCHITECTURES` lists what can be read. To support another one, add an entry, and list in `FIELDS`
or `HARMLESS` the fields that only its configuration has. No field is silently ignored: a value that
is known to change the output is refused (`NEUTRAL`), and a field in no list here is told of.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.errors import UserError, located, read_object, require
from specdec_plugins.formats.dictionaries import Dictionary, ours, start_of

CONFIG, GENERATION = "config.json", "generation_config.json"


@dataclass(frozen=True)
class Architecture:
    """What a `model_type` determines, whatever its config.json says."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they differ from `FIELDS`
    pre_norm: bool = False  # a norm before each block, and one after the last layer
    norm_embedding: bool = False
    sinusoids: bool = False  # fairseq's, computed; else a table of positions is read
    position_rows: int = 0  # rows of that table before position 0
    logits_bias: bool = True


_FAIRSEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_BART = {**_FAIRSEQ, "decoder_start_token_id": 2, "vocab_size": 50265}
_MARIAN_PAD = 58100  # also begins a target

ARCHITECTURES = {
    "marian": Architecture(
        {
            "vocab_size": _MARIAN_PAD + 1,
            "pad_token_id": _MARIAN_PAD,
            "eos_token_id": 0,
            "decoder_start_token_id": _MARIAN_PAD,
        }
    ),
    "m2m_100": Architecture(  # and NLLB-200
        {**_BART, "vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
        pre_norm=True,
        sinusoids=True,
        logits_bias=False,
    ),
    "bart": Architecture(_BART, norm_embedding=True, position_rows=2),
    "mbart": Architecture(
        {**_FAIRSEQ, "vocab_size": 50265}, pre_norm=True, norm_embedding=True, position_rows=2
    ),
}

# Why some common architectures are not supported.
_REASONS = {
    "t5": "its positions are relative",
    "nllb-moe": "its layers are mixtures of experts",
    "pegasus": "its positions and norms are different",
    "blenderbot": "it is made for dialogues",
}
_REASONS |= dict.fromkeys(("mt5", "umt5", "longt5", "switch_transformers"), _REASONS["t5"])

# Fields of config.json that decide what the network computes, and their defaults.
FIELDS: dict[str, Any] = {
    "vocab_size": None,
    "decoder_vocab_size": None,
    "d_model": 1024,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    **{
        f"{side}_{name}": default
        for side in ("encoder", "decoder")
        for name, default in (("layers", 12), ("ffn_dim", 4096), ("attention_heads", 16))
    },
}

_ALIASES = {  # other names of fields
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
}

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

# Generation fields that are honoured, and those that must have a value without effect.
HONOURED = (
    *("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "no_repeat_ngram_size"),
    *("min_length", "max_length", "min_new_tokens", "max_new_tokens"),
    *("suppress_tokens", "begin_suppress_tokens", "repetition_penalty"),
    *("length_penalty", "early_stopping", "renormalize_logits"),  # of a beam search
)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), (None, 1)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "penalty_alpha"), (None, 0)),
    "token_healing": (None, False),
    **dict.fromkeys(("sequence_bias", "watermarking_config"), (None,)),
    **dict.fromkeys(
        ("exponential_decay_length_penalty", "stop_strings", "max_time", "force_words_ids"), (None,)
    ),
    **dict.fromkeys(("constraints", "dola_layers"), (None,)),
    # of config.json
    **dict.fromkeys(("is_decoder", "add_cross_attention", "tie_encoder_decoder"), (None, False)),
    "is_encoder_decoder": (None, True),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    # of config.json: other networks, whose weights may have the same names and shapes
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters", "sliding_window"), (None,)),
    **dict.fromkeys(("attention_type", "attention_window", "attention_multiplier"), (None,)),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), (None,)),
    **dict.fromkeys(("logit_scale", "logits_scaling", "residual_multiplier"), (None, 1)),
    "position_embedding_type": (None, "absolute"),
    "layer_norm_eps": (None, 1e-5),
}
_FINISHING: Mapping[object, str] = {True: "first", False: "likely", "never": "never"}
# Other search methods, replaced by greedy decoding or a rule that samples.
_SEARCH = ("num_beams", "do_sample")

HARMLESS = {
    *_SEARCH,
    *("num_beam_groups", "diversity_penalty", "low_memory"),
    *("num_return_sequences", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff", "remove_invalid_values"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict", "return_dict_in_generate", "return_legacy_cache", "output_past"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
    *("target_lookbehind", "assistant_ensemble_weight", "speculation_type"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "prefill_chunk_size"),
    *("compile_config", "disable_compile", "continuous_batching_config"),
    *("model_type", "architectures", "transformers_version", "tokenizer_class", "dtype"),
    *("torch_dtype", "name_or_path", "auto_map", "attn_implementation", "init_std"),
    *("dropout", "attention_dropout", "activation_dropout", "classifier_dropout"),
    *("classif_dropout", "encoder_layerdrop", "decoder_layerdrop", "gradient_checkpointing"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("task_specific_params", "prefix", "torchscript", "use_bfloat16", "tf_legacy_loss"),
    *("chunk_size_feed_forward", "xla_device", "model_max_length"),
    *("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id"),
    *("do_blenderbot_90_layernorm", "force_bos_token_to_be_generated", "eos_token_ids"),
    *("student_encoder_layers", "student_decoder_layers", "replacing_rate"),
    # Determined by the architecture; transformers reads none of them either.
    *("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"),
    *("static_position_embeddings", "extra_pos_embeddings", "save_step"),
}


@dataclass(frozen=True)
class Generation:
    """The settings of the model's own greedy `generate`, in our ids and counts."""

    start: int  # the decoder's first input
    min_len: int  # tokens after the start token before eos is allowed, as `DecodeParams` counts
    max_len: int | None  # the most tokens; None = the file does not say
    constraints: Constraints
    length_penalty: float  # of a beam search
    finishing: str  # as in `BeamParams`


@dataclass(frozen=True)
class PretrainedConfig:
    """A model's configuration; token ids are those of its files."""

    folder: Path
    model_type: str  # a name in ARCHITECTURES
    fields: Mapping[str, Any]  # FIELDS, from config.json or by default
    generate: Mapping[str, Any]  # those of HONOURED that the files have
    notices: tuple[str, ...]  # messages for the user, a sentence each
    search_notice: str = ""  # one more where the model decodes greedily

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.model_type]

    @property
    def vocab_size(self) -> int:
        """Rows of the source embedding table."""
        return int(self.fields["vocab_size"])

    @property
    def decoder_vocab_size(self) -> int:
        """Rows of the target embedding table, which may be the source's."""
        return int(self.fields["decoder_vocab_size"] or self.vocab_size)

    @property
    def pad_token_id(self) -> int:
        return self._token("pad_token_id")

    @property
    def eos_token_id(self) -> int:
        return self._token("eos_token_id")

    @property
    def bos_token_id(self) -> int | None:
        return self.generate.get("bos_token_id")

    @property
    def decoder_start_token_id(self) -> int:
        name = "decoder_start_token_id"
        return self._token(name if self.generate.get(name) is not None else "bos_token_id")

    @property
    def forced_bos_token_id(self) -> int | None:
        """The forced first token of every target, if there is one."""
        return self.generate.get("forced_bos_token_id")

    def _token(self, name: str) -> int:
        value = self.generate.get(name)
        require(
            isinstance(value, int) and 0 <= value < self.decoder_vocab_size,
            f"{self.folder / CONFIG}: {name} is {value}, expected one id below the vocabulary's "
            f"size of {self.decoder_vocab_size}; restore the model's own file.",
        )
        assert isinstance(value, int)
        return value

    def network(self, num_source: int, num_target: int) -> TransformerConfig:
        """The network's configuration for tables of that size; the weights determine the rest."""
        fields, architecture = self.fields, self.architecture

        def stack(side: str, vocab_size: int) -> StackConfig:
            return StackConfig(
                num_layers=fields[f"{side}_layers"],
                dim=fields["d_model"],
                ffn_dim=fields[f"{side}_ffn_dim"],
                num_heads=fields[f"{side}_attention_heads"],
                vocab_size=vocab_size,
                max_positions=fields["max_position_embeddings"],
                positions="sinusoidal" if architecture.sinusoids else "learned",
                normalize_before=architecture.pre_norm,
                final_norm=architecture.pre_norm,
            )

        return TransformerConfig(
            encoder=stack("encoder", num_source),
            decoder=stack("decoder", num_target),
            pad=Dictionary.pad,
            activation=ACTIVATIONS[fields["activation_function"]],
            scale_embedding=fields["scale_embedding"],
            norm_embedding=architecture.norm_embedding,
        )

    def generation(self, target_order: Sequence[int], num_forced: int | None = None) -> Generation:
        """The generation settings; `target_order` maps our ids to the file's.

        num_forced: tokens that every target begins with, if not set by this configuration alone.
        """
        # `min_length` and `max_length` count the start token, the others do not.
        asked = self.generate
        least, most = asked.get("min_length") or 1, asked.get("max_length")
        fewest, longest = asked.get("min_new_tokens"), asked.get("max_new_tokens")
        if longest is None and most is not None:
            longest = most - 1
        if num_forced is None:
            num_forced = int(self.forced_bos_token_id is not None)
        return Generation(
            start=start_of(target_order, self.decoder_start_token_id),
            min_len=max(0, least - 1 if fewest is None else fewest),
            max_len=longest,
            constraints=self._constraints(ours(target_order), num_forced),
            length_penalty=float(asked.get("length_penalty", 1.0)),
            finishing=_FINISHING[asked.get("early_stopping", False)],
        )

    def _constraints(self, id_of: Mapping[int, int], num_forced: int) -> Constraints:
        """The constraints in our ids; `id_of` maps ids of the file to ours."""
        asked = self.generate
        last = asked.get("forced_eos_token_id")
        words = [w for w in asked.get("bad_words_ids") or () if w != [self.eos_token_id]]
        words += [[token] for token in asked.get("suppress_tokens") or ()]
        first = asked.get("begin_suppress_tokens") or ()
        for name, tokens in (
            ("bad_words_ids or suppress_tokens", [token for word in words for token in word]),
            ("begin_suppress_tokens", first),
        ):
            require(
                all(token in id_of for token in tokens),
                f"{self.folder}: {name} names tokens that the vocabulary does not have; restore "
                f"the model's own {GENERATION}.",
            )
        return Constraints(
            bad_words=tuple(tuple(id_of[token] for token in word) for word in words),
            no_repeat_ngram_size=asked.get("no_repeat_ngram_size") or 0,
            forced_last=None if last is None else id_of[self._token("forced_eos_token_id")],
            banned_first=tuple(id_of[token] for token in first),
            num_opening=1 + num_forced,
            repetition_penalty=float(asked.get("repetition_penalty") or 1.0),
            renormalizes=bool(asked.get("renormalize_logits")),
        )


def is_pretrained(folder: str | Path) -> bool:
    """True if the folder has a config.json with a `model_type`."""
    try:
        found = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "model_type" in found


def read_config(folder: str | Path) -> PretrainedConfig:
    """The configuration of a folder. Raises UserError if it cannot be decoded as it specifies."""
    folder = Path(folder)
    path = folder / CONFIG
    given = _read(path, "a model that transformers has saved")
    model_type = given.get("model_type")
    if model_type not in ARCHITECTURES:
        raise UserError(_unknown_architecture(path, model_type))
    _check_head(path, given.get("architectures") or ())
    unknown = _check_known(path, given)
    for alias, name in _ALIASES.items():
        require(
            given.setdefault(name, given.get(alias, FIELDS[name])) == given.get(alias, given[name]),
            f"{path}: {alias} is {given.get(alias)} and {name}, its synonym, is {given[name]}; "
            "delete the wrong one.",
        )
    defaults = {**FIELDS, **ARCHITECTURES[model_type].defaults}
    fields = {name: given.get(name, defaults[name]) for name in FIELDS}
    _check_fields(path, fields)
    generate, notices, search = _generation(folder, given, defaults)
    notices = (*unknown, *notices)
    config = PretrainedConfig(folder, model_type, fields, generate, notices, search)
    with located(path):
        config.network(config.vocab_size, config.decoder_vocab_size)
    return config


def _unknown_architecture(path: Path, model_type: object) -> str:
    reason = _REASONS.get(str(model_type))
    told = f" ({reason})" if reason else ""
    known = "MarianMT, M2M-100, NLLB-200, BART or mBART"
    return f"{path}: models of type {model_type!r} are not supported{told}; give one of {known}."


def _check_head(path: Path, architectures: Collection[str]) -> None:
    """Raises UserError if the model is not for conditional generation."""
    for name in architectures:
        require(
            not any(head in name for head in ("Classification", "Answering", "CausalLM")),
            f"{path}: the model is a {name}, which does not map a text to a text; give a model for "
            "conditional generation.",
        )


def _check_known(path: Path, given: Mapping[str, Any]) -> tuple[str, ...]:
    """A notice of the fields in no list here. Raises UserError for an unsupported value.

    Later versions of transformers write new fields, most of which change nothing.
    """
    for name, value in given.items():
        require(
            name not in NEUTRAL or value in NEUTRAL[name],
            f"{path}: {name} is {value!r}, which is not supported; delete it from the file to "
            "decode without it.",
        )
    known = {*FIELDS, *_ALIASES, *HONOURED, *NEUTRAL, *HARMLESS}
    unknown = [name for name in given if name not in known and not name.startswith("_")]
    if not unknown:
        return ()
    return (
        f"{path}: ignoring {', '.join(unknown)}, unknown here; if transformers gives other text, "
        "the reason may be there.",
    )


def _check_fields(path: Path, fields: Mapping[str, Any]) -> None:
    """Raises UserError for a value that no network can have."""
    activation = fields["activation_function"]
    require(
        activation in ACTIVATIONS,
        f"{path}: the activation {activation!r} is not supported; supported are: "
        f"{', '.join(ACTIVATIONS)}.",
    )
    for name, value in fields.items():
        wanted = type(FIELDS[name]) if FIELDS[name] is not None else int
        optional = name == "decoder_vocab_size" and value is None
        is_right = type(value) is wanted and (wanted is not int or value > 0)
        require(
            optional or is_right,
            f"{path}: {name} is {value!r}, which is not a valid {wanted.__name__}; restore the "
            "model's own file.",
        )


def _generation(
    folder: Path, config: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], str]:
    """The honoured fields of generation_config.json or, if there is none, of config.json.

    Also the notices for the user, and the one about a search that is not done.
    """
    path, asked = folder / GENERATION, config
    if path.is_file():
        asked = _read(path, "a model's generation settings")
        notices = _check_known(path, asked)
    else:
        path, notices = folder / CONFIG, ()
    found = {name: asked[name] for name in HONOURED if asked.get(name) is not None}
    special = ["pad_token_id", "eos_token_id"]
    if "bos_token_id" not in found:  # it opens the decoder's input by default
        special.append("decoder_start_token_id")
    for name in special:
        value = config.get(name, defaults.get(name))
        if value is not None:
            found.setdefault(name, value)
    for name in ("eos_token_id", "forced_eos_token_id"):
        if isinstance(found.get(name), list) and len(found[name]) == 1:
            found[name] = found[name][0]
    _check_generation(path, found)
    return found, notices, _search_notice(path, asked)


def _check_generation(path: Path, found: Mapping[str, Any]) -> None:
    """Raises UserError for a value of the wrong type or range."""
    for name, value in found.items():
        if name == "bad_words_ids":
            is_right = isinstance(value, list) and all(
                isinstance(word, list) and word and all(type(token) is int for token in word)
                for word in value
            )
        elif name in ("suppress_tokens", "begin_suppress_tokens"):
            is_right = isinstance(value, list) and all(type(token) is int for token in value)
        elif name == "length_penalty":
            is_right = type(value) in (int, float)
        elif name in ("early_stopping", "renormalize_logits"):
            is_right = type(value) is bool or (value, name) == ("never", "early_stopping")
        elif name == "repetition_penalty":
            is_right = type(value) in (int, float) and value > 0
        else:
            is_right = type(value) is int and value >= 0
        require(
            is_right,
            f"{path}: {name} is {value!r}, which is not supported; restore the model's own file, "
            "or delete the entry.",
        )


def _search_notice(path: Path, asked: Mapping[str, Any]) -> str:
    """A sentence if the configuration asks for a search other than greedy."""
    beams, samples = asked.get("num_beams") or 1, asked.get("do_sample")
    if beams == 1 and not samples:
        return ""
    what = f"a beam search (num_beams {beams})" if beams > 1 else "sampling (do_sample)"
    how = f"; --beam {beams} searches" if beams > 1 else ""
    return f"{path} asks for {what}; here the model decodes greedily, and 'exact' means that{how}."


def _read(path: Path, what: str) -> dict[str, Any]:
    return read_object(path, "the configuration", f"give a folder with {what}")
