"""From settings to a translator: dictionaries, checkpoints, and the parts that decode."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import DTYPES, Settings, choose_device
from specdec_plugins.app.strategies import BeamSearch
from specdec_plugins.app.types import Decoder, Limits
from specdec_plugins.decoding.alone import DrafterDecoder, Unverified
from specdec_plugins.decoding.drafters import DraftContext, build_drafter, needs_of
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import Transformer, with_fast_products
from specdec_plugins.decoding.networks.fairseq_names import EncoderDecoder
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.decoding.schedules import build_schedule
from specdec_plugins.decoding.types import DecodeParams, Drafter, Verifier
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import require
from specdec_plugins.formats.bigrams import read_bigrams
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.models import load_network
from specdec_plugins.formats.text import TextPipeline


def load_parts(settings: Settings, with_scores: bool = False) -> tuple[Codec, Decoder, Limits]:
    """The parts of a translator; `translator.load_translator` says more."""
    dictionaries = load_dictionaries(settings.data, settings.source_lang, settings.target_lang)
    text = text_pipeline(settings, dictionaries) if settings.raw_text else None
    codec = Codec(dictionaries.source, dictionaries.target, text, settings.remove_bpe)
    if settings.strategy == "fairseq":
        return codec, *_load_search(settings)
    return codec, *_load_engine(settings, dictionaries, with_scores)


def text_pipeline(settings: Settings, dictionaries: Dictionaries) -> TextPipeline:
    """Between raw lines and subwords, as the settings say."""
    return TextPipeline(
        dictionaries.source_lang,
        dictionaries.target_lang,
        settings.tokenizer,  # type: ignore[arg-type]  # checked by Settings
        settings.bpe,  # type: ignore[arg-type]
        settings.bpe_codes,
        lowercase=settings.lowercase,
        dash_splits=settings.dash_splits,
        strip_diacritics=settings.strip_diacritics,
    )


def _load_search(settings: Settings) -> tuple[Decoder, Limits]:
    """The search on the verifier's checkpoint. Raises UserError as `load_fairseq_search` does."""
    # fairseq takes seconds to import, and decoding without its search does not need it.
    from specdec_plugins.formats.fairseq_search import SearchConfig, load_fairseq_search

    config = SearchConfig(
        beam=settings.beam,
        lenpen=settings.lenpen,
        max_len_a=settings.max_len_a,
        max_len_b=settings.max_len_b,
        min_len=settings.minimum,
        unkpen=settings.unkpen,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
    )
    assert settings.verifier is not None  # Settings refuses it
    search = load_fairseq_search(
        settings.verifier,
        settings.data,
        config,
        dtype=DTYPES[settings.dtype],
        device=choose_device(settings.device),
        languages=(settings.source_lang, settings.target_lang),
    )
    limits = Limits(search.max_source_positions, search.max_target_tokens, 0)
    return BeamSearch(search, settings.batch), limits


def _load_engine(
    settings: Settings, dictionaries: Dictionaries, with_scores: bool
) -> tuple[Decoder, Limits]:
    verifier, limits = _load_verifier(settings, dictionaries)
    drafter: Drafter | None = None
    if settings.drafts:
        context = _draft_context(settings, dictionaries, verifier)
        drafter = build_drafter(settings.drafter, context, dict(settings.drafter_options))
        limits = _common_limits(limits, settings, drafter, context.network)
    elif isinstance(verifier, TransformerVerifier):
        with_fast_products(verifier.network, settings.quantised, settings.kernels)
    schedule = build_schedule(settings.schedule, dict(settings.schedule_options))
    method = Method(drafter, settings.acceptance, schedule)
    return build_decoder(settings, verifier, method, with_scores), limits


def _load_verifier(settings: Settings, dictionaries: Dictionaries) -> tuple[Verifier, Limits]:
    path, target = settings.verifier, dictionaries.target
    device = choose_device(settings.device)
    if path is None:
        return Unverified(len(target), target.special, device), Limits(10**9, 10**9, 0)
    network = load_network(
        Transformer,
        path,
        dictionaries.source,
        target,
        exit_layer=settings.exit_layer,
        dtype=DTYPES[settings.dtype],
        device=device,
    )
    verifier = TransformerVerifier(network, target.special)
    # As in fairseq's search, one position is left for the end of the sentence.
    longest = verifier.max_target_positions - 1
    return verifier, Limits(verifier.max_source_positions, longest, 0)


