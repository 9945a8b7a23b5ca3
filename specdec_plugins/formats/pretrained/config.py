"""Reads config.json and generation_config.json of a transformers folder, without transformers.

`families.py` lists the models that can be read, `switches.py` the fields that need no family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.errors import UserError, located, read_object, require
from specdec_plugins.formats.dictionaries import Dictionary, ours, start_of
from specdec_plugins.formats.pretrained import t5
from specdec_plugins.formats.pretrained.families import ACTIVATIONS, FAMILIES, REASONS, Family
from specdec_plugins.formats.pretrained.switches import HONOURED, check_known

CONFIG, GENERATION = "config.json", "generation_config.json"


_FINISHING: Mapping[object, str] = {True: "first", False: "likely", "never": "never"}


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
    model_type: str  # a name in FAMILIES
    fields: Mapping[str, Any]  # the family's, from config.json or by default
    generate: Mapping[str, Any]  # those of HONOURED that the files have
    notices: tuple[str, ...]  # messages for the user, a sentence each
    search_notice: str = ""  # one more where the model decodes greedily
    # What sources begin with, by source and target language.
    prefixes: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

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
        fields, family = self.fields, self.family
        if family.is_t5:
            activation = ACTIVATIONS[t5.activation_of(fields)]
            return t5.network(fields, num_source, num_target, activation, family.bias_each_layer)

        def stack(side: str, vocab_size: int) -> StackConfig:
            return StackConfig(
                num_layers=fields[f"{side}_layers"],
                dim=fields["d_model"],
                ffn_dim=fields[f"{side}_ffn_dim"],
                num_heads=fields[f"{side}_attention_heads"],
                vocab_size=vocab_size,
                max_positions=fields["max_position_embeddings"],
                positions="sinusoidal" if family.sinusoids else "learned",
                normalize_before=family.pre_norm,
                final_norm=family.pre_norm,
            )

        return TransformerConfig(
            encoder=stack("encoder", num_source),
            decoder=stack("decoder", num_target),
            pad=Dictionary.pad,
            activation=ACTIVATIONS[fields["activation_function"]],
            scale_embedding=fields["scale_embedding"],
            norm_embedding=family.norm_embedding,
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


def model_name(folder: Path) -> str:
    """What messages call a model: ORG/NAME in the cache of the hub, else the folder's name."""
    cached = re.fullmatch("models--(.+)--(.+)", folder.resolve().parent.parent.name)
    return "/".join(cached.groups()) if cached else folder.resolve().name


def is_pretrained(folder: str | Path) -> bool:
    """True if the folder has a config.json with a `model_type`."""
    with suppress(UserError):
        return "model_type" in _read(Path(folder) / CONFIG, "a model")
    return False


def read_config(folder: str | Path) -> PretrainedConfig:
    """The configuration of a folder. Raises UserError if it cannot be decoded as it specifies."""
    folder = Path(folder)
    path = folder / CONFIG
    given = _read(path, "a model that transformers has saved")
    model_type = given.get("model_type")
    _check_head(path, given.get("architectures") or ())
    if model_type not in FAMILIES:
        reason = REASONS.get(str(model_type))
        told = f" ({reason})" if reason else ""
        raise UserError(
            f"{path}: models of type {model_type!r} are not supported{told}; give one of "
            f"{_known()}."
        )
    family = FAMILIES[model_type]
    unknown = check_known(path, given, family)
    for alias, name in family.aliases.items():
        own = given.setdefault(name, given.get(alias, family.fields[name]))
        require(
            own == given.get(alias, own),
            f"{path}: {alias} is {given.get(alias)} and {name}, its synonym, is {own}; delete the "
            "wrong one.",
        )
    if family.scales_output:  # transformers 4 did so if the tables were tied, and 5 says it
        given.setdefault("scale_decoder_outputs", given.get("tie_word_embeddings") is not False)
    fields = {name: given.get(name, default) for name, default in family.fields.items()}
    _check_fields(path, fields, family)
    generate, notices, search = _generation(folder, given, family)
    notices = (*unknown, *notices)
    tasks = t5.prefixes(given) if family.is_t5 else {}
    config = PretrainedConfig(folder, model_type, fields, generate, notices, search, tasks)
    with located(path):
        config.network(config.vocab_size, config.decoder_vocab_size)
    return config


def _known() -> str:
    *most, last = [family.models for family in FAMILIES.values()]
    return f"{', '.join(most)} or {last}"


def _check_head(path: Path, architectures: Collection[str]) -> None:
    """Raises UserError if the model is not for conditional generation."""
    for name in architectures:
        require(
            "CausalLM" not in name and "LMHead" not in name,
            f"{path}: the model is a {name}, which is decoder-only, and this program decodes pairs "
            f"of encoder and decoder; use llama.cpp or vLLM for it, or give one of {_known()}.",
        )
        require(
            not any(head in name for head in ("Classification", "Answering")),
            f"{path}: the model is a {name}, which does not map a text to a text; give a model for "
            "conditional generation.",
        )


def _check_fields(path: Path, fields: Mapping[str, Any], family: Family) -> None:
    """Raises UserError for a value that no network can have."""
    activation = t5.activation_of(fields) if family.is_t5 else fields["activation_function"]
    require(
        activation in ACTIVATIONS,
        f"{path}: the activation {activation!r} is not supported; supported are: "
        f"{', '.join(ACTIVATIONS)}.",
    )
    for name, value in fields.items():
        default = family.fields[name]
        wanted = int if default is None else type(default)
        optional = default is None and value is None
        is_right = type(value) is wanted and (wanted is not int or value > 0)
        require(
            optional or is_right,
            f"{path}: {name} is {value!r}, which is not a valid {wanted.__name__}; restore the "
            "model's own file.",
        )


def _generation(
    folder: Path, config: Mapping[str, Any], family: Family
) -> tuple[dict[str, Any], tuple[str, ...], str]:
    """The honoured fields of generation_config.json or, if there is none, of config.json.

    Also the notices for the user, and the one about a search that is not done.
    """
    path, asked = folder / GENERATION, config
    if path.is_file():
        asked = _read(path, "a model's generation settings")
        notices = check_known(path, asked, family)
    else:
        path, notices = folder / CONFIG, ()
    found = {name: asked[name] for name in HONOURED if asked.get(name) is not None}
    special = ["pad_token_id", "eos_token_id"]
    if "bos_token_id" not in found:  # it opens the decoder's input by default
        special.append("decoder_start_token_id")
    for name in special:
        value = config.get(name, family.tokens.get(name))
        if value is not None:
            found.setdefault(name, value)
    for name in ("eos_token_id", "forced_eos_token_id"):
        if isinstance(found.get(name), list) and len(found[name]) == 1:
            found[name] = found[name][0]
    _check_generation(path, found)
    return found, notices, _search_notice(path, asked)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


# What a value must be that is no count and no id.
_RIGHT: Mapping[str, Callable[[Any], bool]] = {
    "bad_words_ids": lambda v: isinstance(v, list) and all(map(_are_ids, v)) and all(v),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), _are_ids),
    "length_penalty": lambda v: type(v) in (int, float),
    "repetition_penalty": lambda v: type(v) in (int, float) and v > 0,
    "early_stopping": lambda v: type(v) is bool or v == "never",
    "renormalize_logits": lambda v: type(v) is bool,
}


def _check_generation(path: Path, found: Mapping[str, Any]) -> None:
    """Raises UserError for a value of the wrong type or range."""
    for name, value in found.items():
        is_right = _RIGHT.get(name, lambda v: type(v) is int and v >= 0)
        require(
            is_right(value),
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
