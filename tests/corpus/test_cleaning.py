"""Which training pairs stay, and which are held out: given ones, and sets chosen by a rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdec_plugins.corpus.cleaning import (
    HeldOutSentences,
    LengthRules,
    NearDuplicates,
    PairRules,
    keys_of,
    scripts_of,
    split_off,
    tidy,
    unescape,
)
from specdec_plugins.corpus.reading import Pair
from tests.refusals import refused


@pytest.mark.parametrize(
    ("source", "target", "verdict"),
    [
        ("a b", "c d", None),
        ("a b", "c d e f", None),  # exactly the ratio
        ("a b", "c d e f g", "lengths too unlike"),
        ("a b c d e", "f g", "lengths too unlike"),
        ("", "a", "empty"),
        ("a b", " ", "empty"),
        ("a", "b b", "too short"),
        ("a a a a a a", "b b b b b b", None),  # exactly the longest
        ("a a a a a a", "b b b b b b b", "too long"),
    ],
)
def test_length_rules(source: str, target: str, verdict: str | None) -> None:
    assert LengthRules(2, 6, 2.0).verdict(source, target) == verdict


RULES = PairRules("en", "de", max_words=6)


@pytest.mark.parametrize(
    ("source", "target", "verdict"),
    [
        ("The dog is old.", "Der Hund ist alt.", None),
        ("", "Der Hund.", "empty"),
        ("a b c d e f", "g h i j k l", None),  # exactly the longest
        ("a b c d e f g", "h", "too long"),
        ("a", "b c d e f g", None),  # exactly 2 * 1 + 4
        ("No", "x" * 60, None),
        ("No", "x" * 61, "word too long"),
        ("ab 12", "cd 34", None),  # half of them letters
        ("ab 123", "cd 34", "too few letters"),
        ("Good", "Хорошо", "other script"),
        ("Straße łąka", "Straße ŁĄKA", None),  # a copy, but too short to judge
        ("Straße łąka ș", "STRASSE: Łąka Ș", "copy"),
        ("Open the file", "Open it for the file", "target in the source's language"),
        ("Das ist der Hund", "Das ist der Pudel", "source in the target's language"),
        ("Room 10, 20 of it", "Zimmer 10, 20 davon", None),
        ("Between 10,000 and 200", "Zwischen 10.000 und 300", None),  # one other
        ("On 10 20 30", "Am 11", "too few letters"),
        ("order 10 or 20 now", "Befehle 11 und 21", "other numbers"),
    ],
)
def test_what_a_translation_looks_like(source: str, target: str, verdict: str | None) -> None:
    assert RULES.verdict(source, target) == verdict


def test_letters_follow_the_scripts_of_the_held_out_text() -> None:
    scripts = [scripts_of(["π", "Der Kreis" * 20]), scripts_of(["Σ", "Это хорошо " * 20])]
    assert scripts == [frozenset(), {"CYRILLIC"}]
    rules = PairRules("de", "ru", scripts=scripts)
    assert rules.verdict("Gut so", "Хорошо, Anna") is None
    assert rules.verdict("Gut", "好的") == "other script"
    assert rules.verdict("Хорошо", "Хорошо") == "other script"
    hindi = PairRules("en", "hi", scripts=[frozenset(), scripts_of(["हिन्दी?"])])
    assert hindi.verdict("Hindi?", "हिन्दी?") is None


def test_long_sentences_are_more_alike_and_languages_without_common_words_not_judged() -> None:
    rules = PairRules("en", "de")
    assert rules.verdict("a " * 8, "b " * 20) is None  # 2 * 8 + 4
    assert rules.verdict("a " * 8, "b " * 21) == "lengths too unlike"
    assert PairRules("en", "ro").verdict("Open the file", "Open it for the file") is None


def test_near_duplicates_differ_in_case_digits_and_punctuation() -> None:
    seen = NearDuplicates(per_source=2)

    def has(source: str, target: str) -> bool:
        return seen.has(keys_of((source, target)))

    assert not has("Page 1", "Seite 1")
    assert has("PAGE 20!", "seite 3")
    assert not has("Page 1", "Blatt 1")  # a second translation
    assert has("Page 1", "Buchseite 1")  # a third
    assert not has("Pages", "Seiten")


def test_text_is_composed_stripped_and_unescaped() -> None:
    assert tidy((" fu\u0308r\u00a0", "a")) == ("für", "a")
    assert unescape(("R&amp;D", "&quot;ja&quot;")) == ("R&D", '"ja"')


def test_a_sentence_without_letters_contaminates_nothing() -> None:
    held = HeldOutSentences([("...", "!"), ("Ja?", "Yes")])
    assert keys_of(("...", "A b!")) == ("", "ab")
    assert held.verdict(keys_of(("?!", "-"))) == "kept"
    assert held.verdict(keys_of(("JA", "no"))) == "source is held out"


NAMES = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]


def corpus() -> Iterator[Pair]:
    for name in NAMES:
        yield f"My name is {name}.", f"Ich heisse {name}."
        yield f"MY NAME IS {name}!", f"Mein Name ist {name}."


def test_a_set_is_split_off_by_the_hash_of_letters_and_digits() -> None:
    held = HeldOutSentences([("my name is AK", "x"), ("MY NAME IS al", "y")])
    test, dev = split_off(corpus(), held, "names", (6, 3))
    assert (len(test), len(dev)) == (6, 3)
    sources = [source for source, _ in test + dev]
    assert len(set(sources)) == 9
    # The first target of each, and none that is held out already.
    assert all(source.startswith("My name is") for source in sources)
    assert not {"My name is ak.", "My name is al."} & set(sources)
    shuffled = sorted(corpus(), key=lambda pair: pair[0][::-1])
    again = split_off(shuffled, held, "names", (6, 3))
    assert [keys_of(p)[0] for p in again[0] + again[1]] == [keys_of(p)[0] for p in test + dev]
    # Another corpus has its own order.
    assert split_off(corpus(), held, "others", (6, 3))[0] != test
    refused("only 98 sources to choose from", split_off, corpus(), held, "names", (90, 10))
