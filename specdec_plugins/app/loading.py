"""From settings to a translator: dictionaries, checkpoints, and the parts that decode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.adapters.dictionary import Dictionary
from specdec_plugins.adapters.fairseq_checkpoint import load_block_drafter, load_verifier
from specdec_plugins.adapters.text import TextPipeline
from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import DTYPES, Settings, choose_device
from specdec_plugins.app.strategies import DrafterAlone, EngineStrategy, Strategy
from specdec_plugins.app.translator import Limits, SpeculativeTranslator
from specdec_plugins.decoding.config import DecodeParams, EngineConfig, require
from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.interfaces import (
    AcceptanceRule,
    Draft,
    Drafter,
    DraftSchedule,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
    Verifier,
)
from specdec_plugins.decoding.networks import BlockDrafter
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.transformer_verifier import TransformerVerifier
from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Dictionaries:
    """Both sides' symbols, and the languages that name their files."""

    source: Dictionary
    target: Dictionary
    source_lang: str
    target_lang: str


def load_dictionaries(
    folder: str, source_lang: str | None = None, target_lang: str | None = None
) -> Dictionaries:
    """The two dictionaries of a folder; languages that are not given come from file names.

    A prepared folder names its direction by its data files (`train.en-de.en.idx`). Raises
    UserError where the folder, a dictionary, or the direction cannot be found.
    """
    require(Path(folder).is_dir(), f"{folder}: is no folder; give the one that holds dict.*.txt.")
    if source_lang is None or target_lang is None:
        source_lang, target_lang = _infer_languages(Path(folder), source_lang, target_lang)
    sides = [
        Dictionary.load(Path(folder) / f"dict.{lang}.txt") for lang in (source_lang, target_lang)
    ]
    return Dictionaries(sides[0], sides[1], source_lang, target_lang)


def _infer_languages(folder: Path, source: str | None, target: str | None) -> tuple[str, str]:
    pairs = {path.name.split(".")[1] for path in folder.glob("*.*-*.*.idx")}
    if len(pairs) == 1 and source is None and target is None:
        first, _, second = pairs.pop().partition("-")
        return first, second
    found = sorted(path.name[len("dict.") : -len(".txt")] for path in folder.glob("dict.*.txt"))
    require(
        bool(found),
        f"{folder}: holds no dict.<lang>.txt; give the folder that fairseq-preprocess wrote.",
    )
    others = [lang for lang in found if lang not in (source, target)]
    if len(found) == 2 and len(others) == 1:
        return source or others[0], target or others[0]
    raise UserError(
        f"{folder}: which of {', '.join(found)} is the source is not clear from the file names; "
        "say it with --source-lang and --target-lang."
    )


def load_translator(settings: Settings, with_scores: bool = False) -> SpeculativeTranslator:
    """Load everything that the settings name.

    with_scores: sum the verifier's log-probabilities, which costs a little time. Raises UserError
    where a file is missing or does not fit the others.
    """
    dictionaries = load_dictionaries(settings.data, settings.source_lang, settings.target_lang)
    text = None
    if settings.raw_text:
        text = TextPipeline(
            dictionaries.source_lang,
            dictionaries.target_lang,
            settings.tokenizer,  # type: ignore[arg-type]  # checked by Settings
            settings.bpe,  # type: ignore[arg-type]
            settings.bpe_codes,
            lowercase=settings.lowercase,
            dash_splits=settings.dash_splits,
            strip_diacritics=settings.strip_diacritics,
        )
    codec = Codec(dictionaries.source, dictionaries.target, text, settings.remove_bpe)
    if settings.strategy == "fairseq":
        strategy, limits = _load_search(settings)
    else:
        strategy, limits = _load_engine(settings, dictionaries, with_scores)
    return SpeculativeTranslator(settings, codec, strategy, limits)


def _load_search(settings: Settings) -> tuple[Strategy, Limits]:
    # fairseq takes seconds to import, and decoding without its search does not need it.
    from specdec_plugins.app.search import load_beam_search

    return load_beam_search(settings)


