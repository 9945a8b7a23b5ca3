"""Requests, their parameters and results, and the registry that options are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from specdec_plugins.decoding.engine import EngineConfig
from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.requests import DecodeParams, Request
from tests.refusals import refused


@pytest.mark.parametrize(
    ("kind", "field", "bad", "good"),
    [
        (DecodeParams, "block_size", -1, 0),
        (DecodeParams, "max_len", 0, 1),
        (DecodeParams, "min_len", -1, 0),
        (DecodeParams, "beta", 0, 1),
        (DecodeParams, "tau", -0.1, 0.0),
        (DecodeParams, "temperature", 0.0, 0.01),
        (DecodeParams, "temperature", 1e-40, 1e-6),  # a float32 distribution would be none
        (DecodeParams, "top_k", -1, 0),
        (DecodeParams, "top_p", 0.0, 1.0),
        (DecodeParams, "top_p", 1.1, 0.01),
        (DecodeParams, "top_p", 1e-46, 1e-6),
        (DecodeParams, "seed", 2**63, 2**63 - 1),
        (DecodeParams, "max_len", 2**63, 1),
        (DecodeParams, "tau", float("nan"), float("inf")),
        (DecodeParams, "temperature", float("nan"), 9.0),
        (DecodeParams, "top_p", float("nan"), 0.5),
        (EngineConfig, "max_rows", 0, 1),
    ],
)
def test_settings_are_checked(kind: Any, field: str, bad: Any, good: Any) -> None:
    refused(field.replace("_size", " size"), kind, **{field: bad})
    assert getattr(kind(**{field: good}), field) == good


def test_a_request_needs_a_source_and_room_to_decode() -> None:
    refused("'a' has an empty source", Request, "a", [])
    told = "'a'.*prefix of 2 tokens leaves nothing.*max_len 2"
    refused(told, Request, "a", [2], DecodeParams(max_len=2), [5, 6])
    assert Request("a", [2], DecodeParams(max_len=3), [5, 6]).forced_ids == [5, 6]


class Plain:
    @dataclass(frozen=True)
    class Config:
        size: int = 3  # anything
        share: float | None = None  # anything
        deep: bool = False  # anything


@pytest.fixture
def things() -> Registry[Plain]:
    registry: Registry[Plain] = Registry("thing")
    registry.register("b")(Plain)
    registry.register("a")(Plain)
    return registry


def test_names_are_given_once_and_sorted(things: Registry[Plain]) -> None:
    assert things.get("a") is Plain
    assert things.names() == ["a", "b"]
    with pytest.raises(ValueError, match="thing 'a' is registered twice"):
        things.register("a")(Plain)
    refused("no thing named 'c'; choose one of: a, b", things.get, "c")


@pytest.mark.parametrize(
    "good", [{}, {"size": 5}, {"share": 1}, {"share": None}, {"share": 0.5}, {"deep": True}]
)
def test_options_become_the_config(good: dict[str, Any], things: Registry[Plain]) -> None:
    assert things.configure("a", good) == (Plain, Plain.Config(**good))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sise": 5}, "no option 'sise' of thing 'a'; its options: size"),
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
def test_unknown_options_and_values_of_another_type_are_refused(
    wrong: dict[str, Any], words: str, things: Registry[Plain]
) -> None:
    refused(words, things.configure, "a", wrong)
