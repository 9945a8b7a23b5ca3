"""Texts into sentences and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.serving.model import sentence_splitter
from specdec_plugins.serving.planning import Segments, segment, whole


def upper(text: str, language: str = "en") -> str:
    segments = segment(text, sentence_splitter(language))
    return segments.join([sentence.upper() for sentence in segments.sentences])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("  \n\t ", []),
        ("One sentence.", ["One sentence."]),
        ("He came.  She left. ", ["He came.", "She left."]),
        ("Dr. Smith came. He left.", ["Dr. Smith came.", "He left."]),
        ("a line\nanother\r\n\r\nthird", ["a line", "another", "third"]),
        ("Is it?\tYes!  No.", ["Is it?\tYes!", "No."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert segment(text, sentence_splitter("en")).sentences == sentences


@pytest.mark.parametrize(
    "text",
    [
        "  He came.  She left.\n\n\tA third.\r\n",
        "no end",
        " ",
        "\u2028A.\u00a0 B.\x0b",
        "a\x1cb\x85",
    ],
)
def test_white_space_is_kept(text: str) -> None:
    assert upper(text) == text.upper()


@given(st.text(alphabet=' \n\r\t.?!"()aBÄ9\u00a0\u2028'))
def test_no_character_is_lost(text: str) -> None:
    segments = segment(text, sentence_splitter("de"))
    assert segments.join(segments.sentences) == text
    assert all(s and s == s.strip() and len(s.splitlines()) == 1 for s in segments.sentences)
    assert all(not gap.strip() for gap in segments.gaps)


def test_a_splitter_that_loses_characters_is_not_followed() -> None:
    assert segment("one. two.", lambda line: ["one."]).sentences == ["one. two."]


def test_whole_lines() -> None:
    assert segment("A b. C d.\nE", whole).sentences == ["A b. C d.", "E"]


def test_an_unknown_language_is_split_as_english() -> None:
    assert segment("He came. She left.", sentence_splitter("xx")).sentences[1] == "She left."


def test_join_wants_every_sentence() -> None:
    with pytest.raises(ValueError, match="argument"):
        Segments(["a", "b"], ["", " ", ""]).join(["x"])
