"""Build a translator's parts from what the user gives: settings, dictionaries, checkpoints.

A bundle, or the files of a folder, provide what the user does not give.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specdec_plugins.app.codec import Codec, PretrainedCodec
from specdec_plugins.app.settings import (
    DRAFTER,
    DTYPES,
    EXACT,
    RAW_TEXT,
    VERIFIER,
    Settings,
    choose_device,
)
from specdec_plugins.app.types import Decoder, Limits
from specdec_plugins.corpus.cli import flag_of
from specdec_plugins.corpus.resume import content_hash
from specdec_plugins.decoding.alone import DrafterDecoder, Unverified
from specdec_plugins.decoding.beam import BeamDecoder, Branching
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.contract import Drafter, Verifier
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext, needs_of
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import BlockDrafter, Transformer, with_fast_products
from specdec_plugins.decoding.networks.cpu.products import NativeLayers
from specdec_plugins.decoding.networks.fairseq_names import EncoderDecoder
from specdec_plugins.decoding.networks.reading import Weights
from specdec_plugins.decoding.networks.trained import Model, TrainedNetwork
from specdec_plugins.decoding.requests import BeamParams, DecodeParams
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import require, warn_once
from specdec_plugins.formats.bundle import (
    CODES,
    PRETRAINED,
    SETTINGS,
    BundleSettings,
    default_bundle,
    is_bundle,
    read_bundle,
    tokenizer_files,
)
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.models import dictionaries_of, read_model_of
from specdec_plugins.formats.pretrained.config import PretrainedConfig, is_pretrained, read_config
from specdec_plugins.formats.pretrained.tokenizer import read_tokenizer
from specdec_plugins.formats.pretrained.weights import read_model as read_pretrained
from specdec_plugins.formats.pretrained.weights import weight_files
from specdec_plugins.formats.text import TextPipeline

NO_MODEL = (  # follows the name of a folder
    "not a model; give a bundle, a transformers folder (config.json, weights and tokenizer), its "
    f"ORG/NAME on the hub, or one with fairseq's {VERIFIER} and its dict.<lang>.txt."
)
_SPECULATION = (*EXACT, "block_size", "schedule", "schedule_options")
_DRAFTING = {*_SPECULATION, "drafter", "drafter_options", "drafter_checkpoint", "rule"}

# Fields whose None means the same as not given.
_AS_THE_BUNDLE_SAYS = {
    *("data", "source_lang", "target_lang", "verifier", "drafter_checkpoint", "block_size")
}


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Settings of these fields; a bundle in `data` (default: the bundled one) gives the others.

    Raises UserError for a bad bundle or value.
    """
    given = {k: v for k, v in given.items() if v is not None or k not in _AS_THE_BUNDLE_SAYS}
    if given.get("drafter", "") is None:
        for name in ("drafter_options", "block_size", "schedule", "schedule_options"):
            told = f"--drafter none drafts nothing; omit {flag_of(Settings, name)}."
            require(not given.get(name), told)
        given = {**given, "strategy": "AR"}
        del given["drafter"]
    if given.get("bpe_codes") is not None:
        given = {"bpe": "subword_nmt", **given}
    folder = given.pop("data", None)
    if folder is None:
        require(
            not (given.get("verifier") or given.get("drafter_checkpoint")),
            "a checkpoint was given without its dictionaries; give their folder, too.",
        )
        folder = default_bundle()
    folder = str(local_model(folder))
    check_folder(folder)
    if given.get("glossary") is not None:
        given = {"beam": BeamParams.size, **given}
    if (given.get("beam") or 1) > 1:
        given = {"strategy": "AR", **given}
    defaults: dict[str, Any] = {}
    if is_bundle(folder):
        defaults = _defaults(Path(folder), given)
    elif is_pretrained(folder):
        is_plain = not {"drafter", "drafter_checkpoint"} & given.keys()
        defaults = {"verifier": str(folder), **_of_pretrained(Path(folder), given)}
        defaults |= {"strategy": "AR"} if is_plain else {}
    elif not given.get("verifier") and (Path(folder) / VERIFIER).is_file():
        defaults = settings_from_files(Path(folder), given)
    return Settings(str(folder), **{**defaults, **given})


