from __future__ import annotations

from dataclasses import dataclass

import pytest

from specdec_plugins.decoding.registry import Registry
from specdec_plugins.errors import UserError


class Plain:
    @dataclass(frozen=True)
    class Config:
        size: int = 3  # anything


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
    with pytest.raises(UserError, match="thing 'a'.*'sise'.*it knows: size"):
        filled().configure("a", {"sise": 5})
