"""Infinitives with zu, um ... zu, ohne ... zu, statt ... zu; liking and preferring."""

from __future__ import annotations

from sample_corpus import phrases
from sample_corpus.clause import Clause, english_bare, english_clause, german_clause, german_zu
from sample_corpus.lexicon import Phrase
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, statement, structure

KINDS = ("acc", "acc", "+", "dat", "")
SUBJECT_VERBS = {  # English past and present, German preterite and present, singular and plural
    "tried": ("versuchte", "versuchten"), "decided": ("beschloss", "beschlossen"),
    "promised": ("versprach", "versprachen"), "planned": ("plante", "planten"),
    "hoped": ("hoffte", "hofften"), "refused": ("weigerte sich", "weigerten sich"),
    "forgot": ("vergaß", "vergaßen"), "offered": ("bot an", "boten an"),
}  # fmt: skip
ADJECTIVES = {
    "important": "wichtig", "difficult": "schwierig", "easy": "leicht", "possible": "möglich",
    "forbidden": "verboten", "useful": "nützlich", "dangerous": "gefährlich",
    "necessary": "notwendig", "pleasant": "angenehm", "useless": "nutzlos",
}  # fmt: skip


def act(s: Sampler, who: NP, adjuncts: float = 0.2) -> Clause:
    return s.activity(who, flags="i", kinds=KINDS, adjuncts=adjuncts)


@structure(2)
def verb_with_zu(s: Sampler) -> Pair:
    """tried to repair the car: versuchte, das Auto zu reparieren."""
    who = s.third()
    en = s.pick(sorted(set(SUBJECT_VERBS) - {"refused"}))
    de = SUBJECT_VERBS[en][1 if who.plural else 0]
    clause = act(s, who)
    return finish(f"{who.en} {en} to {english_bare(clause)}"), finish(
        f"{who.de[0]} {de}, {german_zu(clause)}"
    )


@structure(1.5)
def refused_to(s: Sampler) -> Pair:
    who = s.third()
    clause = act(s, who)
    time = s.time("past")
    de = "weigerten" if who.plural else "weigerte"
    return (
        finish(f"{time.en}, {who.en} refused to {english_bare(clause)}"),
        finish(f"{time.de} {de} sich {who.de[0]}, {german_zu(clause)}"),
    )


FAR = ("visit", "photograph", "meet", "admire", "sell", "look")


def purpose_trip(s: Sampler, who: NP, tense: str) -> tuple[Clause, Clause]:
    """Going where a thing is done, and doing it: to the market, to buy fruit."""
    if s.chance(0.4):
        verb = s.pick([v for v in s.ordinary if v.en in FAR and v.government == "acc"])
        purpose = Clause(who, verb, s.object_of(verb, who))
        travel = s.pick([v for v in s.ordinary if v.en in ("travel", "drive")
                         and v.government == "dir"])  # fmt: skip
        city = s.city()
        goal = Phrase(f"to {city.en}", f"nach {city.de}")
        return Clause(who, travel, tense=tense, direction=goal), purpose
    verb = s.pick([v for v in s.ordinary if v.places and "i" in v.flags])
    purpose = Clause(who, verb, s.object_of(verb, who) if verb.government else None)
    wanted = set(verb.places)
    places = [p for p in s.lexicon.places if wanted & {p.noun.en, *p.groups}]
    go = next(v for v in s.ordinary if v.en == "go")
    return Clause(who, go, tense=tense, direction=phrases.going_to(s.pick(places))), purpose


@structure(2)
def in_order_to(s: Sampler) -> Pair:
    """went to the city in order to buy a coat: um einen Mantel zu kaufen."""
    main, clause = purpose_trip(s, s.person(), "past")
    return (
        finish(f"{english_clause(main)} in order to {english_bare(clause)}"),
        finish(f"{german_clause(main)}, um {german_zu(clause)}"),
    )


@structure(1.5)
def in_order_to_future(s: Sampler) -> Pair:
    main, clause = purpose_trip(s, s.person(), "future")
    main = main.but(time=s.time("future"))
    return (
        finish(f"{english_clause(main)} in order to {english_bare(clause)}"),
        finish(f"{german_clause(main)}, um {german_zu(clause)}"),
    )


@structure()
def without_doing(s: Sampler) -> Pair:
    """without locking the door: ohne die Tür abzuschließen."""
    who = s.third()
    first = s.activity(who, flags="i", kinds=("dir",)).but(tense="past")
    clause = s.activity(who, flags="i", mode="definite", kinds=("acc",), adjuncts=0)
    return (
        finish(f"{english_clause(first)} without {english_bare(clause, 'ing')}"),
        finish(f"{german_clause(first)}, ohne {german_zu(clause)}"),
    )