def check_folder(folder: str | Path) -> None:
    """Raises UserError for a model of CTranslate2, which this project writes and does not read."""
    is_theirs = (Path(folder) / "model.bin").is_file() and not is_pretrained(folder)
    require(
        not is_theirs or is_bundle(folder),
        f"{folder}: is a model of CTranslate2, which nothing else reads; give the bundle or the "
        "checkpoint that it was made from.",
    )


def _defaults(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The bundle's settings that the user did not give."""
    bundle = read_bundle(folder)
    is_own = bundle.text.get("tokenizer") == PRETRAINED  # which knows its languages itself
    for side in ("source_lang", "target_lang"):
        require(
            is_own or given.get(side, getattr(bundle, side)) == getattr(bundle, side),
            f"{folder}: translates from {bundle.source_lang} to {bundle.target_lang}; omit the "
            "languages.",
        )
    return {
        "source_lang": bundle.source_lang or None,
        "target_lang": bundle.target_lang or None,
        "verifier": str(folder / bundle.verifier.weights),
        **_drafting(folder, bundle, given),
        **(_of_pretrained(folder, given) if is_own else _raw_text(folder, bundle, given)),
        **_tuned(bundle, given),
    }


def _of_pretrained(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a transformers model's files that the user did not give.

    Raises UserError if the user sets tokenisation, which these files define.
    """
    for name in ("tokenizer", "bpe", "bpe_codes", "remove_bpe"):
        flag = "--" + name.replace("_", "-")
        require(
            name not in given or given[name] == PRETRAINED,
            f"{folder}: the model has a tokenizer of its own; omit {flag}.",
        )
    config = read_config(folder)
    generation = config.generation(range(config.decoder_vocab_size))
    found: dict[str, Any] = {"tokenizer": PRETRAINED, "min_len": generation.min_len or None}
    found["usual_search"] = (generation.length_penalty, generation.finishing)
    if (most := generation.max_len) is not None:
        # A summary may end at the limit; a translation that does is not whole.
        found |= {"max_len_b": most} if config.model_type == "bart" else {"usual_len": (0.0, most)}
    return found


def _drafting(folder: Path, bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    drafter = bundle.drafter
    if drafter is None:
        plain = "drafter" not in given and "drafter_checkpoint" not in given
        return {"strategy": "AR"} if plain else {}
    wanted = given.get("drafter", drafter.name)
    if wanted != drafter.name and needs_of(wanted).network != needs_of(drafter.name).network:
        return {}
    defaults: dict[str, Any] = {"drafter": wanted, "drafter_options": drafter.options}
    if drafter.network is not None and needs_of(drafter.name).network is not None:
        defaults["drafter_checkpoint"] = str(folder / drafter.network.weights)
    return defaults


def _raw_text(folder: Path, bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    if "remove_bpe" in given:  # the input is BPE text
        return {}
    defaults = dict(bundle.text)
    if "bpe" in given or defaults.get("bpe") is None:
        defaults.pop("bpe", None)
        defaults.pop("bpe_codes", None)
    elif defaults.get("bpe_codes") is not None:
        defaults["bpe_codes"] = str(folder / defaults["bpe_codes"])
    in_force = {**defaults, **given}
    if in_force.get("tokenizer") is None and in_force.get("bpe") is None:
        return {}  # lines are tokens, to which raw-text settings do not apply
    return defaults


def _tuned(bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults, (a, b) = dict(bundle.defaults), Settings.usual_len
    if {"max_len_a", "max_len_b"} & defaults.keys():
        defaults["usual_len"] = (defaults.pop("max_len_a", a), defaults.pop("max_len_b", b))
    measured = {"rows": defaults.pop("few_rows", 1)}
    if _DRAFTING & given.keys():  # whoever says how to draft wants drafts
        defaults.pop("strategy", None)
    on_cpu = choose_device(given.get("device")).type == "cpu"  # where few_rows was measured
    if on_cpu and not (_DRAFTING - {*EXACT, "rule"}) & given.keys():
        defaults.setdefault("schedule", "few_rows")
    if {**defaults, **given}.get("schedule") == "few_rows":
        defaults.setdefault("schedule_options", measured)
    if {**defaults, **given}.get("strategy", "specdec") != "specdec":
        return {k: v for k, v in defaults.items() if k not in _SPECULATION}
    if "rule" in given or given.get("beta") == EXACT["beta"]:
        return {k: v for k, v in defaults.items() if k not in EXACT}
    return defaults


def settings_from_files(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a folder without bundle.json: those `given`, and files with the usual names.

    Decoding is plain (AR) if neither the folder nor the user provides a drafter.
    """
    names = (VERIFIER, DRAFTER, CODES)
    here = {name: str(folder / name) for name in names if (folder / name).is_file()}
    found: dict[str, Any] = {}
    if VERIFIER in here:
        found["verifier"] = here[VERIFIER]
    if DRAFTER in here:
        found["drafter_checkpoint"] = here[DRAFTER]
    elif not {"drafter", "drafter_checkpoint"} & given.keys():
        found["strategy"] = "AR"
    codes = given.get("bpe_codes") or here.get(CODES)
    if codes and "remove_bpe" not in given:  # else the input is BPE text
        found |= {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": codes}
    return {**found, **given}


@dataclass(frozen=True)
class Words:
    """A model's codec and dictionaries."""

    codec: Codec
    dictionaries: Dictionaries
    orders: tuple[Sequence[int], Sequence[int]] = ((), ())  # a transformers model's ids, by ours
    config: PretrainedConfig | None = None  # of a transformers model

    def read_model(self) -> Model:
        """The weights of a transformers model. Raises UserError if they do not fit."""
        assert self.config is not None
        return read_pretrained(self.config, *self.orders)


def read_words(settings: Settings) -> Words:
    """Raises UserError if a file is missing, or the model does not have a language."""
    asked = (settings.source_lang, settings.target_lang)
    if settings.tokenizer == PRETRAINED:
        folder = Path(settings.data)
        config = read_config(folder)
        tokenizer = read_tokenizer(folder, config)
        codec = PretrainedCodec(tokenizer, *asked)
        named = (codec.source_lang or "source", codec.target_lang or "target")
        both = Dictionaries(tokenizer.source, tokenizer.target, *named)
        return Words(codec, both, (tokenizer.source_order, tokenizer.target_order), config)
    both = dictionaries_of(settings.data, asked, settings.verifier)
    text = text_pipeline(settings, both) if settings.raw_text else None
    return Words(Codec(both.source, both.target, text, settings.remove_bpe), both)


# Settings that may differ between runs that write one output: they change speed, not lines.
_FREE = {"batch", "device"}
_PATHS = {"data", "verifier", "drafter_checkpoint", "drafter_data"}
_PATHS |= {"bpe_codes", "glossary"}


def origin(settings: Settings) -> dict[str, dict[str, Any]]:
    """What the lines of an output depend on: values by flag, and contents of files by their role.

    How a path or a default was spelled does not count. A missing file has no content: loading it
    is what refuses it. Raises UserError as `load_dictionaries`, and if a file cannot be read.
    """
    in_force = {"rule": settings.rule_name}
    paths = {
        "verifier": _weight_files(settings.verifier),
        "drafter": _weight_files(settings.drafter_checkpoint),
        "BPE codes": [settings.bpe_codes],
        "glossary": [settings.glossary],
    }
    contents: dict[str, list[str]] = {}
    if settings.tokenizer == PRETRAINED:
        paths["tokenizer"] = tokenizer_files(Path(settings.data))
    else:
        asked = (settings.source_lang, settings.target_lang)
        both = dictionaries_of(settings.data, asked, settings.verifier)
        in_force |= {"source_lang": both.source_lang, "target_lang": both.target_lang}
        contents["dictionaries"] = both.digests
        theirs = _drafter_dictionaries(settings, both)
        contents["drafter's dictionaries"] = theirs.digests
    for role, files in paths.items():
        there = [Path(file) for file in files if file is not None and os.path.isfile(file)]
        contents[role] = [content_hash(file) for file in there]
    names = [f.name for f in fields(settings) if f.name not in _FREE | _PATHS]
    values = {flag_of(Settings, n): in_force.get(n, getattr(settings, n)) for n in names}
    return {"values": values, "contents": contents}


def _weight_files(path: str | None) -> Sequence[str | Path | None]:
    """The files of a network's weights and of its architecture, where that is in another file."""
    if path is None or not os.path.isdir(path):
        return [path, path and Path(path).parent / SETTINGS]
    return weight_files(Path(path))


def load_parts(settings: Settings) -> tuple[Codec, Decoder, Limits]:
    """The parts of a translator; see `translator.load_translator`."""
    words = read_words(settings)
    return words.codec, *_load_engine(settings, words)


def text_pipeline(settings: Settings, dictionaries: Dictionaries) -> TextPipeline:
    languages = (dictionaries.source_lang, dictionaries.target_lang)
    named = {name: getattr(settings, name) for name in ("tokenizer", "bpe", *RAW_TEXT)}
    return TextPipeline(*languages, codes=settings.bpe_codes, **named)


def _load_engine(settings: Settings, words: Words) -> tuple[Decoder, Limits]:
    dictionaries = words.dictionaries
    target, shared, network = dictionaries.target, None, None
    weights: Weights | None = None
    drafting: Weights | None = None
    verifier: Verifier = Unverified(
        len(target), target.special, choose_device(settings.device), len(dictionaries.source)
    )
    limits, theirs = Limits(10**9, 10**9, 0), dictionaries
    if settings.verifier is not None:
        shared, weights = _open_verifier(settings, words)
        verifier = TransformerVerifier(shared, target.special)
        # As in fairseq's search, one position is reserved for the end of the sentence.
        limits = Limits(verifier.max_source_positions, verifier.max_target_positions - 1, 0)
    if settings.drafts:
        theirs = _drafter_dictionaries(settings, dictionaries)
        network, drafting = _open_drafter(settings, theirs)
        if network is not None and shared is not None:
            network.adopt(shared, drafting, weights)
    # Last, as `adopt` compares weights first. Shared layers keep the verifier's format.
    in_8_bits, is_quantised = settings.drafting_dtype == "int8", settings.dtype == "int8"
    if shared is not None:
        beside = [network] if network is not None and in_8_bits == is_quantised else []
        with_fast_products(shared, is_quantised, settings.kernels, weights, beside)
    if network is not None and drafting is not None:
        if network.int8:
            with_fast_products(network, in_8_bits, settings.kernels, drafting)
        drafting.read()
    drafter: Drafter | None = None
    if settings.drafts:
        context = _draft_context(settings, dictionaries, theirs, verifier, network)
        drafter = DRAFTERS.build(settings.drafter, context, options=settings.drafter_options)
        limits = _common_limits(limits, settings, drafter, network)
    schedule = SCHEDULES.build(settings.schedule, options=settings.schedule_options)
    method = Method(drafter, settings.acceptance, schedule)
    constraints = _constraints(settings, words)
    return build_decoder(settings, verifier, method, constraints), limits


def _open_verifier(settings: Settings, words: Words) -> tuple[Transformer, Weights]:
    """The verifier of a checkpoint, a bundle, or a transformers folder; its weights, unread."""
    path, both = settings.verifier, words.dictionaries
    assert path is not None
    if words.config is None or not Path(path).is_dir():
        model = read_model_of(Transformer, path, both.source, both.target)
    else:
        model = words.read_model()
    network, weights = _opened(settings, model)
    assert isinstance(network, Transformer)
    return network, weights


def _opened(settings: Settings, model: Model) -> tuple[TrainedNetwork, Weights]:
    if settings.exit_layer is not None:
        model = model.until(settings.exit_layer)
    return model.opened(DTYPES[settings.dtype], choose_device(settings.device))


def _constraints(settings: Settings, words: Words) -> Constraints:
    """Constraints of a transformers model; logs what its files ask for and is not done."""
    if words.config is None:
        return FREE
    for notice in words.config.notices:
        warn_once(notice)
    if not settings.searches and words.config.search_notice:
        warn_once(words.config.search_notice)
    assert isinstance(words.codec, PretrainedCodec)
    num_forced = words.codec.tokenizer.num_forced
    return words.config.generation(words.orders[1], num_forced).constraints


def _open_drafter(
    settings: Settings, dictionaries: Dictionaries
) -> tuple[TrainedNetwork | None, Weights | None]:
    """The drafter's network, if it has one; its weights, unread."""
    cls, path = settings.needs.network, settings.drafter_checkpoint
    if cls is None or path is None:
        return None, None
    return _opened(settings, read_model_of(cls, path, dictionaries.source, dictionaries.target))


def _draft_context(
    settings: Settings,
    own: Dictionaries,
    theirs: Dictionaries,
    verifier: Verifier,
    network: TrainedNetwork | None,
) -> DraftContext:
    """What the drafter is built from. theirs: the drafter's own dictionaries."""

    def ids_in(other: Dictionary) -> Tensor | None:
        return None if own.source == other else torch.tensor(own.source.ids_in(other))

    return DraftContext(
        verifier,
        network,
        source_to_target=ids_in(own.target),
        source_to_assistant=ids_in(theirs.source),
        sampling=settings.acceptance.samples,
        position_cost=_position_cost(settings, verifier),
    )


def _position_cost(settings: Settings, verifier: Verifier) -> float:
    """About what verifying one more position of one sentence takes, as a share of a token's time.

    A pass whose products are of integers is bound by reading its weights, others by arithmetic
    (benchmarks/results/sequential-head.md, "What a position costs").
    """
    if not settings.on_cpu or not isinstance(verifier, TransformerVerifier):
        return 0.0
    layers = verifier.network.decoder.layers
    if not isinstance(layers, NativeLayers):
        return 0.0
    return 0.15 if layers.adds_integers else 0.35


def _drafter_dictionaries(settings: Settings, own: Dictionaries) -> Dictionaries:
    """The drafter's own dictionaries; the target dictionary must be the verifier's."""
    folder = settings.drafter_data
    if folder is None:
        return own
    theirs = load_dictionaries(folder, own.source_lang, own.target_lang)
    require(
        theirs.target == own.target,
        f"{folder}: the drafter's dict.{own.target_lang}.txt is not the verifier's; give a drafter "
        "that was trained with the same target dictionary.",
    )
    return theirs


def build_decoder(
    settings: Settings, verifier: Verifier, method: Method, constraints: Constraints = FREE
) -> Decoder:
    """The decoder made of the loaded parts. constraints: the model's own."""
    if settings.strategy == "drafter":
        assert method.drafter is not None
        sizes = (verifier.vocab_size, verifier.special, verifier.device, verifier.source_vocab_size)
        target = Unverified(*sizes)
        return DrafterDecoder(method.drafter, target, EngineConfig(settings.batch))
    if settings.ban_pad:
        constraints = constraints.banning(verifier.special.pad)  # as fairseq's search does
    config = EngineConfig(settings.batch, constraints=constraints, static=settings.cuda_graphs)
    if settings.searches:
        return BeamDecoder(cast(Branching, verifier), config)
    return SpeculativeDecoder(verifier, method, config)


def _common_limits(
    limits: Limits, settings: Settings, drafter: Drafter, network: TrainedNetwork | None
) -> Limits:
    """The block size in force, and the positions that verifier and drafter share.

    The target limit is the verifier's, as without a drafter: near the end of the drafter's own
    positions blocks get shorter, and beyond it nothing is drafted.

    Raises UserError if the block size is larger than the drafter can draft.
    """
    longest = drafter.max_block_size
    trained = network.config.block_size if isinstance(network, BlockDrafter) else longest
    block_size = settings.block_size or trained or DecodeParams().block_size
    require(
        longest is None or block_size <= longest,
        f"{settings.drafter_checkpoint}: the drafter was trained for blocks of {trained} tokens; "
        f"give a --block-size of at most {longest}, not {block_size}.",
    )
    if not isinstance(network, EncoderDecoder):  # no positions of its own
        return replace(limits, block_size=block_size)
    target = limits.target if settings.verifier else network.config.decoder.max_positions
    return Limits(
        source=min(limits.source, network.config.encoder.max_positions),
        target=target,
        block_size=block_size,
    )
