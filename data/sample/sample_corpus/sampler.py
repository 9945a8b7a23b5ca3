"""Random choice under meaning: who does what to what, where, when and how."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache

from sample_corpus.clause import NP, Clause, noun_phrase, relative
from sample_corpus.inflection import CASES, ending
from sample_corpus.lexicon import NOTHING, Phrase, Row, indexed, table

KIN = ("kin", "kinpl")
BARE = ("lang", "subj", "game", "interest")  # no article: plays football, studies law
UNIQUE = ("of_bldg", "of_vehicle", "of_read", "of_event", "hope", "cause")  # the door, the end
PERSONAL = ("cloth", "clothpl", "small", "vehicle", "furn", "doc", "home", "instr")
SUBJECTS = {"name": 20, "titled": 8, "couple": 6, "my|our|his|her kin": 16, "the adult": 7,
            "the prof": 29}  # fmt: skip
Value = Phrase | NP | Clause


class Misfit(Exception):
    """What was drawn does not go together."""


@cache
def nouns(types: tuple[str, ...]) -> list[Row]:
    return [noun for noun in table("nouns") if noun.is_any(types)]


@cache
def adjectives(noun: Row, gradable: bool = False) -> list[Row]:
    fitting = [a for a in table("adjectives") if noun.is_any(a.types)]
    return [a for a in fitting if not gradable or a.de_comparative != "-"]


@cache
def of_kind(name: str, kind: str) -> list[Row]:
    return [row for row in table(name) if row.kind == kind]


@cache
def places(groups: tuple[str, ...]) -> list[Row]:
    return [row for row in table("places") if not set(groups).isdisjoint(row.groups)]


@cache
def verbs(wanted: str) -> list[Row]:
    """`=lemma|lemma`, or `flags:governments:mark`, such as `i:acc,+,-` or `:acc:prefix`; `+` stands
    for any preposition, `-` for no object. States (n) and core verbs (c) must be asked for."""
    if wanted.startswith("="):
        named = [v for v in table("verbs") if v.de in wanted[1:].split("|") and "P" not in v.flags]
        return [v for v in named if "c" in v.flags] or named
    flags, kinds, mark = (wanted + ":").split(":")[:3]
    return [
        v for v in table("verbs")
        if set(flags) <= set(v.flags) and set("c" if "n" in flags else "cn").isdisjoint(v.flags)
        and ("+" if "+" in v.government else v.government or "-") in kinds.split(",")
        and (not mark or getattr(v, mark))
    ]  # fmt: skip


def pronoun(key: str) -> NP:
    return NP(key, (indexed("pronouns")[key].de,) * 4, key)


def possessive(owner: NP) -> str:
    return indexed("pronouns")[owner.pronoun].possessive or "the"


def refer(how: str, part: Value, more: Value | None = None) -> NP:
    """again, same: a clause's subject; relative: who, for it; with, object: with its clause."""
    if how == "object":
        return relative(part.obj, replace(part, gap=True))
    if how == "with":
        return relative(part, more)
    subject = part.subject if isinstance(part, Clause) else part
    if how == "same":
        return subject
    if how == "again":
        return pronoun(subject.pronoun)
    forms = tuple(ending("relative", case, subject.gender) for case in CASES)
    return replace(subject, en="who" if subject.is_human else "that", de=forms)


