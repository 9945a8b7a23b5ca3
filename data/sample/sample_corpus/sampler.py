"""Random choice under meaning: who does what to what, where, when and how."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from sample_corpus import phrases, timing
from sample_corpus.clause import Clause
from sample_corpus.lexicon import Adjective, Lexicon, Noun, Phrase, Place, Verb
from sample_corpus.phrases import NP

Choice = TypeVar("Choice")
KIN = {"kin", "kinpl"}
BARE = {"lang", "subj", "game", "interest"}
OWN = {"birthday", "diary", "driving licence", "identity card", "passport", "house key"}
UNIQUE = {"of_bldg", "of_vehicle", "of_read", "of_event", "hope", "cause"}
NEUTRAL_HUMANS = ("man", "woman", "boy", "lady")
CORE_KEYS = {"put": "lay"}  # the table lists it under its English form
LASTING = {"build", "renovate", "visit", "buy", "sell", "travel", "publish", "win", "rent", "study",
           "plant", "organize", "celebrate", "own", "love", "know", "live", "hike", "learn",
           "teach", "meet", "write", "translate", "collect", "apply", "criticize",
           "photograph"}  # fmt: skip
DESTINATIONS = {
    "go": (), "rush": ("meet", "work", "school", "shop", "cult", "bank"),
    "drive": ("city", "meet", "work", "shop", "out", "town", "sport", "zoo"),
    "hike": ("out_far", "town"), "cycle": ("city", "meet", "school", "shop", "out_far", "sport"),
}  # fmt: skip
COUNTED = {"fruit", "snack", "read", "furn", "dishware", "tool", "small", "plant", "cloth", "farm",
           "clothpl", "toy", "vehicle", "pet", "wild"}  # fmt: skip
IN_PAIRS = {"clothpl"}


class Sampler:
    """Draws every part of a sentence from one generator, so that a seed fixes the corpus."""

    def __init__(self, rng: random.Random, lexicon: Lexicon) -> None:
        self.rng = rng
        self.lexicon = lexicon
        self.recent: Verb | None = None  # times are drawn to fit the verb drawn last
        self.by_noun: dict[tuple[str, bool], list[Adjective]] = {}
        self.by_use: dict[tuple[str, tuple[str, ...], str], list[Verb]] = {}
        self.by_types: dict[tuple[str, ...], list[Noun]] = {}
        self.core = {CORE_KEYS.get(v.en, v.en): v for v in lexicon.verbs if "c" in v.flags}
        self.ordinary = [v for v in lexicon.verbs if "c" not in v.flags]

    def pick(self, options: Sequence[Choice]) -> Choice:
        return options[self.rng.randrange(len(options))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Things and people ---------------------------------------------------------------------

    def noun(self, *types: str) -> Noun:
        if types not in self.by_types:
            self.by_types[types] = self.lexicon.of_type(*types)
        return self.pick(self.by_types[types])

    def adjective(self, entry: Noun, gradable: bool = False) -> Adjective | None:
        if entry.en in OWN:
            return None  # a passport is just a passport
        key = (entry.en, gradable)
        if key in self.by_noun:
            fitting = self.by_noun[key]
            return self.pick(fitting) if fitting else None
        fitting = [
            a
            for a in self.lexicon.adjectives
            if (a.types & entry.types or entry.en in a.types)
            and a.en != entry.en
            and not (gradable and a.comparative == "-")
        ]
        return self.pick(fitting) if fitting else None

    def adjectives(self, entry: Noun, probability: float = 0.7) -> tuple[Adjective, ...]:
        found = self.adjective(entry) if self.chance(probability) else None
        return (found,) if found else ()

    def name(self) -> NP:
        gender = self.pick("mf")
        kind = "female" if gender == "f" else "male"
        return phrases.name(self.pick(self.lexicon.names[kind]), gender)

    def titled(self) -> NP:
        return phrases.titled(self.pick(self.lexicon.names["family"]), self.pick("mf"))

    def professional(self, det: str = "the", plural: bool = False, described: float = 0.7) -> NP:
        entry = self.noun("prof")
        return phrases.noun_phrase(entry, det, self.adjectives(entry, described), plural)

    def relative(self, owner: str = "") -> NP:
        entry = self.noun("kin") if self.chance(0.8) else self.noun("kinpl")
        det = owner if owner not in ("", "it") else self.pick(("my", "our", "his", "her"))
        return phrases.noun_phrase(entry, det)

    def person(self, pronouns: bool = True) -> NP:
        """A subject: pronoun, name, titled name, somebody's relative, a trade or two people."""
        roll = self.rng.random()
        if roll < 0.14 and pronouns:
            return phrases.pronoun(self.pick(("I", "we", "he", "she", "they")))
        if roll < 0.34:
            return self.name()
        if roll < 0.42:
            return self.titled()
        if roll < 0.6:
            return self.relative()
        if roll < 0.66:
            return self.couple()
        if roll < 0.73:
            entry = self.noun(*NEUTRAL_HUMANS)
            return phrases.noun_phrase(entry, "the", self.adjectives(entry, 0.6))
        return self.professional("the", plural=self.chance(0.2))

    def third(self) -> NP:
        """A subject in the third person, with a noun or a name."""
        return self.person(pronouns=False)

    def couple(self) -> NP:
        first, second = self.name(), self.name()
        while second.en == first.en:
            second = self.name()
        return phrases.coordinate(first, second)

    def someone(self, subject: NP) -> NP:
        """A person other than the subject, as an object."""
        roll = self.rng.random()
        if roll < 0.3 and subject.natural not in ("it",):
            return self.relative(subject.natural)
        if roll < 0.5:
            other = self.name()
            return other if other.en not in subject.en else self.professional("the")
        if roll < 0.6:
            return self.titled()
        other = self.professional("the")
        return other if other.en != subject.en else self.titled()

    def city(self) -> Phrase:
        return self.pick(self.lexicon.geography["city"])

    def thing(self, entry: Noun, subject: NP, mode: str = "any", described: float = 0.7) -> NP:
        """A noun phrase for an object: `mode` is any, definite, indefinite, generic."""
        if entry.types & BARE:
            return phrases.noun_phrase(entry, "")
        adjectives = self.adjectives(entry, described)
        owner = subject.natural
        if entry.types & KIN:
            det = owner if owner != "it" else "the"
            return phrases.noun_phrase(entry, det)
        if entry.en in OWN and owner != "it":
            return phrases.noun_phrase(entry, owner)
        if entry.types & UNIQUE or entry.gender == "p":
            return phrases.noun_phrase(entry, "the", () if entry.types & UNIQUE else adjectives)
        if entry.is_mass:
            zero = mode in ("generic", "indefinite") or (mode == "any" and self.chance(0.6))
            return phrases.noun_phrase(entry, "" if zero else "the", adjectives)
        if mode == "generic":
            return phrases.noun_phrase(entry, "", adjectives, plural=True)
        return self.countable(entry, owner, mode, adjectives)

    def countable(
        self, entry: Noun, owner: str, mode: str, adjectives: tuple[Adjective, ...]
    ) -> NP:
        definite = mode == "definite" or (mode == "any" and self.chance(0.55))
        if not definite:
            many = bool(entry.types & IN_PAIRS) or self.chance(0.25)
            count = None
            if many and mode == "any" and entry.types & COUNTED and self.chance(0.4):
                count = timing.cardinal(self.rng.randint(2, 6))
                return phrases.noun_phrase(entry, "", adjectives, True, count)
            return phrases.noun_phrase(entry, "a", adjectives, many)
        many = bool(entry.types & IN_PAIRS) or self.chance(0.2)
        personal = {"cloth", "clothpl", "small", "vehicle", "furn", "doc", "home", "instr"}
        det = "this" if self.chance(0.12) else "the"
        if owner != "it" and entry.types & personal and self.chance(0.45):
            det = owner
        return phrases.noun_phrase(entry, det, adjectives, many)

    # Actions -------------------------------------------------------------------------------

    def verb(self, flags: str = "", kinds: Sequence[str] = ("acc",), only: str = "") -> Verb:
        """A verb with all these flags and one of these governments ("+" for prepositional)."""
        key = (flags, tuple(kinds), only)
        if key not in self.by_use:
            self.by_use[key] = [v for v in self.ordinary if usable(v, flags, kinds, only)]
        self.recent = self.pick(self.by_use[key])
        return self.recent

    def object_of(self, verb: Verb, subject: NP, mode: str = "any", described: float = 0.7) -> NP:
        entry = self.noun(*verb.objects)
        if verb.en == "steal":
            subject = replace(subject, natural="it")  # nobody steals what is his own
        if entry.types & {"prof", "human"} and mode == "any":
            mode = "definite"
        phrase = self.thing(entry, subject, mode, described)
        if not subject.en:
            return phrase
        if phrase.en in subject.en or phrase.en.split()[-1] == subject.en.split()[-1]:
            return self.titled() if entry.types & {"prof", "human", "kin", "kinpl"} else phrase
        return phrase

    def place(self, verb: Verb) -> Phrase | None:
        if not verb.places:
            return None
        wanted = set(verb.places)
        fitting = [p for p in self.lexicon.places if wanted & {p.noun.en, *p.groups}]
        return phrases.being_at(self.pick(fitting)) if fitting else None

    def any_place(self, *groups: str) -> Place:
        fitting = [p for p in self.lexicon.places if not groups or set(groups) & set(p.groups)]
        return self.pick(fitting)

    def manner(self, verb: Verb) -> Phrase | None:
        return self.pick(self.lexicon.phrases[f"manner_{verb.manner}"]) if verb.manner else None

    def adverb(self, kind: str) -> Phrase:
        return self.pick(self.lexicon.phrases[kind])

    def time(self, kind: str) -> Phrase:
        """A time of the past, the future or of habit: a fixed phrase, or one with a number."""
        lasting = self.recent is not None and self.recent.en in LASTING
        if self.chance(0.3):
            return timing.computed(self.rng, kind, lasting)
        if lasting and kind in ("past", "future") and self.chance(0.4):
            return self.adverb(f"{kind}_long")
        return self.adverb(kind)

    def destination(self, verb: Verb) -> Phrase:
        """One goes to the kitchen, but travels to Rome or to Italy."""
        groups = DESTINATIONS.get(verb.en, ())
        if verb.en == "travel" or (groups and "city" in groups and self.chance(0.5)):
            kind = "country" if verb.en == "travel" and self.chance(0.4) else "city"
            goal = self.pick(self.lexicon.geography[kind])
            return Phrase(f"to {goal.en}", f"nach {goal.de}")
        return phrases.going_to(self.any_place(*groups))

    def activity(
        self,
        subject: NP | None = None,
        flags: str = "",
        mode: str = "any",
        kinds: Sequence[str] = ("acc", "acc", "acc", "dat", "+", "", "dat+acc", "dir"),
        adjuncts: float = 0.5,
        only: str = "",
    ) -> Clause:
        """What somebody does: a verb, its objects and perhaps a place or a manner."""
        who = subject or self.person()
        verb = self.verb(flags, kinds, only)
        if "g" in verb.flags:
            mode = "generic"
        elif mode == "generic" and "d" in verb.flags:
            mode = "definite"
        clause = Clause(who, verb)
        kind = government(verb)
        if kind == "dir":
            return clause.but(direction=self.destination(verb))
        if kind == "dat+acc":
            described = mode if mode != "any" else "indefinite"
            dative = self.someone(who)
            return clause.but(dative=dative, obj=self.object_of(verb, who, described))
        if kind:
            clause = clause.but(obj=self.object_of(verb, who, mode))
        return self.with_adjuncts(clause, adjuncts if kind else max(adjuncts, 0.9))

    def with_adjuncts(self, clause: Clause, probability: float) -> Clause:
        place, manner = self.place(clause.verb), self.manner(clause.verb)
        known = clause.obj is None or clause.obj.definite
        if place and self.chance(probability):
            return clause.but(place=place)
        if manner and known and self.chance(probability):
            return clause.but(manner=manner)
        return clause


def government(verb: Verb) -> str:
    """acc, dat, dat+acc, dir, "+" for a prepositional object, or "" for none."""
    if "+" in verb.government and not verb.government.startswith("dat"):
        return "+"
    return verb.government


def usable(verb: Verb, flags: str, kinds: Sequence[str], only: str) -> bool:
    """States are drawn only where they are asked for: they take neither times nor habits."""
    marked = {"separable": verb.prefix, "reflexive": verb.reflexive}.get(only, "any")
    fits = all(flag in verb.flags for flag in flags) and government(verb) in kinds
    return bool(marked) and fits and ("n" in flags or "n" not in verb.flags)
