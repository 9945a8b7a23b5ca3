"""Dictionary entries become short sentences with the right article."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.corpus import frames
from specdec_plugins.corpus.frames import framed
from tests.refusals import refused


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (("ferry", "Fähre", "noun:f"), "Wir brauchen eine Fähre."),
        (("frog", "Frosch", "noun:m"), "Wir brauchen einen Frosch."),
        (("ship", "Schiff", "noun:n"), "Wir brauchen ein Schiff."),
        (("boats", "Boote", "noun:pl"), "mit den Booten"),
        (("cars", "Autos", "noun:pl"), "mit den Autos"),
        (("hero", "Held", "noun:m"), "der Held"),  # no frame in which it would be "Helden"
        (("to chew", "kauen", "verb"), "Wir müssen kauen."),
    ],
)
def test_articles_agree(entry: tuple[str, str, str], expected: str) -> None:
    made = {pair[1] for number in range(14) if (pair := framed(*entry, number))}
    assert expected in made
    if entry[1] == "Held":
        assert made == {"der Held"}


@pytest.mark.parametrize(
    "entry",
    [
        ("e. g.", "z. B.", "word"),
        ("to give up", "etw. aufgeben", "verb"),
        ("blue", "blau", "word"),
        ("hot dog", "warmes Würstchen", "noun:n"),
    ],
)
def test_what_has_no_frame_is_left_out(entry: tuple[str, str, str]) -> None:
    assert framed(*entry, 0) is None


def test_the_first_german_word_counts(tmp_path: Path) -> None:
    given, output = tmp_path / "words.tsv", tmp_path / "frames.tsv"
    given.write_text("ferry\tFähre\tnoun:f\nferry\tFährschiff\tnoun:n\na b c\tD\tnoun:m\n")
    frames.COMMAND(given, "--output", output)
    [line] = output.read_text(encoding="utf-8").splitlines()
    assert "Fähre" in line
    given.write_text("ferry\tFähre\n")
    refused("line 1: expected 3 columns", frames.COMMAND, given, "--output", output)
