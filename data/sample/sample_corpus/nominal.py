"""Copulas, comparison, possession, numbers, dates, prepositions, existence."""

from __future__ import annotations

from sample_corpus import english, phrases
from sample_corpus.clause import Clause
from sample_corpus.lexicon import Adjective, Noun, Phrase
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, statement, structure

DESCRIBED = (
    "furn",
    "device",
    "vehicle",
    "cloth",
    "read",
    "film",
    "bldg",
    "home",
    "event",
    "thought",
)
COMPARED = ("furn", "device", "vehicle", "cloth", "tool", "instr", "bldg", "home", "read", "film")
SHORT = {"old", "new", "tall", "big", "small", "nice", "rich", "poor", "strong", "cheap", "heavy",
         "light", "warm", "thick", "thin", "dirty", "clean", "fresh", "ripe", "sweet", "hot",
         "cold", "healthy", "simple", "long", "short", "funny", "sad", "quiet", "noisy",
         "dark", "bright",
         "narrow", "high", "wide", "sharp", "pretty", "lively", "fast", "slow", "safe", "young",
         "clever", "friendly", "brave", "strict", "loyal", "hungry", "clear", "wild", "round",
         "sick", "empty", "tired", "strange"}  # fmt: skip
GRADES = {"good": ("better", "best")}
DOUBLING = {"big", "thin", "hot", "sad"}
WHOLES = (
    ("of_bldg", "bldg"),
    ("of_vehicle", "vehicle"),
    ("of_read", "read"),
    ("of_event", "event"),
)


def grade(adjective: Adjective, ending: str) -> str:
    """English comparative (er) or superlative (est)."""
    word = adjective.en
    if word in GRADES:
        return GRADES[word][0 if ending == "er" else 1]
    if word not in SHORT:
        return ("more " if ending == "er" else "most ") + word
    if word.endswith("y"):
        return word[:-1] + "i" + ending
    if word.endswith("e"):
        return word + ending[1:]
    return word + (word[-1] if word in DOUBLING else "") + ending


def described(s: Sampler, *types: str, gradable: bool = False) -> tuple[Noun, Adjective]:
    """A noun and an adjective that fits it."""
    while True:
        entry = s.noun(*types)
        adjective = s.adjective(entry, gradable)
        if adjective is not None and not (gradable and adjective.en in ("young", "round", "clear")):
            return entry, adjective


def is_so(subject: NP, s: Sampler, en: str, de: str, tense: str, **more) -> Pair:
    return statement(Clause(subject, s.core["be"], tense=tense, predicate=Phrase(en, de), **more))


@structure(2)
def thing_is_so(s: Sampler) -> Pair:
    entry, adjective = described(s, *DESCRIBED, "public", "foodm", "dish", gradable=True)
    degree = s.adverb("degree")
    subject = phrases.noun_phrase(entry, s.pick(("the", "this", "the")), plural=False)
    city = s.city()
    if entry.types & {"bldg", "place"}:
        subject = phrases.attach(subject, f" in {city.en}", f" in {city.de}")
    tense = s.pick(("present", "past"))
    return is_so(subject, s, f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}", tense)


@structure()
def person_is_so(s: Sampler) -> Pair:
    entry, adjective = described(s, "prof", gradable=True)
    degree, place = s.adverb("degree"), s.any_place("work", "shop", "school", "eat")
    where = phrases.being_at(place)
    subject = phrases.noun_phrase(entry, "the")
    subject = phrases.attach(subject, f" {where.en}", f" {where.de}")
    tense = s.pick(("present", "past"))
    return is_so(subject, s, f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}", tense)


@structure(1.5)
def comparative_things(s: Sampler) -> Pair:
    """The old table is more practical than the new chair."""
    entry, adjective = described(s, *COMPARED, gradable=True)
    kind = next(iter(sorted(entry.types & set(COMPARED))))
    other = s.noun(kind)
    while other.en == entry.en:
        other = s.noun(kind)
    first = phrases.noun_phrase(entry, s.pick(("this", "the", "my", "our")))
    second = phrases.noun_phrase(other, "the", s.adjectives(other, 0.7))
    en = f"{grade(adjective, 'er')} than {second.en}"
    much = s.pick((Phrase("", ""), Phrase("much ", "viel ")))
    return is_so(first, s, much.en + en, much.de + adjective.comparative,
                 s.pick(("present", "past")), after=Phrase("", f"als {second.de[0]}"))  # fmt: skip


@structure()
def comparative_people(s: Sampler) -> Pair:
    entry, adjective = described(s, "prof", "human", gradable=True)
    who = s.third()
    while who.plural:
        who = s.third()
    relative = s.noun("kin")
    second = phrases.noun_phrase(relative, who.natural if who.natural != "it" else "the")
    en, de = grade(adjective, "er"), adjective.comparative
    tense = s.pick(("present", "past"))
    return is_so(
        who, s, f"{en} than {second.en}", de, tense, after=Phrase("", f"als {second.de[0]}")
    )


@structure()
def as_as(s: Sampler) -> Pair:
    entry, adjective = described(s, *COMPARED, gradable=True)
    first = phrases.noun_phrase(entry, "the", ())
    owner = s.pick(s.lexicon.names[s.pick(("female", "male"))])
    second = phrases.owned(owner, entry)
    city = s.pick(("", "not "))
    so = "nicht so" if city else "so"
    en = f"{city}as {adjective.en} as {second.en}"
    first = phrases.noun_phrase(entry, s.pick(("my", "your", "our")) if not city else "my")
    return is_so(first, s, en, f"{so} {adjective.de} wie {second.de[0]}", "present")


