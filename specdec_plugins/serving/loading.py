"""From files to a served model, through the same loading as the command line's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.app.loading import load_dictionaries, load_translator
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.strategies import EngineStrategy
from specdec_plugins.decoding.config import EngineConfig, require
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.interfaces import AcceptanceRule
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.errors import UserError
from specdec_plugins.serving.mixed_rule import MixedRule
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.segments import sentence_splitter

NO_DRAFTER = "none"
_VERIFIER, _DRAFTER, _CODES = "verifier.pt", "drafter.pt", "bpe.codes"


@dataclass(frozen=True)
class ModelOptions:
    """Which models to load, and how to draft. None = as the folder says."""

    model: str | None = None  # folder with verifier.pt, drafter.pt, dict.*.txt and bpe.codes
    verifier: str | None = None  # checkpoint
    speculative_model: str | None = None  # checkpoint of the drafter
    source_lang: str | None = None
    target_lang: str | None = None
    tokenizer: str = "moses"  # or none, for text that is tokenised already
    bpe_codes: str | None = None
    drafter: str | None = None  # registered name, or NO_DRAFTER
    drafter_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "constant"  # registered name
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    speculative_steps: int | None = None  # tokens drafted a round
    device: str | None = None
    dtype: str = "float32"
    max_rows: int = 32
    part_times: bool = True  # seconds by part; on a GPU every part then waits for the device


def default_model() -> str:
    """The folder of the bundled pair. Raises UserError where none is bundled."""
    raise UserError(
        "No pair of models comes with this version; give a folder with verifier.pt, drafter.pt, "
        "dict.<lang>.txt and bpe.codes, such as: specdec-serve FOLDER -s en -t de."
    )


def load_model(options: ModelOptions) -> ServedModel:
    """Load everything. Raises UserError where a file is missing or does not fit the others."""
    settings = decode_settings(options)
    dictionaries = load_dictionaries(settings.data, settings.source_lang, settings.target_lang)
    translator = load_translator(settings)
    strategy, limits = translator.strategy, translator.limits
    assert isinstance(strategy, EngineStrategy)
    method = strategy.method
    return ServedModel(
        name=Path(settings.data).resolve().name,
        source_lang=dictionaries.source_lang,
        target_lang=dictionaries.target_lang,
        codec=translator.codec,
        split=sentence_splitter(dictionaries.source_lang),
        verifier=strategy.verifier,
        method=Method(method.drafter, mixed_rule(), method.schedule),
        engine=EngineConfig(max_rows=options.max_rows, measure_time=options.part_times),
        max_source=limits.source,
        max_target=limits.target,
        block_size=limits.block_size,
        drafter_name=settings.drafter if settings.drafts else None,
        schedule_name=settings.schedule,
        dtype=settings.dtype,
    )


def mixed_rule() -> MixedRule:
    """Greedy requests with their own beta and tau, sampling ones beside them."""

    def rule(name: str) -> AcceptanceRule:
        built: Any = RULES.get(name)
        made: AcceptanceRule = built()
        return made

    return MixedRule(rule("top_beta"), rule("speculative_sampling"))


def decode_settings(options: ModelOptions) -> Settings:
    """The command line's settings for these options; files of the folder where none are named."""
    folder = Path(options.model or default_model())
    require(folder.is_dir(), f"{folder}: is no folder; give the one that holds the models.")
    verifier = options.verifier or str(folder / _VERIFIER)
    require(
        Path(verifier).is_file(),
        f"{verifier}: there is no such checkpoint; name the verifier's with --verifier.",
    )
    drafter, checkpoint = _drafter(options, folder)
    codes = options.bpe_codes or str(folder / _CODES)
    require(
        Path(codes).is_file(),
        f"{codes}: there is no such file; name the BPE codes of the models with --bpe-codes.",
    )
    return Settings(
        data=str(folder),
        verifier=verifier,
        drafter_checkpoint=checkpoint,
        source_lang=options.source_lang,
        target_lang=options.target_lang,
        strategy="AR" if drafter == NO_DRAFTER else "specdec",
        drafter="block" if drafter == NO_DRAFTER else drafter,
        drafter_options=options.drafter_options,
        schedule=options.schedule,
        schedule_options=options.schedule_options,
        batch=options.max_rows,
        block_size=options.speculative_steps,
        tokenizer=None if options.tokenizer == "none" else options.tokenizer,
        bpe="subword_nmt",
        bpe_codes=codes,
        device=options.device,
        dtype=options.dtype,
    )


def _drafter(options: ModelOptions, folder: Path) -> tuple[str, str | None]:
    """Name and checkpoint: what was asked for, else what the folder has, else none."""
    there = folder / _DRAFTER
    checkpoint = options.speculative_model or (str(there) if there.is_file() else None)
    if options.drafter is not None:
        return options.drafter, None if options.drafter == NO_DRAFTER else checkpoint
    return ("block", checkpoint) if checkpoint else (NO_DRAFTER, None)
