"""How much of each draft is kept, against a record: exact decoding hides a drafter gone bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.strategies import EngineStrategy
from specdec_plugins.app.translator import SpeculativeTranslator

PAIR = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "captions.en-de"

CAPTIONS = [
    "A man in a blue jacket is standing next to a car.",
    "Two children are playing in the sand at the beach.",
    "A woman with long hair is reading a book on a bench.",
    "A brown dog jumps over a small fence.",
    "Three people are walking along a busy street at night.",
    "A boy in a red shirt throws a ball to his sister.",
    "An old man is sitting at a table and drinking coffee.",
    "A girl is riding her bicycle through the park.",
    "Several workers are repairing the roof of a house.",
    "A black cat is sleeping on a white sofa.",
]

# Of the rounds that drafted position i, the share that kept it. Higher values are for the record,
# lower ones for repair.
RECORDED = [1.0, 0.8, 0.7, 0.45, 0.45, 0.4, 0.4, 0.35, 0.3, 0.3]


def translator(**settings: Any) -> SpeculativeTranslator:
    return SpeculativeTranslator.from_pretrained(
        str(PAIR),
        source_lang="en",
        target_lang="de",
        verifier=str(PAIR / "verifier.pt"),
        tokenizer="moses",
        bpe="subword_nmt",
        bpe_codes=str(PAIR / "bpe.codes"),
        dtype="float64",
        device="cpu",
        batch=5,
        **settings,
    )


def test_acceptance_by_position_is_as_recorded() -> None:
    drafting = translator(drafter_checkpoint=str(PAIR / "drafter.pt"))
    plain = translator(strategy="AR").translate(CAPTIONS)
    assert [t.tokens for t in drafting.translate(CAPTIONS)] == [t.tokens for t in plain]
    assert isinstance(drafting.strategy, EngineStrategy)
    found = drafting.strategy.stats.acceptance_by_position
    assert found == pytest.approx(RECORDED)
