"""Word forms: German articles, adjectives, nouns, verbs, contractions; English articles, verbs."""

from __future__ import annotations

import re
from functools import cache

from sample_corpus.lexicon import Row, table, words

CASES = ("nom", "acc", "dat", "gen")
CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "bei dem": "beim",
                "von dem": "vom", "in das": "ins", "an das": "ans"}  # fmt: skip
IRREGULAR = {"sein": ("bin", "ist", "sind"), "wissen": ("weiß", "weiß", "wissen")}
BE = {"present": ("am", "is", "are"), "past": ("was", "was", "were")}


@cache
def ending(series: str, case: str, gender: str) -> str:
    """`gender` is m, n, f or p (plural)."""
    rows = table("endings")
    return getattr(next(r for r in rows if (r.series, r.case) == (series, case)), gender)


def declined(entry: Row, det: Row, adjective: str, number: str, plural: bool) -> tuple[str, ...]:
    """Article, number, adjective and noun in the four cases; ein has no plural."""
    gender = "p" if plural else entry.gender
    lacking = det.de == "ein" and plural
    series = "strong" if lacking else det.adjective
    forms = []
    for case in CASES:
        article = "" if lacking else det.de + ending(det.article, case, gender)
        described = adjective and adjective + ending(series, case, gender)
        forms.append(words(article, number, described, noun(entry, case, plural)))
    return tuple(forms)


def noun(entry: Row, case: str, plural: bool) -> str:
    if plural:
        form = entry.de_plural
        return form if case != "dat" or form[-1] in "ns" else form + "n"
    is_weak = entry.gender == "m" and entry.de_genitive in (entry.de + "n", entry.de + "en")
    return entry.de_genitive if case == "gen" or (is_weak and case != "nom") else entry.de


def contract(preposition: str, phrase: str) -> str:
    """Preposition and phrase, with im, zum, ins and the like where an article follows."""
    joined = f"{preposition} {phrase}"
    return re.sub(r"^\w+ \w+\b", lambda match: CONTRACTIONS.get(match[0], match[0]), joined)


def present(verb: Row, agreement: int) -> str:
    if verb.de in IRREGULAR:
        return IRREGULAR[verb.de][agreement]
    base = verb.de.removeprefix(verb.prefix)
    if agreement > 0:
        return verb.de_3sg if agreement == 1 else base
    return base[:-3] + "le" if base.endswith("eln") else re.sub("e?n$", "e", base)


def preterite(verb: Row, agreement: int) -> str:
    form = verb.de_preterite
    return form if agreement < 2 else form + ("n" if form.endswith("e") else "en")


def conjugate(verb: Row, tense: Row, agreement: int) -> tuple[str, str, str]:
    """The finite verb, the separable prefix that it leaves behind, what else ends the clause."""
    if tense.de_form in ("present", "preterite"):
        finite = present if tense.de_form == "present" else preterite
        return finite(verb, agreement), verb.prefix, ""
    if tense.de_form == "infinitive":
        return tense.haben[agreement], "", verb.de
    return getattr(tense, verb.auxiliary)[agreement], "", verb.de_participle


def english_article(phrase: str) -> str:
    """a or an, by the sound of the first word."""
    return "an" if re.match("[aeio]|u(?!ni|se)|hon(?!ey)|hour", phrase, re.IGNORECASE) else "a"


def third(base: str) -> str:
    if base == "go" or re.search(r"(s|x|z|ch|sh)$", base):
        return base + "es"
    return re.sub(r"(?<=[^aeiou])y$", "ie", base) + "s"


def verb_group(verb: Row, tense: Row, agreement: int, with_do: bool) -> list[str]:
    """The finite word first; `with_do` where a question or negation needs it (be never does)."""
    form = tense.en_form
    if form in BE and verb.en == "be":
        return [BE[form][agreement]]
    if form in BE and not with_do:
        present = third(verb.en) if agreement == 1 else verb.en
        return [verb.en_past if form == "past" else present]
    base = form in BE or form == "base"
    auxiliary = tense.en_forms[agreement].split()
    return [*auxiliary, verb.en if base else getattr(verb, f"en_{form}")]
