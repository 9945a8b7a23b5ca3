"""Main clauses: tenses, modals, negation, passives, separable and reflexive verbs."""

from __future__ import annotations

from sample_corpus import phrases, timing
from sample_corpus.clause import Clause
from sample_corpus.lexicon import Phrase
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, statement, structure

NOW = Phrase("", "gerade")
ALREADY = Phrase("already", "schon")
NEVER_YET = Phrase("never", "noch nie")


@structure(2)
def present_frequency(s: Sampler) -> Pair:
    clause = s.activity(flags="h", mode="generic", kinds=("acc", "acc", "+", ""))
    return statement(clause.but(early=s.adverb("frequency")))


@structure(2)
def present_habit_last(s: Sampler) -> Pair:
    clause = s.activity(flags="h", mode="generic", kinds=("acc", "acc", "", "dir"))
    return statement(clause.but(time=s.time("habit")))


@structure(1.5)
def present_habit_first(s: Sampler) -> Pair:
    clause = s.activity(flags="h", mode="generic", kinds=("acc", "acc", "+", "", "dir"))
    return statement(clause.but(time=s.time("habit")), front=True)


@structure(2)
def progressive(s: Sampler) -> Pair:
    clause = s.activity(flags="p", kinds=("acc", "acc", "dat", "+", ""), adjuncts=0.6)
    return statement(clause.but(tense="progressive", early=NOW))


@structure(3)
def past_last(s: Sampler) -> Pair:
    return statement(s.activity(adjuncts=0.5).but(tense="past", time=s.time("past")))


@structure(3)
def past_first(s: Sampler) -> Pair:
    return statement(s.activity(adjuncts=0.5).but(tense="past", time=s.time("past")), front=True)


@structure(1.5)
def past_place_and_manner(s: Sampler) -> Pair:
    clause = s.activity(mode="definite", kinds=("acc",), adjuncts=1.0)
    time = s.time("past")
    return statement(clause.but(tense="past", manner=s.manner(clause.verb), time=time))


@structure(2)
def perfect_already(s: Sampler) -> Pair:
    clause = s.activity(flags="i", mode="definite", kinds=("acc", "acc", "dat", "+"), adjuncts=0)
    return statement(clause.but(tense="perfect", late=ALREADY))


@structure(1.5)
def perfect_not_yet(s: Sampler) -> Pair:
    clause = s.activity(flags="i", mode="definite", kinds=("acc", "acc", "dat", "+"), adjuncts=0)
    return statement(clause.but(tense="perfect", negation="noch nicht"))


@structure()
def perfect_never(s: Sampler) -> Pair:
    clause = s.activity(flags="hi", mode="indefinite", kinds=("acc", "+"), adjuncts=0)
    return statement(clause.but(tense="perfect", early=NEVER_YET))


@structure(2)
def future_last(s: Sampler) -> Pair:
    clause = s.activity(flags="i", adjuncts=0.4)
    return statement(clause.but(tense="future", time=s.time("future")))


@structure(1.5)
def future_first(s: Sampler) -> Pair:
    clause = s.activity(flags="i", adjuncts=0.4)
    return statement(clause.but(tense="future", time=s.time("future")), front=True)


@structure(2)
def modal_present(s: Sampler) -> Pair:
    clause = s.activity(flags="i", adjuncts=0.4)
    return statement(clause.but(modal=s.pick(("must", "should", "want")), time=s.time("future")))


@structure(1.5)
def modal_past(s: Sampler) -> Pair:
    clause = s.activity(flags="i", adjuncts=0.4)
    modal = s.pick(("had", "wanted"))
    return statement(clause.but(modal=modal, time=s.time("past")), front=s.chance(0.5))


@structure(1.5)
def modal_wish(s: Sampler) -> Pair:
    clause = s.activity(flags="i", kinds=("acc", "acc", "dir", "+", ""), adjuncts=0.4)
    return statement(clause.but(modal="like", time=s.time("future")))


@structure(1.5)
def modal_negated(s: Sampler) -> Pair:
    clause = s.activity(flags="i", mode="definite", kinds=("acc", "dat", "+"), adjuncts=0)
    return statement(clause.but(modal=s.pick(("should", "want", "could", "may")), negation="nicht"))


@structure(2)
def states(s: Sampler) -> Pair:
    """loves, hates, owns, needs: states without a time."""
    clause = s.activity(flags="n", kinds=("acc", "dat", "+"))
    if "n" in clause.verb.flags and clause.verb.en == "pass":
        return statement(clause.but(tense="past", time=s.time("past")))
    return statement(clause.but(tense=s.pick(("present", "past"))))


@structure(1.5)
def negated_present(s: Sampler) -> Pair:
    kinds = ("acc", "dat", "+")
    clause = s.activity(flags=s.pick("nnh"), mode="definite", kinds=kinds, adjuncts=0)
    return statement(clause.but(negation="nicht"))


@structure(2)
def negated_past(s: Sampler) -> Pair:
    kinds = ("acc", "acc", "dat", "+", "dir")
    clause = s.activity(mode="definite", kinds=kinds, adjuncts=0)
    return statement(clause.but(tense="past", negation="nicht", time=s.time("past")))


@structure(1.5)
def negated_by_kein(s: Sampler) -> Pair:
    """does not need a new table: braucht keinen neuen Tisch."""
    who = s.person()
    verb = s.verb(s.pick("hn"), ("acc",))
    entry = s.noun(*verb.objects)
    while entry.types & {"kin", "kinpl", "lang", "subj", "game", "of_bldg", "hope", "cause"}:
        verb = s.verb(s.pick("hn"), ("acc",))
        entry = s.noun(*verb.objects)
    many = not entry.is_mass and s.chance(0.4)
    det = "" if entry.is_mass or many or entry.gender == "p" else "a"
    obj = phrases.noun_phrase(entry, det, s.adjectives(entry, 0.5), many, det_de="kein")
    if not det:
        obj = phrases.attach(obj, "", "")
        obj = NP("any " + obj.en, obj.de, obj.gender, 3, obj.plural, False)
    clause = Clause(who, verb, obj, negation="kein")
    tense = s.pick(("past", "perfect")) if "n" not in verb.flags else s.pick(("present", "past"))
    return statement(clause.but(tense=tense))


