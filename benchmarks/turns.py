"""Several ways to decode with networks that are loaded once, taking turns on the same sentences."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.comparison import Decoding
from benchmarks.turn_log import Turn, TurnLog
from specdec_plugins.app.loading import build_decoder
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.strategies import EngineDecoder
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import WEIGHTS_SUFFIX
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.formats.fairseq_export import to_checkpoint
from specdec_plugins.formats.model_files import read_model

NUM_WARM_UP = 3  # sentences that every way decodes first, not counted


@dataclass(frozen=True)
class Contender:
    """One way to decode."""

    name: str
    translator: SpeculativeTranslator


@contextmanager
def hushed() -> Iterator[None]:
    """Keep from users what fairseq and the libraries below it tell their authors."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)
            yield
    finally:
        logging.disable(before)


def variant(translator: SpeculativeTranslator, **changes: Any) -> SpeculativeTranslator:
    """The same networks under other settings: strategy AR, a tolerance, a shorter block.

    translator: one of strategy specdec. Raises UserError where a setting cannot be.
    """
    settings = replace(translator.settings, **changes)
    strategy, limits = translator.decoder, translator.limits
    assert isinstance(strategy, EngineDecoder)
    method = strategy.method
    if settings.drafts:
        method = replace(method, rule=settings.acceptance)
    else:
        method = Method(None, Exact(), Constant(Constant.Config()))
    require(
        (settings.block_size or 0) <= limits.block_size,
        f"--block-size {settings.block_size} is more than the {limits.block_size} that the "
        "drafter was loaded for.",
    )
    limits = replace(limits, block_size=settings.block_size or limits.block_size)
    built = build_decoder(settings, strategy.verifier, method, strategy.config.with_scores)
    return SpeculativeTranslator(settings, translator.codec, built, limits)


def decode_in_turns(
    ways: Sequence[Contender],
    sentences: Sequence[Sentence],
    on_done: Callable[[], object] = lambda: None,
    batch: int = 1,
    log: TurnLog | None = None,
) -> list[Decoding]:
    """Decode every sentence in every way, a batch after the other; a Decoding for each way.

    The order of the ways rotates from batch to batch, so that a noisy machine disturbs all of
    them alike. on_done is called after each sentence of each way. batch: sentences of like length
    that decode at once, at most as many as the translators were made for; each takes an even share
    of their time. log: turns of an earlier run of the same, which are taken as they are, and where
    all others go.
    """
    for way in ways:
        way.translator.translate_sentences(sentences[:NUM_WARM_UP])
    logged = [] if log is None else list(log.turns)
    done: list[dict[int, Mapping[str, Any]]] = [{} for _ in ways]
    for number, together in enumerate(_batches(sentences, batch)):
        if number < len(logged):
            turn = logged[number]
        else:
            turn = _take_turn(ways, together, number)
            if log is not None:
                log.add(turn)
        for found, records in zip(done, turn, strict=True):
            found.update({record["id"]: record for record in records})
            for _ in records:
                on_done()
    return [
        Decoding.of_records(way.name, [found[sentence.number] for sentence in sentences])
        for way, found in zip(ways, done, strict=True)
    ]


def _take_turn(ways: Sequence[Contender], together: Sequence[Sentence], number: int) -> Turn:
    """What each way makes of these sentences; the number of the turn says who begins."""
    made: list[Sequence[Mapping[str, Any]]] = [[] for _ in ways]
    for index in range(len(ways)):
        at = (index + number) % len(ways)
        translations = ways[at].translator.translate_sentences(together)
        share = max(t.seconds for t in translations) / len(together)
        made[at] = [replace(t, seconds=share).to_dict() for t in translations]
    return made


def _batches(sentences: Sequence[Sentence], size: int) -> Iterator[Sequence[Sentence]]:
    alike = sentences if size == 1 else sorted(sentences, key=lambda s: len(s.text))
    for start in range(0, len(alike), size):
        yield alike[start : start + size]


def search_settings(settings: Settings, folder: str | Path) -> Settings:
    """Settings of fairseq's own search with the same verifier; the search loads checkpoints alone.

    folder: where a bundle's verifier is written as a checkpoint; it must stay until that is loaded.
    """
    verifier = settings.verifier
    assert verifier is not None  # Settings refuses it for everything but the drafter alone
    if Path(verifier).suffix == WEIGHTS_SUFFIX:
        assert settings.source_lang is not None
        assert settings.target_lang is not None  # a bundle says both
        model = read_model(verifier)
        verifier = str(Path(folder) / "verifier.pt")
        save_checkpoint(to_checkpoint(model, settings.source_lang, settings.target_lang), verifier)
    return replace(
        settings,
        strategy="fairseq",
        greedy_like="published",
        verifier=verifier,
        drafter_checkpoint=None,
        rule=None,
        beta=1,
        tau=0.0,
    )