def _load_engine(
    settings: Settings, dictionaries: Dictionaries, with_scores: bool
) -> tuple[Strategy, Limits]:
    place: dict[str, Any] = {
        "dtype": DTYPES[settings.dtype],
        "device": choose_device(settings.device),
    }
    both = (dictionaries.source, dictionaries.target)
    network: BlockDrafter | None = None
    if settings.drafts and settings.drafter_checkpoint is not None:
        network = load_block_drafter(settings.drafter_checkpoint, *both, **place)
    special = dictionaries.target.special
    if settings.verifier is None:
        verifier: Verifier = Absent(len(dictionaries.target), special, place["device"])
        limits = Limits(10**9, 10**9, 0)
    else:
        loaded = TransformerVerifier(load_verifier(settings.verifier, *both, **place), special)
        verifier = loaded
        # As in fairseq's search, one position is left for the end of the sentence.
        limits = Limits(loaded.max_source_positions, loaded.max_target_positions - 1, 0)
    drafter = None
    if settings.drafts:
        context = DraftContext(verifier, network, source_to_target=_same_symbols(*both))
        drafter = build_drafter(settings.drafter, context, dict(settings.drafter_options))
    method = Method(drafter, build_rule(settings), build_schedule(settings))
    limits = _limits(limits, settings, drafter, network)
    return build_strategy(settings, verifier, method, limits, with_scores), limits


def _same_symbols(source: Dictionary, target: Dictionary) -> Tensor | None:
    """For drafters that copy from the source: its ids in the target's numbers; None = the same."""
    return None if source == target else torch.tensor(source.ids_in(target))


def build_rule(settings: Settings) -> AcceptanceRule:
    """The acceptance rule in force."""
    rule: Any = RULES.get(settings.rule_name)
    built: AcceptanceRule = rule()
    return built


def build_schedule(settings: Settings) -> DraftSchedule:
    """The draft schedule; raises UserError for options that it does not know."""
    cls: Any = SCHEDULES.get(settings.schedule)
    try:
        config = cls.Config(**settings.schedule_options)
    except TypeError as error:
        known = ", ".join(cls.Config.__dataclass_fields__) or "none"
        raise UserError(
            f"Options of draft schedule {settings.schedule!r}: {error}; it knows: {known}."
        ) from error
    schedule: DraftSchedule = cls(config)
    return schedule


def build_strategy(
    settings: Settings, verifier: Verifier, method: Method, limits: Limits, with_scores: bool
) -> Strategy:
    """One of the engine's strategies, from parts that are loaded."""
    if settings.strategy == "drafter":
        assert method.drafter is not None
        return DrafterAlone(method.drafter, verifier.special, verifier.device, settings.batch)
    config = EngineConfig(
        max_rows=settings.batch, ban_pad=settings.ban_pad, with_scores=with_scores
    )
    return EngineStrategy(verifier, method, config)


def _limits(
    limits: Limits, settings: Settings, drafter: Drafter | None, network: BlockDrafter | None
) -> Limits:
    """Block size in force, and positions that verifier and drafter have in common.

    Raises UserError where the drafter was trained for shorter blocks than asked for.
    """
    if drafter is None:
        return limits
    trained = drafter.max_block_size
    block_size = settings.block_size or trained or DecodeParams().block_size
    require(
        trained is None or block_size <= trained,
        f"{settings.drafter_checkpoint}: the drafter was trained for blocks of {trained} tokens; "
        f"ask for a --block-size of at most that, not {block_size}.",
    )
    limits = replace(limits, block_size=block_size)
    if network is not None:
        stacks = network.config
        # The last block may begin one token before the end, and all of it needs positions.
        target = stacks.decoder.max_positions - block_size + 1
        limits = replace(
            limits,
            source=min(limits.source, stacks.encoder.max_positions),
            target=min(limits.target, target),
        )
    return limits


@dataclass(frozen=True)
class Absent:
    """Stands where a verifier would, for a drafter that decodes alone."""

    vocab_size: int
    special: SpecialTokens
    device: torch.device
    max_target_positions: int = 10**9

    def admit(self, source: SourceBatch) -> None:
        raise UserError(_NO_VERIFIER)

    def commit(self, prefix: Prefix, last: Round) -> None:
        raise UserError(_NO_VERIFIER)

    def select(self, rows: Tensor) -> None:
        raise UserError(_NO_VERIFIER)

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        raise UserError(_NO_VERIFIER)


_NO_VERIFIER = "The drafter needs a verifier; give its checkpoint with --AR-path."
