"""From settings to a translator: dictionaries, checkpoints, and the parts that decode."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import DTYPES, WITH_CHECKPOINT, Settings, choose_device
from specdec_plugins.app.strategies import BeamSearch, DrafterAlone, EngineDecoder
from specdec_plugins.app.types import Decoder, Limits
from specdec_plugins.decoding.alone import Absent
from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.engine import EngineConfig, Method
from specdec_plugins.decoding.networks import BlockDrafter, Transformer, with_fast_products
from specdec_plugins.decoding.schedules import build_schedule
from specdec_plugins.decoding.types import DecodeParams, Drafter, Verifier
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import require
from specdec_plugins.formats.bigrams import read_bigrams
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.model_files import (
    load_block_drafter,
    load_medusa_heads,
    load_verifier,
)
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
    )
    limits = Limits(search.max_source_positions, search.max_target_tokens, 0)
    return BeamSearch(search, settings.batch), limits


def _load_engine(
    settings: Settings, dictionaries: Dictionaries, with_scores: bool
) -> tuple[Decoder, Limits]:
    loader = Loader(settings, dictionaries)
    rule = settings.acceptance
    verifier, limits = loader.verifier()
    drafter: Drafter | None = None
    if settings.drafts:
        network, assistant = loader.drafting_models()
        if isinstance(network, BlockDrafter) and isinstance(verifier, TransformerVerifier):
            network.adopt(verifier.network.encoder)
        _quicken(settings, verifier, network, assistant)
        context = DraftContext(
            verifier,
            network,
            _same_symbols(dictionaries.source, dictionaries.target),
            assistant,
            loader.source_to_assistant(),
            loader.bigrams(),
            sampling=rule.samples,
        )
        drafter = build_drafter(settings.drafter, context, dict(settings.drafter_options))
        model = network if assistant is None else assistant.network
        limits = _common_limits(limits, settings, drafter, model)
    else:
        _quicken(settings, verifier)
    schedule = build_schedule(settings.schedule, dict(settings.schedule_options))
    method = Method(drafter, rule, schedule)
    return build_decoder(settings, verifier, method, with_scores), limits


def _quicken(settings: Settings, *parts: object) -> None:
    """Give networks the products that are fastest here: last, as they cannot be compared then."""
    for index, part in enumerate(parts):
        # The verifier comes first: what the others share with it stays as it wants it.
        int8 = settings.quantised or (index > 0 and settings.drafter_dtype == "int8")
        network = part.network if isinstance(part, TransformerVerifier) else part
        if isinstance(network, BlockDrafter | Transformer):
            with_fast_products(network, int8, settings.kernels)


@dataclass(frozen=True)
class Loader:
    """Reads the checkpoints that the settings name."""

    settings: Settings
    dictionaries: Dictionaries

    @property
    def device(self) -> torch.device:
        return choose_device(self.settings.device)

    def verifier(self) -> tuple[Verifier, Limits]:
        path, target = self.settings.verifier, self.dictionaries.target
        if path is None:
            return Absent(len(target), target.special, self.device), Limits(10**9, 10**9, 0)
        verifier = self._transformer(path, self.dictionaries)
        # As in fairseq's search, one position is left for the end of the sentence.
        longest = verifier.max_target_positions - 1
        return verifier, Limits(verifier.max_source_positions, longest, 0)

    def drafting_models(self) -> tuple[nn.Module | None, TransformerVerifier | None]:
        """The network that drafts, or an assistant; neither where drafting needs none."""
        path = self.settings.drafter_checkpoint
        if path is None or self.settings.drafter not in WITH_CHECKPOINT:
            return None, None
        if self.settings.drafter == "assistant":
            return None, self._transformer(path, self.assistant_dictionaries())
        dtype = DTYPES[self.settings.dtype]
        if self.settings.drafter == "medusa":
            return load_medusa_heads(path, dtype=dtype, device=self.device), None
        source, target = self.dictionaries.source, self.dictionaries.target
        network = load_block_drafter(path, source, target, dtype=dtype, device=self.device)
        return network, None

    def source_to_assistant(self) -> Tensor | None:
        """Source ids in an assistant's numbers; None = the same."""
        return _same_symbols(self.dictionaries.source, self.assistant_dictionaries().source)

    def bigrams(self) -> Bigrams | None:
        """What tends to follow what in the target language, where that was counted."""
        path = self.settings.bigrams
        return None if path is None else read_bigrams(path, len(self.dictionaries.target))

    def assistant_dictionaries(self) -> Dictionaries:
        """Those that the assistant was trained with; the target's must be the verifier's."""
        folder, own = self.settings.drafter_data, self.dictionaries
        if folder is None:
            return own
        theirs = load_dictionaries(folder, own.source_lang, own.target_lang)
        require(
            theirs.target == own.target,
            f"{folder}: the assistant's dict.{own.target_lang}.txt is not the verifier's; take an "
            "assistant that was trained with the same target dictionary.",
        )
        return theirs

    def _transformer(self, path: str, dictionaries: Dictionaries) -> TransformerVerifier:
        source, target = dictionaries.source, dictionaries.target
        dtype = DTYPES[self.settings.dtype]
        network = load_verifier(
            path,
            source,
            target,
            exit_layer=self.settings.exit_layer,
            dtype=dtype,
            device=self.device,
        )
        return TransformerVerifier(network, target.special)


def _same_symbols(source: Dictionary, target: Dictionary) -> Tensor | None:
    """One dictionary's ids in the numbers of the other; None = the same."""
    return None if source == target else torch.tensor(source.ids_in(target))


def build_decoder(
    settings: Settings, verifier: Verifier, method: Method, with_scores: bool = False
) -> Decoder:
    """What decodes with the parts that are loaded."""
    if settings.strategy == "drafter":
        assert method.drafter is not None
        return DrafterAlone(method.drafter, verifier.special, verifier.device, settings.batch)
    config = EngineConfig(
        max_rows=settings.batch, ban_pad=settings.ban_pad, with_scores=with_scores
    )
    return EngineDecoder(verifier, method, config)


def _common_limits(
    limits: Limits,
    settings: Settings,
    drafter: Drafter,
    model: nn.Module | None,
) -> Limits:
    """Block size in force, and positions that verifier and drafter have in common.

    Raises UserError where the drafter was trained for shorter blocks than asked for.
    """
    trained = drafter.max_block_size
    block_size = settings.block_size or trained or DecodeParams().block_size
    require(
        trained is None or block_size <= trained,
        f"{settings.drafter_checkpoint}: the drafter was trained for blocks of {trained} tokens; "
        f"ask for a --block-size of at most that, not {block_size}.",
    )
    if not isinstance(model, BlockDrafter | Transformer):  # no positions of its own
        return replace(limits, block_size=block_size)
    # The last block may begin one token before the end, and all of it needs positions.
    target = model.config.decoder.max_positions - block_size
    return Limits(
        source=min(limits.source, model.config.encoder.max_positions),
        target=min(limits.target, target),
        block_size=block_size,
    )
