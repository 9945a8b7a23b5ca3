"""Sentences that training must not see: given ones, and sets that are chosen by a rule."""

from __future__ import annotations

from collections.abc import Iterator

from specdec_plugins.corpus.cleaning import HeldOutSentences, keys_of, split_off
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
