"""The register of sentence structures and the finishing touches of a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sample_corpus.clause import (
    MAIN,
    QUESTION,
    SUBORDINATE,
    Clause,
    english_clause,
    german_clause,
)
from sample_corpus.sampler import Sampler

Pair = tuple[str, str]
Builder = Callable[[Sampler], Pair]


@dataclass(frozen=True)
class Structure:
    """`held_out` structures combine known parts in a way that training never shows."""

    name: str
    build: Builder
    weight: float
    held_out: bool


REGISTER: dict[str, Structure] = {}


def structure(weight: float = 1.0, held_out: bool = False) -> Callable[[Builder], Builder]:
    """Register a builder under its function's name."""

    def keep(build: Builder) -> Builder:
        name = build.__name__
        if name in REGISTER:
            raise ValueError(f"two structures are named {name}; rename one of them")
        REGISTER[name] = Structure(name, build, weight, held_out)
        return build

    return keep


def finish(text: str, mark: str = ".") -> str:
    """Capital at the start, tidy commas and spaces, the mark at the end."""
    text = re.sub(r"\s+", " ", text).strip().rstrip(",")
    text = re.sub(r"\s+,", ",", text)
    text = re.sub(r",(\s*,)+", ",", text)
    return text[0].upper() + text[1:] + mark


def statement(clause: Clause, front: bool = False) -> Pair:
    """A main clause; with `front`, its time opens the sentence."""
    if not front or clause.time is None:
        return finish(english_clause(clause)), finish(german_clause(clause))
    rest = clause.but(time=None)
    en = f"{clause.time.en} {english_clause(rest)}"
    if len(clause.time.en.split()) > 1:
        en = f"{clause.time.en}, {english_clause(rest)}"
    return finish(en), finish(german_clause(clause, MAIN, clause.time.de))


def question(clause: Clause, en: str = "", de: str = "") -> Pair:
    """A yes-no question, or with a question word on both sides."""
    order = MAIN if de else QUESTION
    return (
        finish(english_clause(clause, QUESTION, en), "?"),
        finish(german_clause(clause, order, de), "?"),
    )


def subordinate(clause: Clause, en: str, de: str) -> Pair:
    """A subordinate clause with its conjunction: verb final in German."""
    return f"{en} {english_clause(clause)}", f"{de} {german_clause(clause, SUBORDINATE)}"


def inverted(clause: Clause, front: str) -> str:
    """A German main clause after a fronted subordinate clause: the finite verb follows it."""
    return german_clause(clause, MAIN, f"{front},")