@structure()
def instead_of_doing(s: Sampler) -> Pair:
    who = s.third()
    first = act(s, who).but(tense="past")
    clause = s.activity(who, flags="i", mode="definite", kinds=("acc", "dat"), adjuncts=0)
    while clause.verb.de == first.verb.de:
        clause = s.activity(who, flags="i", mode="definite", kinds=("acc", "dat"), adjuncts=0)
    return (
        finish(f"{english_clause(first)} instead of {english_bare(clause, 'ing')}"),
        finish(f"{german_clause(first)}, statt {german_zu(clause)}"),
    )


@structure(2)
def it_is_so_to(s: Sampler) -> Pair:
    """It is important to water the flowers regularly."""
    en, de = s.pick(sorted(ADJECTIVES.items()))
    nobody = NP("", ("", "", "", ""), natural="it")
    clause = s.activity(nobody, flags="i", kinds=("acc", "acc", "dat", ""), adjuncts=0.5)
    while clause.verb.reflexive:
        clause = s.activity(nobody, flags="i", kinds=("acc", "dat"), adjuncts=0.5)
    tense_en, tense_de = s.pick((("is", "ist"), ("was", "war")))
    very = s.pick((Phrase("", ""), Phrase("very ", "sehr "), Phrase("really ", "wirklich ")))
    if en in ("forbidden", "necessary", "possible", "useless"):
        very = Phrase("", "")
    return (
        finish(f"it {tense_en} {very.en}{en} to {english_bare(clause)}"),
        finish(f"es {tense_de} {very.de}{de}, {german_zu(clause)}"),
    )


@structure()
def has_no_time_to(s: Sampler) -> Pair:
    """has no time to clean the windows: hat keine Zeit, die Fenster zu putzen."""
    who = s.person()
    en, de = s.pick((("time", "keine Zeit"), ("desire", "keine Lust")))
    clause = s.activity(who, flags="i", kinds=KINDS, adjuncts=0.2)
    main = Clause(who, s.core["have"], tense=s.pick(("present", "past")),
                  predicate=Phrase(f"no {en} to {english_bare(clause)}", de))  # fmt: skip
    return finish(english_clause(main)), finish(f"{german_clause(main)}, {german_zu(clause)}")


@structure(1.5)
def likes_to(s: Sampler) -> Pair:
    """likes to read novels in the garden: liest im Garten gern Romane."""
    clause = s.activity(s.third(), flags="hi", mode="generic", kinds=("acc", "acc", "+", "", "dir"),
                        adjuncts=0.5)  # fmt: skip
    like = "like" if clause.subject.plural else "likes"
    en = f"{clause.subject.en} {like} to {english_bare(clause)}"
    return finish(en), statement(clause.but(early=Phrase("", "gern")))[1]


@structure()
def prefers_to(s: Sampler) -> Pair:
    clause = s.activity(s.third(), flags="hi", mode="generic", kinds=("acc", "acc", "+", "", "dir"),
                        adjuncts=0.5)  # fmt: skip
    prefer = "prefer" if clause.subject.plural else "prefers"
    time = s.adverb("habit")
    en = f"{time.en}, {clause.subject.en} {prefer} to {english_bare(clause)}"
    de = german_clause(clause.but(time=time, early=Phrase("", "lieber")), front=time.de)
    return finish(en), finish(de)


@structure()
def asked_somebody_to(s: Sampler) -> Pair:
    """asked the waiter to bring the bill: bat den Kellner, die Rechnung zu bringen."""
    who, asked = s.third(), s.professional("the")
    bat = "baten" if who.plural else "bat"
    clause = s.activity(asked, flags="i", kinds=("acc", "acc", "dat", ""), adjuncts=0.2)
    return (
        finish(f"{who.en} asked {asked.as_object} to {english_bare(clause)}"),
        finish(f"{who.de[0]} {bat} {asked.de[1]}, {german_zu(clause)}"),
    )


@structure()
def helped_to(s: Sampler) -> Pair:
    """helped the neighbour to paint the fence: half dem Nachbarn, den Zaun zu streichen."""
    who, helped = s.third(), s.professional("the")
    half = "halfen" if who.plural else "half"
    nobody = NP("", ("", "", "", ""), natural="it")
    clause = s.activity(nobody, flags="i", kinds=("acc",), adjuncts=0.2)
    while clause.verb.reflexive:
        clause = s.activity(nobody, flags="i", kinds=("acc",), adjuncts=0.2)
    return (
        finish(f"{who.en} helped {helped.as_object} to {english_bare(clause)}"),
        finish(f"{who.de[0]} {half} {helped.case('dat')}, {german_zu(clause)}"),
    )
