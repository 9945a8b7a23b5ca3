"""The model that a server serves, loaded as the command line loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.defaults import NO_MODEL, check_folder, make_settings, settings_from_files
from specdec_plugins.app.loading import load_parts
from specdec_plugins.app.settings import VERIFIER, Settings
from specdec_plugins.app.types import Limits
from specdec_plugins.decoding.beam import BeamDecoder, Branching, Lanes
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import CODES, default_bundle, is_bundle
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.pretrained.config import is_pretrained
from specdec_plugins.serving.settings import MODEL, ServerSettings


@dataclass(frozen=True)
class ServedModel:
    """A loaded pair of models."""

    settings: Settings
    codec: Codec  # between the languages of a request that names none
    decoder: SpeculativeDecoder
    searcher: BeamDecoder  # for requests with a beam
    limits: Limits

    def open(self) -> Lanes:
        return Lanes(self.decoder.open(), self.searcher.open())

    @property
    def name(self) -> str:
        return Path(self.settings.data).resolve().name

    @property
    def drafter_name(self) -> str | None:
        return self.settings.drafter if self.settings.drafts else None

    @property
    def eos(self) -> int:
        return self.decoder.verifier.special.eos


def load_model(
    settings: Settings, max_rows: int = ServerSettings.max_rows, part_times: bool | None = None
) -> ServedModel:
    """Load everything. Raises UserError if a file is missing or does not fit the others.

    max_rows, part_times: as of the server's settings.
    """
    codec, decoder, limits = load_parts(settings)
    assert isinstance(decoder, SpeculativeDecoder)
    method = Method(decoder.method.drafter, MixedRule(), decoder.method.schedule)
    constraints = decoder.config.constraints
    config = replace(decoder.config, max_rows=max_rows, measure_time=part_times)
    if settings.usual_search[1] == "fairseq":
        constraints = constraints.banning(decoder.verifier.special.pad)  # as its search does
    own = EngineConfig(max(1, max_rows // 4), constraints=constraints, measure_time=part_times)
    return ServedModel(
        settings=settings,
        codec=codec,
        decoder=SpeculativeDecoder(decoder.verifier, method, config),
        searcher=BeamDecoder(cast(Branching, decoder.verifier), own),
        limits=limits,
    )


def served_settings(given: Mapping[str, Any]) -> Settings:
    """The settings of a model to serve, of what is given of them: raw text, and drafts if they pay.

    Raises UserError for an impossible value, or if a file is missing.
    """
    folder = local_model(given.get("data") or default_bundle())
    check_folder(folder)
    require(
        folder.is_dir(),
        f"{folder}: not a folder; give the folder that holds the models, or ORG/NAME of the hub.",
    )
    given = {**{n: given[n] for n in MODEL if n in given}, "data": str(folder)}
    if not is_bundle(folder) and not is_pretrained(folder):
        given = _checkpoints(folder, given)
    settings = make_settings(given)
    may_choose = given.get("schedule") is None and not settings.cuda_graphs
    if settings.drafts and may_choose and settings.schedule == "constant":
        settings = make_settings({**given, "schedule": "few_rows"})
    return settings


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
