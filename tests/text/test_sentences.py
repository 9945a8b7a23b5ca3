"""Texts into sentences and back."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_plugins.app.planning import Part, Text
from specdec_plugins.decoding.requests import RowResult
from specdec_plugins.text.sentences import (
    Split,
    in_small_letters,
    segment,
    sentence_splitter,
    whole_lines,
)

ENGLISH = sentence_splitter("en")


@pytest.mark.parametrize(
    ("text", "split", "sentences"),
    [
        ("", ENGLISH, []),
        ("  \n\t ", ENGLISH, []),
        ("One sentence.", ENGLISH, ["One sentence."]),
        ("He came.  She left. ", ENGLISH, ["He came.", "She left."]),
        ("Dr. Smith came. He left.", ENGLISH, ["Dr. Smith came.", "He left."]),
        ("It costs approx. 5. See Dr. Who.", ENGLISH, ["It costs approx. 5.", "See Dr. Who."]),
        ("a line\nanother\r\n\r\nthird", ENGLISH, ["a line", "another", "third"]),
        ("Is it?\tYes!  No.", ENGLISH, ["Is it?", "Yes!", "No."]),
        ("Name\tthe age\t\t5", ENGLISH, ["Name", "the age", "5"]),
        ("<b\tid=1>an age</b> < 5\t> 4", ENGLISH, ["<b\tid=1>an age</b> < 5", "> 4"]),
        ("Name\tage", whole_lines, ["Name\tage"]),
        ("Is\u00a0it? J.\u00a0Smith came.", ENGLISH, ["Is\u00a0it?", "J.\u00a0Smith came."]),
        # A language that is unknown is split as English.
        ("He came. She left.", sentence_splitter("xx"), ["He came.", "She left."]),
        ("See User.Id. Then (it is.)Stop.", ENGLISH, ["See User.Id.", "Then (it is.)Stop."]),
        ("A b. C d.\nE", whole_lines, ["A b. C d.", "E"]),
    ],
)
def test_sentences(text: str, split: Split, sentences: list[str]) -> None:
    assert segment(text, split)[1::2] == sentences


@pytest.mark.parametrize(
    ("text", "language", "small"),
    [
        ("", None, ""),
        ("IF I AM A C++ FAN, I'M PLAN A.", "en", "If I am a C++ fan, I'm plan A."),
        (
            "IT ISN'T PLAN B, THAT'S O'NEILL'S R&D/X-RAY",
            "en_GB",
            "It isn't plan B, that's O'neill's R&D/X-ray",
        ),
        ("O TREM E O A/B DE C++", "pt", "O trem e o A/B de C++"),
        ("ΟΔΟΣ ΚΑΙ ΟΔΟΣ", "el", "Οδος και οδος"),
        ("5 İ_A E", "tr", "5 i\u0307_a e"),
    ],
)
def test_capitals_in_small_letters(text: str, language: str | None, small: str) -> None:
    assert in_small_letters(text, language) == small


@pytest.mark.parametrize(
    "text", ["  He came.  She left.\n\n\tA third.\r\n", " ", "\u2028A.\u00a0 B.\x0b", "a\x1cb\x85"]
)
def test_white_space_is_kept(text: str) -> None:
    parts = segment(text, ENGLISH)
    how: Any = None  # nothing is decoded: the sentences are copied
    pairs = zip(parts[:-1:2], parts[1::2], strict=True)
    copied = [Part[RowResult](sentence.upper(), how, gap=gap) for gap, sentence in pairs]
    assert Text(copied, parts[-1]).translation == text.upper()


@given(st.text(alphabet=' \n\r\t.?!"()aBÄ9\u00a0\u2028'))
def test_no_character_is_lost(text: str) -> None:
    parts = segment(text, sentence_splitter("de"))
    assert "".join(parts) == text
    assert all(s and s == s.strip() and len(s.splitlines()) == 1 for s in parts[1::2])
    assert all(not gap.strip() for gap in parts[0::2])


def test_lists_and_long_lines_are_split_as_others_are() -> None:
    assert segment("1. Open it. Then go.\n a) Stop.", ENGLISH)[1::2] == [
        "1. Open it.", "Then go.", "a) Stop."
    ]  # fmt: skip
    assert segment("He came. " * 2000, ENGLISH)[1::2] == ["He came."] * 2000


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("zh", "你好。我是小明！你呢？", ["你好。", "我是小明！", "你呢？"]),
        ("hin_Deva", "यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("ar_AR", "كيف حالك؟ أنا بخير.", ["كيف حالك؟", "أنا بخير."]),
        ("deu_Latn", "Am 3. Mai kam z. B. er. Gut.", ["Am 3. Mai kam z. B. er.", "Gut."]),
    ],
)
def test_languages_have_their_own_rules(language: str, text: str, sentences: list[str]) -> None:
    assert segment(text, sentence_splitter(language))[1::2] == sentences


@settings(max_examples=15, deadline=None)
@given(
    st.text(" aA.'\"?()\n", max_size=3),
    st.text(" aA.'\"?()\n", min_size=1, max_size=5),
    st.sampled_from(["", "a b", " B"]),
)
@example("", ".", "a b")
@example("", "a.", "a b")
@example(".'", " ", "b")
@example("", "a", " b")
@example("", "." * 39 + "a ", "")
@example("", "a b\n", "")
@example("", "“", "")
def test_no_text_takes_long(head: str, part: str, tail: str) -> None:
    """The server has one thread for texts, and takes 20,000 characters."""
    text = head + part * (20_000 // len(part)) + tail
    start = time.process_time()
    assert "".join(segment(text, ENGLISH)) == text
    assert time.process_time() - start < 2
