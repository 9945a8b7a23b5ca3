"""Length rules, and the choice of held-out pairs."""

from __future__ import annotations

import random

import pytest

from specdec_plugins.corpus.cleaning import HeldOut, LengthRules
from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import UserError


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


@pytest.mark.parametrize("rules", [(0, 5, 2.0), (6, 5, 2.0), (1, 5, 0.5)])
def test_rules_that_keep_nothing_are_refused(rules: tuple[int, int, float]) -> None:
    with pytest.raises(UserError, match="keep"):
        LengthRules(*rules)


CORPUS: list[Pair] = [(f"s{i}", f"t{i}") for i in range(40)]


def place_all(held: HeldOut, pairs: list[Pair]) -> dict[str | None, list[Pair]]:
    places: dict[str | None, list[Pair]] = {}
    for pair in pairs:
        places.setdefault(held.place(pair), []).append(pair)
    return places


def test_the_choice_ignores_order_repetition_and_empties() -> None:
    chosen = place_all(HeldOut.choose(CORPUS, 3, 4), CORPUS)
    assert {key: len(pairs) for key, pairs in chosen.items()} == {
        "valid": 3,
        "test": 4,
        "train": 33,
    }
    messy = [*CORPUS, *CORPUS, ("", "x"), ("y", " ")]
    random.Random(1).shuffle(messy)
    again = place_all(HeldOut.choose(messy, 3, 4), messy)
    for split in ("valid", "test"):
        assert sorted(again[split]) == sorted(chosen[split])
    # The second copy of a held-out pair goes nowhere.
    assert sorted(again[None]) == sorted(chosen["valid"] + chosen["test"])


def test_training_never_sees_a_held_out_sentence_on_either_side() -> None:
    held = HeldOut([("s1", "t1")], [])
    pairs = [("s1", "t1"), ("s1", "other"), ("other", "t1"), ("t1", "s1")]
    assert [held.place(pair) for pair in pairs] == ["valid", None, None, "train"]


@pytest.mark.parametrize("number", [21, 41])
def test_too_much_cannot_be_split_off(number: int) -> None:
    with pytest.raises(UserError, match="cannot split"):
        HeldOut.choose(CORPUS, number, 0)
