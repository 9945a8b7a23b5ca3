"""Noun phrases, prepositional phrases and pronouns in both languages at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sample_corpus import english, german
from sample_corpus.lexicon import Adjective, Noun, Phrase, Place

POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser",
               "their": "ihr", "Your": "Ihr"}  # fmt: skip
DETERMINERS = {"the": "d", "a": "ein", "this": "dies", "every": "jed", "which": "welch",
               "": "", "no": "kein", **POSSESSIVES}  # fmt: skip
PRONOUNS_EN = {"I": "me", "we": "us", "he": "him", "she": "her", "they": "them", "you": "you",
               "it": "it"}  # fmt: skip
PRONOUN_KEYS = {"I": (1, "s"), "we": (1, "p"), "he": (3, "m"), "she": (3, "f"), "they": (3, "p"),
                "you": (2, "s")}  # fmt: skip


@dataclass(frozen=True)
class NP:
    """A noun phrase: English text and the four German case forms (nom, acc, dat, gen).

    `gender` is m, f, n or p; `natural` says which possessive refers back to it.
    """

    en: str
    de: tuple[str, str, str, str]
    gender: str = "m"
    person: int = 3
    plural: bool = False
    definite: bool = True
    natural: str = "it"
    en_object: str = ""
    is_pronoun: bool = False

    def case(self, name: str) -> str:
        return self.de[german.CASES.index(name)]

    @property
    def column(self) -> str:
        return "p" if self.plural else self.gender

    @property
    def as_object(self) -> str:
        return self.en_object or self.en


def words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def natural_of(entry: Noun, plural: bool) -> str:
    if plural:
        return "their"
    return {"m": "his", "f": "her"}.get(entry.gender, "it")


def noun_phrase(
    entry: Noun,
    det: str = "the",
    adjectives: tuple[Adjective, ...] = (),
    plural: bool = False,
    count: Phrase | None = None,
    det_de: str | None = None,
) -> NP:
    """Determiner, count, adjectives and noun, agreeing; `det_de` overrides the German stem."""
    plural = plural or entry.gender == "p"
    gender = "p" if plural else entry.gender
    stem = DETERMINERS[det] if det_de is None else det_de
    if plural and stem == "ein":
        stem = ""
    forms = []
    for case in german.CASES:
        endings = [german.adjective(a.attributive, stem, case, gender) for a in adjectives]
        head = german.noun(entry, case, plural)
        number = count.de if count else ""
        forms.append(words(german.determiner(stem, case, gender), number, ", ".join(endings), head))
    noun_en = entry.en_plural if plural else entry.en
    body = words(count.en if count else "", ", ".join(a.en for a in adjectives), noun_en)
    lead = english.article(body) if det == "a" else det.lower()
    if det == "this" and plural:
        lead = "these"
    return NP(
        words("" if plural and det == "a" else lead, body),
        (forms[0], forms[1], forms[2], forms[3]),
        gender=gender if gender != "p" else "m",
        plural=plural,
        definite=det not in ("a", "", "no") and stem != "kein",
        natural=natural_of(entry, plural),
    )


def pronoun(en: str) -> NP:
    person, kind = PRONOUN_KEYS[en]
    nom, acc, dat = german.PERSONAL[(person, kind)].split()
    owners = {"I": "my", "we": "our", "he": "his", "she": "her", "they": "their", "you": "your"}
    return NP(
        en, (nom, acc, dat, ""), kind if kind in "mf" else "m", person, kind == "p",
        natural=owners[en], en_object=PRONOUNS_EN[en], is_pronoun=True,
    )  # fmt: skip


def formal_you() -> NP:
    """The polite form: third person plural in German, one person in English."""
    return NP("you", ("Sie", "Sie", "Ihnen", ""), "m", 2, True, natural="Your", is_pronoun=True)


def name(text: str, gender: str) -> NP:
    return NP(
        text, (text, text, text, text + "s"), gender, natural="her" if gender == "f" else "his"
    )


def titled(family: str, gender: str) -> NP:
    if gender == "f":
        forms = (f"Frau {family}", f"Frau {family}", f"Frau {family}", f"Frau {family}s")
        return NP(f"Mrs {family}", forms, "f", natural="her")
    forms = (f"Herr {family}", f"Herrn {family}", f"Herrn {family}", f"Herrn {family}s")
    return NP(f"Mr {family}", forms, "m", natural="his")


def coordinate(first: NP, second: NP, en: str = "and", de: str = "und") -> NP:
    forms = tuple(f"{a} {de} {b}" for a, b in zip(first.de, second.de, strict=True))
    return NP(
        f"{first.as_object} {en} {second.as_object}", (forms[0], forms[1], forms[2], forms[3]),
        plural=True, natural="their", definite=first.definite,
    )  # fmt: skip


def of(part: NP, whole: NP) -> NP:
    """Genitive attribute: the roof of the house, das Dach des Hauses."""
    forms = tuple(f"{form} {whole.case('gen')}" for form in part.de)
    en = f"{part.en} of {whole.as_object}"
    return replace(part, en=en, en_object="", de=(forms[0], forms[1], forms[2], forms[3]))


def owned(owner: str, entry: Noun, adjectives: tuple[Adjective, ...] = ()) -> NP:
    """Anna's old bicycle, Annas altes Fahrrad (strong endings, as no article stands)."""
    bare = noun_phrase(entry, "", adjectives)
    forms = tuple(f"{owner}s {form}" for form in bare.de)
    return replace(
        bare, en=f"{owner}'s {bare.en}", de=(forms[0], forms[1], forms[2], forms[3]), definite=True
    )


def attach(phrase: NP, en: str, de: str) -> NP:
    """Append a relative clause or another attribute to every form."""
    forms = tuple(f"{form}{de}" for form in phrase.de)
    return replace(
        phrase, en=f"{phrase.en}{en}", en_object="", de=(forms[0], forms[1], forms[2], forms[3])
    )


def prepositional(en: str, de: str, case: str, phrase: NP) -> Phrase:
    return Phrase(f"{en} {phrase.as_object}", german.contract(de, phrase.case(case)))


def being_at(place: Place, adjectives: tuple[Adjective, ...] = ()) -> Phrase:
    phrase = noun_phrase(place.noun, "the", adjectives)
    return prepositional(place.en_at, place.de_at, "dat", phrase)


def going_to(place: Place) -> Phrase:
    case = "dat" if place.de_to in ("zu", "bei") else "acc"
    return prepositional("to", place.de_to, case, noun_phrase(place.noun, "the"))