@structure(1.5)
def superlative(s: Sampler) -> Pair:
    """This is the oldest bridge in Prague: die älteste Brücke in Prag."""
    entry, adjective = described(s, "bldg", "public", gradable=True)
    city = s.city()
    best = Adjective(grade(adjective, "est"), "", adjective.superlative, "", "", frozenset())
    phrase = phrases.noun_phrase(entry, "the", (best,))
    opener = s.pick((("This is", "Das ist"), ("This was", "Das war")))
    visit = s.third()
    if s.chance(0.5):
        clause = Clause(visit, s.pick([v for v in s.ordinary if v.en in ("admire", "photograph")]))
        place = Phrase(f"in {city.en}", f"in {city.de}")
        return statement(clause.but(obj=phrases.attach(phrase, f" {place.en}", f" {place.de}"),
                                    tense="past", time=s.time("past")))  # fmt: skip
    return (
        finish(f"{opener[0]} {phrase.en} in {city.en}"),
        finish(f"{opener[1]} {phrase.de[0]} in {city.de}"),
    )


def part_of_whole(s: Sampler) -> tuple[NP, str]:
    """The roof of the old house, and which kind of part it is."""
    part, whole = s.pick(WHOLES)
    entry = s.noun(whole)
    owner = phrases.noun_phrase(entry, s.pick(("the", "this", "the")), s.adjectives(entry, 0.7))
    return phrases.of(phrases.noun_phrase(s.noun(part), "the"), owner), part


@structure(2)
def genitive_object(s: Sampler) -> Pair:
    phrase, kind = part_of_whole(s)
    names = {
        "of_bldg": ("repair", "photograph", "describe"), "of_vehicle": ("repair", "check"),
        "of_read": ("change", "describe"), "of_event": ("change", "discuss"),
    }  # fmt: skip
    verb = s.pick([v for v in s.ordinary if v.en in names[kind]])
    clause = Clause(s.person(), verb, phrase, tense="past", time=s.time("past"))
    return statement(clause, front=s.chance(0.5))


@structure()
def genitive_person(s: Sampler) -> Pair:
    """The brother of the young doctor works in the hospital."""
    owner = s.professional("the", described=0.5)
    kin = phrases.noun_phrase(s.noun("kin"), "the")
    subject = phrases.of(kin, owner)
    clause = s.activity(subject, kinds=("acc", "+", ""), adjuncts=0.5)
    return statement(clause.but(tense="past", time=s.time("past")))


@structure()
def name_possessive(s: Sampler) -> Pair:
    """Anna's brother, Annas Bruder."""
    owner = s.pick(s.lexicon.names[s.pick(("female", "male"))])
    subject = phrases.owned(owner, s.noun("kin"))
    clause = s.activity(subject, kinds=("acc", "+", "dat", ""), adjuncts=0.4)
    tense = s.pick(("past", "future"))
    return statement(clause.but(tense=tense, time=s.time(tense)))


@structure()
def belongs_to(s: Sampler) -> Pair:
    entry = s.noun("vehicle", "cloth", "bldg", "small", "furn", "instr", "device", "tool")
    subject = phrases.noun_phrase(entry, s.pick(("the", "this")), s.adjectives(entry, 0.7))
    clause = Clause(subject, s.core["belong"], s.someone(s.name()))
    return statement(clause.but(tense=s.pick(("present", "past"))))


@structure()
def works_as(s: Sampler) -> Pair:
    """works as a cook: arbeitet als Koch (no article before a trade)."""
    who = phrases.name(s.pick(s.lexicon.names["male"]), "m")
    if s.chance(0.5):
        entry = s.noun("father", "brother", "uncle", "nephew", "son", "friend", "cousin")
        who = phrases.noun_phrase(entry, s.pick(("my", "our", "her", "his")))
    trade = s.noun("prof")
    while trade.gender != "m" or trade.en in UNPAID:
        trade = s.noun("prof")
    verb = next(v for v in s.ordinary if v.en == "work")
    en = f"as {english.article(trade.en)} {trade.en}"
    city = s.city()
    clause = Clause(who, verb, place=Phrase("", f"in {city.de}"),
                    predicate=Phrase(f"{en} in {city.en}", f"als {trade.de}"))  # fmt: skip
    return statement(clause.but(tense=s.pick(("present", "past"))))


UNPAID = {"guest", "tourist", "neighbour", "colleague", "customer", "patient", "passenger",
          "visitor", "witness", "tenant", "landlord", "expert", "pupil", "student", "employee",
          "boss"}  # fmt: skip


@structure()
def wants_to_become(s: Sampler) -> Pair:
    who = phrases.noun_phrase(s.noun("son", "nephew", "brother", "cousin", "friend"),
                              s.pick(("my", "our", "her", "his")))  # fmt: skip
    if s.chance(0.5):
        who = phrases.name(s.pick(s.lexicon.names["male"]), "m")
    trade = s.noun("prof")
    while trade.gender != "m" or trade.en in UNPAID:
        trade = s.noun("prof")
    predicate = Phrase(f"{english.article(trade.en)} {trade.en}", trade.de)
    modal = s.pick(("want", "wanted", "like"))
    return statement(Clause(who, s.core["become"], modal=modal, predicate=predicate))
