"""Sentences that training must not see: given ones, and sets that are chosen by a rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdec_plugins.corpus.cleaning import HeldOutSentences, choose_hints, keys_of, split_off
from specdec_plugins.corpus.reading import Pair
from tests.refusals import refused


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


WORDS = ["red", "green", "blue", "brown", "white", "black", "grey", "pink"]


def documentation() -> list[Pair]:
    """Sources of words of their own, twenty of which come again with one word changed."""
    pairs = [(" ".join(f"w{i}x{j}" for j in range(12)), f"Satz {i}") for i in range(120)]
    like = [(source.rsplit(" ", 1)[0] + " otherwise", f"{t} b") for source, t in pairs[:20]]
    return [*pairs, *like]


def test_hints_have_a_neighbour_that_is_like_and_not_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rapidfuzz", reason="the extra 'corpus' brings it")
    pairs = documentation()
    held = HeldOutSentences(pairs[:5])
    hints = choose_hints(pairs, held, 8)
    assert len(hints) == 8
    used = [pair for hint in hints for pair in (hint.pair, hint.neighbour)]
    assert len(set(used)) == 16
    for hint in hints:
        assert 0.8 <= hint.similarity <= 0.95
        assert hint.pair[0].split()[:-1] == hint.neighbour[0].split()[:-1]
        assert not {hint.pair, hint.neighbour} & set(pairs[:5])
    assert choose_hints(pairs[::-1], held, 8) == hints
    refused("only 15 pairs have a similar", choose_hints, pairs, held, 16)
    monkeypatch.setattr("specdec_plugins.corpus.cleaning.find_spec", lambda name: None)
    refused("extra 'corpus'", choose_hints, pairs, held, 1)
