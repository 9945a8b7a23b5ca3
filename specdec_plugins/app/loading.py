"""Build a translator's parts from settings: dictionaries, checkpoints, networks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specdec_plugins.app.codec import Codec, PretrainedCodec
from specdec_plugins.app.settings import DTYPES, RAW_TEXT, Settings, choose_device
from specdec_plugins.app.types import Decoder, Limits
from specdec_plugins.corpus.cli import flag_of
from specdec_plugins.corpus.resume import content_hash
from specdec_plugins.decoding.alone import DrafterDecoder, Unverified
from specdec_plugins.decoding.beam import BeamDecoder, Branching
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.contract import Drafter, Verifier
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import BlockDrafter, Transformer, with_fast_products
from specdec_plugins.decoding.networks.cpu.products import NativeLayers
from specdec_plugins.decoding.networks.fairseq_names import EncoderDecoder
from specdec_plugins.decoding.networks.reading import Weights
from specdec_plugins.decoding.networks.trained import Model, TrainedNetwork
from specdec_plugins.decoding.requests import DecodeParams
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import require, warn_once
from specdec_plugins.formats.bundle import PRETRAINED, SETTINGS, tokenizer_files
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.models import dictionaries_of, read_model_of
from specdec_plugins.formats.pretrained.config import PretrainedConfig, read_config
from specdec_plugins.formats.pretrained.tokenizer import read_tokenizer
from specdec_plugins.formats.pretrained.weights import read_model as read_pretrained
from specdec_plugins.formats.pretrained.weights import weight_files
from specdec_plugins.formats.text import TextPipeline


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