class Sampler:
    """Draws everything from one generator, so that a seed fixes the corpus."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, options: list | tuple):
        if not options:
            raise Misfit
        return options[self.rng.randrange(len(options))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def phrase(self, kind: str) -> Phrase:
        """A phrase whose own slots are filled: `{month}` by kind, `{1-28}` by a number."""
        found = self.pick(of_kind("phrases", kind))
        en, de = found.en, found.de
        for slot in re.findall(r"\{([^}]+)\}", en):
            low, _, high = slot.partition("-")
            number = str(self.rng.randint(int(low), int(high))) if high else ""
            inner = Phrase(number, number) if high else self.phrase(slot)
            en, de = en.replace(f"{{{slot}}}", inner.en), de.replace(f"{{{slot}}}", inner.de)
        return Phrase(en, de)

    def who(self, wanted: str, parts: dict[str, Value]) -> NP:
        """A person, a pronoun, `DETERMINERS TYPES`, or what another part has named (`again A`)."""
        if wanted == "person" and self.chance(0.14):
            wanted = self.pick(("I", "we", "he", "she", "they"))
        if wanted in ("person", "third"):
            wanted = self.rng.choices(list(SUBJECTS), list(SUBJECTS.values()))[0]
        if wanted in indexed("pronouns"):
            return pronoun(wanted)
        if wanted in ("name", "titled"):
            return self.named(wanted)
        if wanted == "couple":
            one, two = self.rng.sample(of_kind("people", "name"), 2)
            return NP(f"{one.en} and {two.en}", (f"{one.en} und {two.en}",) * 4, "they", "p")
        first, *rest = wanted.split(" ")
        if rest[0] in parts:
            return refer(first, *[parts[name] for name in rest])
        det, noun = self.pick(first.split("|")), self.pick(nouns(tuple(" ".join(rest).split(","))))
        adjective = NOTHING if noun.is_any(KIN) else self.adjective(noun, 0.7)
        plural = det == "the" and noun.is_any(("prof",)) and self.chance(0.2)
        return noun_phrase(noun, self.determiner(det), plural, adjective)

    def named(self, kind: str) -> NP:
        row = self.pick(of_kind("people", kind))
        return NP(row.en, (row.nom, row.acc, row.dat, row.gen), row.pronoun)

    def determiner(self, key: str) -> Row:
        """By its key; `owner` is the name of somebody, which bears no ending in German."""
        if key != "owner":
            return indexed("determiners")[key]
        name = self.named("name")
        return Row(en=f"{name.en}'s", en_plural=f"{name.en}'s", de=name.case("gen"),
                   article="none", adjective="strong", known="yes")  # fmt: skip

    def adjective(self, noun: Row, probability: float) -> Phrase:
        fitting = adjectives(noun) if self.chance(probability) else []
        found = self.pick(fitting) if fitting else None
        return Phrase(found.en, found.de_attributive) if found else NOTHING

    def thing(self, noun: Row, mode: str, owner: str = "the") -> NP:
        """An object: `mode` is any, definite, indefinite, generic, no, head or superlative."""
        special = noun.is_any((*KIN, *BARE, *UNIQUE))
        if special and mode in ("no", "head", "superlative"):
            raise Misfit
        if special or noun.gender == "p":
            det = owner if noun.is_any(KIN) else "none" if noun.is_any(BARE) else "the"
            return noun_phrase(noun, self.determiner(det))
        if mode == "superlative":
            best = self.pick(adjectives(noun, True))
            graded = Phrase(best.en_superlative, best.de_superlative)
            return noun_phrase(noun, self.determiner("the"), adjective=graded)
        adjective = self.adjective(noun, 0 if mode == "head" else 0.6)
        det, plural, number = self.introduction(noun, mode, owner)
        return noun_phrase(noun, self.determiner(det), plural, adjective, number)

    def introduction(self, noun: Row, mode: str, owner: str) -> tuple[str, bool, Phrase]:
        """The determiner, whether the noun is in the plural, and a number before it."""
        mass, several = not noun.de_plural, self.chance(0.9 if noun.is_any(("clothpl",)) else 0.22)
        if mode in ("no", "head"):
            return "no" if mode == "no" else "the", several and not mass, NOTHING
        if mode == "definite" or (mode == "any" and self.chance(0.55)):
            det = self.rng.choices(("the", "this", owner), (6, 1, 4 * noun.is_any(PERSONAL)))[0]
            return "the" if mass else det, several and not mass, NOTHING
        if mass or mode == "generic":
            return "none", not mass, NOTHING
        number = self.phrase("number") if several and self.chance(0.4) else NOTHING
        return "none" if several else "a", several, number

    def clause(self, wanted: dict[str, str], parts: dict[str, Value]) -> Clause:
        verb = self.pick(verbs(wanted["verb"]))
        tense = indexed("tenses")[self.pick(wanted.get("tense", "present").split("|"))]
        types = tuple(wanted["types"].split(",")) if "types" in wanted else verb.objects
        passive = "passive" in wanted
        patient = self.thing(self.pick(nouns(types)), "definite") if passive else None
        subject = patient or self.who(wanted["who"], parts)
        clause = Clause(subject, verb, tense, passive=passive, negation=wanted.get("negation", ""))
        if "agent" in wanted:
            clause = replace(clause, agent=self.who(wanted["agent"], parts))
        if not passive:
            clause = self.with_objects(clause, types, wanted.get("object", "any"), parts)
        clause = self.with_adjuncts(clause, float(wanted.get("adjuncts", 0.4)))
        slots = [slot for slot in ("time", "early", "late", "place") if slot in wanted]
        clause = replace(clause, **{slot: self.phrase(wanted[slot]) for slot in slots})
        return self.with_predicate(clause, wanted.get("predicate", ""))

    def with_objects(self, clause: Clause, types: tuple, mode: str, parts: dict) -> Clause:
        """What the verb governs; `mode` may also be none, someone, or a reference to a part."""
        verb, subject, dative = clause.verb, clause.subject, None
        if verb.government == "dir":
            place = self.pick(places(verb.places))
            return replace(clause, goal=Phrase(place.en_to, place.de_to))
        if not verb.government or mode == "none":
            return clause
        if verb.government == "both":
            dative = self.someone(subject)
            mode = "indefinite" if mode == "any" else mode
        if mode == "someone":
            obj = self.someone(subject)
        elif " " in mode:
            obj = self.who(mode, parts)
        else:
            noun = self.pick(nouns(types))
            if "g" in verb.flags and mode != "head":
                mode = "generic"
            elif ("d" in verb.flags and mode == "generic") or (
                noun.is_any(("prof", "human")) and mode in ("any", "indefinite")
            ):
                mode = "definite"
            obj = self.thing(noun, mode, possessive(subject))
        heads = [np.noun or np.en for np in (subject, obj, dative) if np]
        if len(set(heads)) < len(heads):
            raise Misfit
        return replace(clause, obj=obj, dative=dative)

    def someone(self, subject: NP) -> NP:
        """A person as an object."""
        kin = f"{possessive(subject)} kin"
        return self.who(self.pick((kin, kin, "name", "titled", "the prof", "the prof")), {})

    def with_adjuncts(self, clause: Clause, probability: float) -> Clause:
        """Perhaps where the verb's action takes place, or how."""
        verb = clause.verb
        if verb.government == "dir" or not self.chance(probability if verb.government else 0.8):
            return clause
        if verb.places[0] and not clause.passive:
            place = self.pick(places(verb.places))
            return replace(clause, place=Phrase(place.en, place.de))
        if verb.manner and (clause.obj is None or clause.obj.known):
            return replace(clause, manner=self.phrase(f"manner_{verb.manner}"))
        return clause

    def with_predicate(self, clause: Clause, kind: str) -> Clause:
        """A phrase, or for things an adjective that fits them, alone or in a comparison."""
        if kind not in ("adjective", "comparative"):
            return replace(clause, predicate=self.phrase(kind)) if kind else clause
        noun = clause.subject.noun
        adjective = self.pick(adjectives(noun, True))
        if kind == "adjective":
            degree = self.phrase("degree")
            predicate = Phrase(f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}")
            return replace(clause, predicate=predicate)
        fitting = [n for n in nouns(noun.types[:1]) if n != noun and adjective in adjectives(n)]
        det = self.determiner(self.pick(("the", "my", "this", "owner")))
        other = noun_phrase(self.pick(fitting), det)
        than = Phrase(f"{adjective.en_comparative} than {other.en}", adjective.de_comparative)
        return replace(clause, predicate=than, after=Phrase("", f"als {other.case('nom')}"))