def _draft_context(
    settings: Settings, dictionaries: Dictionaries, verifier: Verifier
) -> DraftContext:
    """What the drafter is built from; all networks get the products that are fastest here."""
    theirs = _drafter_dictionaries(settings, dictionaries)
    network = _drafting_network(settings, theirs)
    shared = verifier.network if isinstance(verifier, TransformerVerifier) else None
    if network is not None and shared is not None:
        network.adopt(shared)
    # Last, as weights cannot be compared then; what is shared stays as the verifier wants it.
    if shared is not None:
        with_fast_products(shared, settings.quantised, settings.kernels)
    if network is not None and network.int8:
        int8 = settings.quantised or settings.drafter_dtype == "int8"
        with_fast_products(network, int8, settings.kernels)
    target, bigrams = dictionaries.target, settings.bigrams
    return DraftContext(
        verifier,
        network,
        source_to_target=_same_symbols(dictionaries.source, target),
        source_to_assistant=_same_symbols(dictionaries.source, theirs.source),
        bigrams=None if bigrams is None else read_bigrams(bigrams, len(target)),
        sampling=settings.acceptance.samples,
    )


def _drafting_network(settings: Settings, dictionaries: Dictionaries) -> TrainedNetwork | None:
    """The trained network of the drafter; None where its class needs none."""
    cls, path = needs_of(settings.drafter).network, settings.drafter_checkpoint
    if cls is None or path is None:
        return None
    dtype, device = DTYPES[settings.dtype], choose_device(settings.device)
    source, target = dictionaries.source, dictionaries.target
    return load_network(cls, path, source, target, dtype=dtype, device=device)


def _drafter_dictionaries(settings: Settings, own: Dictionaries) -> Dictionaries:
    """Those that the drafter was trained with; the target's must be the verifier's."""
    folder = settings.drafter_data
    if folder is None:
        return own
    theirs = load_dictionaries(folder, own.source_lang, own.target_lang)
    require(
        theirs.target == own.target,
        f"{folder}: the drafter's dict.{own.target_lang}.txt is not the verifier's; take one that "
        "was trained with the same target dictionary.",
    )
    return theirs


def _same_symbols(source: Dictionary, target: Dictionary) -> Tensor | None:
    """One dictionary's ids in the numbers of the other; None = the same."""
    return None if source == target else torch.tensor(source.ids_in(target))


def build_decoder(
    settings: Settings, verifier: Verifier, method: Method, with_scores: bool = False
) -> Decoder:
    """What decodes with the parts that are loaded."""
    if settings.strategy == "drafter":
        assert method.drafter is not None
        target = Unverified(verifier.vocab_size, verifier.special, verifier.device)
        return DrafterDecoder(method.drafter, target, EngineConfig(settings.batch))
    config = EngineConfig(
        max_rows=settings.batch, ban_pad=settings.ban_pad, with_scores=with_scores
    )
    return SpeculativeDecoder(verifier, method, config)


def _common_limits(
    limits: Limits,
    settings: Settings,
    drafter: Drafter,
    network: nn.Module | None,
) -> Limits:
    """Block size in force, and positions that verifier and drafter have in common.

    The limit of the target is the verifier's, as without a drafter: near the end of a drafter's
    own positions blocks get shorter, and behind it nothing is drafted.

    Raises UserError where the drafter was trained for shorter blocks than asked for.
    """
    trained = drafter.max_block_size
    block_size = settings.block_size or trained or DecodeParams().block_size
    require(
        trained is None or block_size <= trained,
        f"{settings.drafter_checkpoint}: the drafter was trained for blocks of {trained} tokens; "
        f"ask for a --block-size of at most that, not {block_size}.",
    )
    if not isinstance(network, EncoderDecoder):  # no positions of its own
        return replace(limits, block_size=block_size)
    target = limits.target if settings.verifier else network.config.decoder.max_positions
    return Limits(
        source=min(limits.source, network.config.encoder.max_positions),
        target=target,
        block_size=block_size,
    )
