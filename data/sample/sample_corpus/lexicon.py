"""Reads the tables of `lexicon/` into frozen records, indexed by meaning."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

TABLES = Path(__file__).resolve().parent.parent / "lexicon"


@dataclass(frozen=True)
class Noun:
    """`gender` is m, f, n or p (plural only); an empty plural marks a mass noun."""

    en: str
    en_plural: str
    de: str
    gender: str
    de_genitive: str
    de_plural: str
    types: frozenset[str]

    @property
    def is_mass(self) -> bool:
        return not self.de_plural

    @property
    def is_weak(self) -> bool:
        """Weak masculines take their ending in every case but the nominative singular."""
        return self.gender == "m" and self.de_genitive in (self.de + "n", self.de + "en")


@dataclass(frozen=True)
class Verb:
    """`government` is "", acc, dat, dat+acc, dir, or preposition+case; `flags` hold any of
    h (habit), p (progressive), x (passive), i (intended act), n (state), d (habit with
    one definite thing), g (plural things), T (recipient with to), c (drawn by name only)."""

    en: str
    en_past: str
    en_participle: str
    en_extra: str
    de: str
    prefix: str
    de_3sg: str
    de_preterite: str
    de_participle: str
    auxiliary: str
    reflexive: str
    government: str
    objects: tuple[str, ...]
    flags: str
    places: tuple[str, ...]
    manner: str


@dataclass(frozen=True)
class Adjective:
    """`comparative` and `superlative` are "-" where comparing makes no sense."""

    en: str
    de: str
    attributive: str
    comparative: str
    superlative: str
    types: frozenset[str]


@dataclass(frozen=True)
class Place:
    """A noun with the prepositions for being there and for going there."""

    noun: Noun
    en_at: str
    de_at: str
    de_to: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Phrase:
    """An adverbial that both languages write as fixed text."""

    en: str
    de: str


@dataclass
class Lexicon:
    nouns: list[Noun] = field(default_factory=list)
    verbs: list[Verb] = field(default_factory=list)
    adjectives: list[Adjective] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    phrases: dict[str, list[Phrase]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    geography: dict[str, list[Phrase]] = field(default_factory=dict)

    def noun(self, en: str) -> Noun:
        return next(noun for noun in self.nouns if noun.en == en)

    def of_type(self, *wanted: str) -> list[Noun]:
        """Nouns of any of these types; a lemma counts as a type of its own."""
        chosen = set(wanted)
        return [noun for noun in self.nouns if noun.types & chosen or noun.en in chosen]


def read_table(name: str) -> list[dict[str, str]]:
    """Rows of a table; a row of another width than the head is an error that names its line."""
    path = TABLES / name
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    head = rows[0]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(head):
            raise ValueError(
                f"{path}, line {number}: {len(row)} columns where the first line has {len(head)}; "
                "separate the columns by single tabs"
            )
    return [dict(zip(head, row, strict=True)) for row in rows[1:]]


def split(cell: str) -> tuple[str, ...]:
    return tuple(part for part in cell.split(",") if part)


def grouped(name: str, key: str) -> dict[str, list[Phrase]]:
    groups: dict[str, list[Phrase]] = defaultdict(list)
    for row in read_table(name):
        groups[row[key]].append(Phrase(row["en"], row["de"]))
    return dict(groups)


def load() -> Lexicon:
    lexicon = Lexicon(phrases=grouped("adverbs.tsv", "kind"))
    lexicon.geography = grouped("geography.tsv", "kind")
    for row in read_table("nouns.tsv"):
        *forms, types = row.values()
        lexicon.nouns.append(Noun(*forms, types=frozenset(split(types))))
    for row in read_table("verbs.tsv"):
        *forms, objects, flags, places, manner = row.values()
        lexicon.verbs.append(Verb(*forms, split(objects), flags, split(places), manner))
    for row in read_table("adjectives.tsv"):
        *forms, types = row.values()
        lexicon.adjectives.append(Adjective(*forms, types=frozenset(split(types))))
    by_name = {noun.en: noun for noun in lexicon.nouns}
    for row in read_table("places.tsv"):
        en, *prepositions, groups = row.values()
        lexicon.places.append(Place(by_name[en], *prepositions, groups=split(groups)))
    for row in read_table("names.tsv"):
        lexicon.names.setdefault(row["kind"], []).append(row["name"])
    return lexicon
