from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from specdec_plugins.decoding.registry import Registry
from specdec_plugins.errors import UserError


class Plain:
    @dataclass(frozen=True)
    class Config:
        size: int = 3  # anything
        share: float | None = None  # anything
        deep: bool = False  # anything


def filled() -> Registry[Plain]:
    registry: Registry[Plain] = Registry("thing")
    registry.register("b")(Plain)
    registry.register("a")(Plain)
    return registry


def test_register_returns_the_class_and_names_are_sorted() -> None:
    registry = filled()
    assert registry.get("a") is Plain
    assert registry.names() == ["a", "b"]


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="thing 'a' is registered twice"):
        filled().register("a")(Plain)


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match="no thing named 'c'; choose one of: a, b"):
        filled().get("c")


def test_options_become_the_config() -> None:
    cls, config = filled().configure("a", {"size": 5})
    assert (cls, config) == (Plain, Plain.Config(5))
    assert filled().configure("a")[1] == Plain.Config(3)
    with pytest.raises(UserError, match="no option 'sise' of thing 'a'; it knows: size"):
        filled().configure("a", {"sise": 5})


@pytest.mark.parametrize("good", [{"share": 1}, {"share": None}, {"share": 0.5}, {"deep": True}])
def test_values_of_the_fields_type_are_taken(good: dict[str, Any]) -> None:
    assert filled().configure("a", good)[1] == Plain.Config(**good)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": "two"}, "'size' of thing 'a' must be a whole number, not 'two'"),
        ({"size": 2.5}, "a whole number, not 2.5"),
        ({"size": True}, "a whole number, not True"),
        ({"size": None}, "a whole number, not None"),
        ({"share": "much"}, "a number or null, not 'much'"),
        ({"share": False}, "a number or null, not False"),
        ({"deep": "yes"}, "true or false, not 'yes'"),
        ({"deep": 1}, "true or false, not 1"),
    ],
)
def test_values_of_another_type_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        filled().configure("a", wrong)