@structure(2)
def gave_somebody_something(s: Sampler) -> Pair:
    clause = s.activity(kinds=("dat+acc",))
    return statement(clause.but(tense="past", time=s.time("past")), front=s.chance(0.4))


@structure(1.5)
def gave_pronoun_something(s: Sampler) -> Pair:
    who = s.third()
    options = {"his": "him", "her": "her", "their": "them"}
    others = [
        p for p in ("he", "she", "they") if options.get(who.natural) != phrases.PRONOUNS_EN[p]
    ]
    clause = s.activity(who, kinds=("dat+acc",)).but(dative=phrases.pronoun(s.pick(others)))
    tense = s.pick(("past", "future"))
    return statement(clause.but(tense=tense, time=s.time(tense)))


@structure(1.5)
def dative_verbs(s: Sampler) -> Pair:
    clause = s.activity(mode="definite", kinds=("dat",), adjuncts=0.6)
    return statement(clause.but(tense="past", time=s.time("past")))


@structure(1.5)
def separable_present(s: Sampler) -> Pair:
    clause = s.activity(flags="h", kinds=("acc", "+", "dat", ""), only="separable")
    return statement(clause.but(time=s.time("habit")))


@structure(1.5)
def separable_past(s: Sampler) -> Pair:
    clause = s.activity(mode="definite", kinds=("acc", "+", ""), only="separable")
    return statement(clause.but(tense="past", time=s.time("past")), front=s.chance(0.5))


@structure(1.5)
def reflexive(s: Sampler) -> Pair:
    clause = s.activity(kinds=("+", "+", ""), only="reflexive")
    tense = s.pick(("past", "future"))
    return statement(clause.but(tense=tense, time=s.time(tense)))


@structure()
def interested_in(s: Sampler) -> Pair:
    who, what = s.person(), s.noun("interest")
    verb = s.core["be"]
    en = Clause(who, verb, predicate=Phrase(f"very interested in {what.en}", ""))
    de = Clause(who, s.core["interest"], phrases.noun_phrase(what, ""), early=Phrase("", "sehr"))
    tense = s.pick(("present", "past"))
    return statement(en.but(tense=tense))[0], statement(de.but(tense=tense))[1]


@structure(1.5)
def going_somewhere(s: Sampler) -> Pair:
    clause = s.activity(kinds=("dir",))
    tense, kind = s.pick((("past", "past"), ("future", "future"), ("present", "habit")))
    return statement(clause.but(tense=tense, time=s.time(kind)), front=s.chance(0.4))


@structure()
def travelling_with(s: Sampler) -> Pair:
    who = s.person()
    clause = s.activity(who, kinds=("dir",))
    companion = s.someone(who)
    extra = phrases.prepositional("with", "mit", "dat", companion)
    return statement(clause.but(tense="past", time=s.time("past"), extra=extra))


@structure()
def for_somebody(s: Sampler) -> Pair:
    """bought a new coat for his daughter."""
    who = s.person()
    verb = s.pick([v for v in s.ordinary if v.en in ("buy", "cook", "bake", "sew", "order")])
    obj = s.object_of(verb, who, "indefinite", 0.6)
    extra = phrases.prepositional("for", "für", "acc", s.someone(who))
    clause = Clause(who, verb, obj, tense="past", extra=extra, time=s.time("past"))
    return statement(clause)


@structure()
def plays_instrument(s: Sampler) -> Pair:
    entry = s.noun("piano", "guitar", "violin", "flute", "trumpet", "accordion")
    obj = NP(f"the {entry.en}", (entry.de,) * 4, entry.gender, definite=False)
    clause = Clause(s.person(), s.core["play"], obj, time=s.time("habit"))
    return statement(clause, front=s.chance(0.4))


@structure()
def has_repaired(s: Sampler) -> Pair:
    """has the car repaired: lässt das Auto reparieren."""
    names = ("repair", "clean", "check", "translate", "renovate", "iron", "wash", "print")
    who = s.third()
    verb = s.pick([v for v in s.ordinary if v.en in names and not v.prefix])
    obj = s.object_of(verb, who, "definite")
    have, let = ("have", "lassen") if who.plural else ("has", "lässt")
    time = s.time("habit")
    en = f"{who.en} {have} {obj.as_object} {verb.en_participle} {time.en}"
    return finish(en), finish(f"{who.de[0]} {let} {time.de} {obj.de[1]} {verb.de}")


@structure()
def living_since(s: Sampler) -> Pair:
    who, city, span = s.person(), s.city(), timing.span(s.rng)
    clause = Clause(
        who, s.core["live"], time=Phrase("", span.de), place=Phrase("", f"in {city.de}")
    )
    have = "has" if who.person == 3 and not who.plural else "have"
    return finish(f"{who.en} {have} been living in {city.en} {span.en}"), statement(clause)[1]


@structure()
def used_to(s: Sampler) -> Pair:
    clause = s.activity(flags="h", mode="generic", kinds=("acc", "+", ""), adjuncts=0.5)
    bare = clause.but(tense="past", time=Phrase("", "früher"))
    base = clause.but(modal="", tense="future")
    en = statement(base)[0].replace(" will ", " used to ", 1)
    return en, statement(bare)[1]
