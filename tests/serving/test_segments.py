"""Texts into sentences and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.serving.model import Split, sentence_splitter
from specdec_plugins.serving.planning import TextPlan, segment

ENGLISH = sentence_splitter("en")


@pytest.mark.parametrize(
    ("text", "split", "sentences"),
    [
        ("", ENGLISH, []),
        ("  \n\t ", ENGLISH, []),
        ("One sentence.", ENGLISH, ["One sentence."]),
        ("He came.  She left. ", ENGLISH, ["He came.", "She left."]),
        ("Dr. Smith came. He left.", ENGLISH, ["Dr. Smith came.", "He left."]),
        ("a line\nanother\r\n\r\nthird", ENGLISH, ["a line", "another", "third"]),
        ("Is it?\tYes!  No.", ENGLISH, ["Is it?\tYes!", "No."]),
        # A language that is unknown is split as English.
        ("He came. She left.", sentence_splitter("xx"), ["He came.", "She left."]),
        ("A b. C d.\nE", lambda line: [line], ["A b. C d.", "E"]),
        # A splitter that loses characters is not followed.
        ("one. two.", lambda line: ["one."], ["one. two."]),
    ],
)
def test_sentences(text: str, split: Split, sentences: list[str]) -> None:
    assert segment(text, split)[1::2] == sentences


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
    parts = segment(text, ENGLISH)
    plan = TextPlan([parts], [], seed=0)
    assert plan.join([sentence.upper() for sentence in parts[1::2]]) == [text.upper()]


@given(st.text(alphabet=' \n\r\t.?!"()aBÄ9\u00a0\u2028'))
def test_no_character_is_lost(text: str) -> None:
    parts = segment(text, sentence_splitter("de"))
    assert "".join(parts) == text
    assert all(s and s == s.strip() and len(s.splitlines()) == 1 for s in parts[1::2])
    assert all(not gap.strip() for gap in parts[0::2])
