"""How much of each draft is kept, against a record: exact decoding hides a drafter gone bad."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.engine import SpeculativeDecoder
from tests.bundles import CAPTIONS

TEXT = [
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

# Of the 20 rounds, how many drafted position i, and how many kept it. More kept is for the record,
# less for repair; a sentence that is thought to end earlier drafts less.
DRAFTED = [20, 16, 15, 12, 12, 11, 10, 9, 9, 8]
KEPT = [20, 16, 14, 9, 9, 8, 8, 7, 6, 6]


def translator(**settings: Any) -> SpeculativeTranslator:
    return SpeculativeTranslator.from_pretrained(
        str(CAPTIONS), dtype="float64", device="cpu", batch=5, **settings
    )


def test_acceptance_by_position_is_as_recorded() -> None:
    drafting, plain = translator(), translator(strategy="AR").translate(TEXT)
    assert [t.tokens for t in drafting.translate(TEXT)] == [t.tokens for t in plain]
    assert isinstance(drafting.decoder, SpeculativeDecoder)
    stats = drafting.decoder.stats
    assert (stats.drafted_at, stats.accepted_at) == (DRAFTED, KEPT)
    shares = [kept / drafted for kept, drafted in zip(KEPT, DRAFTED, strict=True)]
    assert stats.acceptance_by_position == pytest.approx(shares)
