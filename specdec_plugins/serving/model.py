"""The model that a server serves, loaded as the command line loads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.loading import (
    NO_MODEL,
    VERIFIER,
    load_parts,
    make_settings,
    settings_from_files,
)
from specdec_plugins.app.options import given_to
from specdec_plugins.app.settings import EXACT, Settings
from specdec_plugins.app.types import Limits
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.errors import imported, require
from specdec_plugins.formats.bundle import CODES, default_bundle, is_bundle
from specdec_plugins.formats.pretrained.config import is_pretrained
from specdec_plugins.formats.pretrained.languages import plain
from specdec_plugins.serving.settings import NONE, ModelOptions

Split = Callable[[str], Sequence[str]]
_SHOWN = 20  # characters at either end of a long word by which a line is split


@dataclass(frozen=True)
class ServedModel:
    """A loaded pair of models."""

    settings: Settings
    codec: Codec
    splitter: Callable[[str | None], Split]  # by language: splits a line into sentences
    decoder: SpeculativeDecoder
    limits: Limits

    @property
    def name(self) -> str:
        """The name of its folder."""
        return Path(self.settings.data).resolve().name

    @property
    def source_lang(self) -> str | None:
        """The source language if a request names none; None = a request must."""
        return self.codec.source_lang

    @property
    def target_lang(self) -> str | None:
        """The target language, likewise."""
        return self.codec.target_lang

    @property
    def drafter_name(self) -> str | None:
        return self.settings.drafter if self.settings.drafts else None

    @property
    def can_sample(self) -> bool:
        return self.decoder.method.rule.samples

    @property
    def eos(self) -> int:
        return self.decoder.verifier.special.eos

    @property
    def unk(self) -> int:
        return self.decoder.verifier.special.unk


def load_model(options: ModelOptions) -> ServedModel:
    """Load everything. Raises UserError if a file is missing or does not fit the others."""
    settings = decode_settings(options)
    codec, decoder, limits = load_parts(settings)
    assert isinstance(decoder, SpeculativeDecoder)
    method = Method(decoder.method.drafter, MixedRule(), decoder.method.schedule)
    constraints = decoder.config.constraints
    config = EngineConfig(
        options.max_rows, constraints=constraints, measure_time=options.part_times
    )
    return ServedModel(
        settings=settings,
        codec=codec,
        splitter=whole_lines if codec.reads_texts else sentence_splitter,
        decoder=SpeculativeDecoder(decoder.verifier, method, config),
        limits=limits,
    )


def decode_settings(options: ModelOptions) -> Settings:
    """The command line's settings for these options; the folder provides what they leave open.

    Raises UserError if the folder is neither a bundle, nor a model from transformers, nor one with
    checkpoints.
    """
    folder = Path(options.data or default_bundle())
    require(folder.is_dir(), f"{folder}: not a folder; give the folder that holds the models.")
    named = given_to(Settings, vars(options))
    given = {name: value for name, value in named.items() if value is not None}
    if options.drafter == NONE:
        given["strategy"] = "AR"
        del given["drafter"]
    if options.tokenizer == NONE:
        given["tokenizer"] = None
    if options.bpe_codes is not None:
        given["bpe"] = "subword_nmt"
    if not is_bundle(folder) and not is_pretrained(folder):
        given = _checkpoints(folder, given)
    given["data"] = str(folder)
    settings = make_settings(given)
    if settings.drafts and options.schedule is None and settings.schedule == "constant":
        settings = make_settings({**given, "schedule": "few_rows"})
    return settings


def request_defaults(options: ModelOptions) -> dict[str, Any]:
    """Defaults of requests that come from the model's files: the tolerance."""
    settings = decode_settings(options)
    return {name: getattr(settings, name) for name in EXACT}


def _checkpoints(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a folder that has none. Raises UserError if a file is missing."""
    settings = settings_from_files(folder, given)
    require("verifier" in settings or any(folder.glob("dict.*.txt")), f"{folder}: {NO_MODEL}")
    for field, file, what in (
        ("verifier", VERIFIER, "checkpoint; give the verifier's with --verifier."),
        ("bpe_codes", CODES, "file; give the models' BPE codes with --bpe-codes."),
    ):
        path = Path(settings.get(field) or folder / file)
        require(path.is_file(), f"{path}: no such {what}")
    return settings


def whole_lines(language: str | None) -> Split:
    """No splitting, for models that read whole texts, such as summarisers."""
    return lambda line: [line]


def sentence_splitter(language: str | None) -> Split:
    """Splits by the rules of a language, or of English if it has none."""
    package = imported("sentence_splitter", "serve")
    code = plain(language or "en")
    folder = Path(package.__file__).parent / "non_breaking_prefixes"
    return _splitter(code if f"{code}.txt" in os.listdir(folder) else "en")


@cache
def _splitter(code: str) -> Split:
    """The package's splitter of one of its languages, in time that grows as the text does.

    The package searches each word, in cubic time if it is a run of dots. Its rules look only at
    the ends of words and at the spaces between them, so it is shown both ends of long words.
    """
    split = imported("sentence_splitter", "serve").SentenceSplitter(code).split

    def sentences(line: str) -> list[str]:
        words = [word for word in line.strip().split(" ") if word]
        if len(words) < 2:
            return words
        shown = (w if len(w) <= 2 * _SHOWN else w[:_SHOWN] + w[-_SHOWN:] for w in words)
        left = iter(words)
        return [" ".join(islice(left, one.count(" ") + 1)) for one in split(" ".join(shown))]

    return sentences
