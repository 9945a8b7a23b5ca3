"""Quotation marks, dashes and ellipses of a text and of its translation."""

from __future__ import annotations

import pytest

from specdec_plugins import SpeculativeTranslator
from specdec_plugins.formats.typography import typeset_like
from tests.bundles import BUNDLED


@pytest.mark.parametrize(
    ("source", "line", "wanted"),
    [
        ('He said "Go" - now...', 'Er sagte "Los" - jetzt...', 'Er sagte "Los" - jetzt...'),
        ("“Go!” he said. “Now.”", '"Los!", sagte er. "Jetzt."', "„Los!“, sagte er. „Jetzt.“"),
        ('a “b” and 6" c', 'ein "B" und 6" c', 'ein "B" und 6" c'),  # which is which?
        ("It’s Anna’s…", "Wie geht's...", "Wie geht’s…"),
        ("It’s 'it'… or ...", "Das ist 'es'... oder ...", "Das ist 'es'... oder ..."),
        ("a – b – c", "A - B - C", "A – B – C"),
        ("a — b - c", "A - B - C", "A — B - C"),
        ("a—b", "A - B-C", "A — B-C"),
        ("9–17, Monday–Friday", "9-17, Montag-Freitag", "9–17, Montag–Freitag"),
        ("an e-mail of 9–17", "eine E-Mail von 9-17", "eine E-Mail von 9–17"),
        ("9–17", "9-17 im IT-Team", "9–17 im IT-Team"),
        ("Monday–Friday", "Montag-Freitag im IT-Team", "Montag-Freitag im IT-Team"),
        ("9–17 and 1-2", "9-17 und 1-2", "9-17 und 1-2"),
    ],
)
def test_marks_are_as_typographic_as_those_of_the_source(
    source: str, line: str, wanted: str
) -> None:
    assert typeset_like(source, line, "de") == wanted


@pytest.mark.parametrize(
    ("language", "wanted"), [("en", "“a”"), ("ro", "„a”"), ("fr", "«\u00a0a\u00a0»"), ("xx", "“a”")]
)
def test_quotation_marks_are_those_of_the_language(language: str, wanted: str) -> None:
    assert typeset_like("„a“", '"a"', language) == wanted


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ('Click "Save" - or not.', "Click “Save” – or not."),
        ('Click "<b>Save</b>" - or not.', "Click “<b>Save</b>” – or not."),
    ],
)
def test_a_translation_has_the_marks_of_its_source(typed: str, text: str) -> None:
    model = SpeculativeTranslator.from_pretrained(str(BUNDLED), device="cpu")
    said = str(model.translate(text))
    assert "„" in said
    assert said.translate(str.maketrans("„“–", '""-')) == str(model.translate(typed))
    assert [*model.stream(text)][-1] == said
