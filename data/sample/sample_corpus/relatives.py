"""Relative clauses in all four cases, built onto a noun phrase."""

from __future__ import annotations

from dataclasses import replace

from sample_corpus import german, phrases
from sample_corpus.clause import SUBORDINATE, Clause, english_clause, german_clause
from sample_corpus.lexicon import Noun, Phrase, Verb
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, statement, structure


def relative_pronoun(head: NP, case: str) -> str:
    return german.cell(german.RELATIVE, case, head.column)


def as_subject(head: NP) -> NP:
    """The relative pronoun in the place of the subject: who, der."""
    forms = tuple(relative_pronoun(head, case) for case in german.CASES)
    return replace(head, en="who", en_object="", de=forms, is_pronoun=True)


def with_subject_gap(head: NP, clause: Clause) -> NP:
    inner = clause.but(subject=as_subject(head))
    return phrases.attach(
        head, f" {english_clause(inner)}", f", {german_clause(inner, SUBORDINATE)},"
    )


def with_object_gap(head: NP, clause: Clause, is_person: bool) -> NP:
    """`clause` has no object; the pronoun takes the case or preposition its verb asks for."""
    preposition, _, case = clause.verb.government.rpartition("+")
    pronoun = relative_pronoun(head, case)
    lead = f"{preposition} {pronoun}".strip()
    english = f" {'whom' if is_person else 'that'} {english_clause(clause)}"
    return phrases.attach(head, english, f", {german_clause(clause, SUBORDINATE, lead)},")


def human_head(s: Sampler, plural: bool = False) -> NP:
    entry = s.noun("man", "woman", "boy", "lady") if s.chance(0.3) else s.noun("prof")
    return phrases.noun_phrase(entry, "the", s.adjectives(entry, 0.3), plural)


def thing_head(s: Sampler, verb: Verb, described: float = 0.0) -> tuple[NP, Noun]:
    """A definite thing that the verb can have as its object; undescribed, so that no
    predicate contradicts it."""
    unfit = {"prof", "human", "kin", "kinpl", "lang", "subj", "game", "interest", "hope", "place"}
    while True:
        entry = s.noun(*verb.objects)
        if not entry.types & unfit:
            many = not entry.is_mass and s.chance(0.2)
            return phrases.noun_phrase(entry, "the", s.adjectives(entry, described), many), entry


def thing_verb(s: Sampler, kinds: tuple[str, ...]) -> Verb:
    """A verb with at least one object that `thing_head` accepts."""
    unfit = {"prof", "human", "kin", "kinpl", "lang", "subj", "game", "interest", "hope", "place"}
    while True:
        verb = s.verb("i", kinds)
        if any(not noun.types & unfit for noun in s.lexicon.of_type(*verb.objects)):
            return verb


def past_activity(s: Sampler, subject: NP | None = None, adjuncts: float = 0.3) -> Clause:
    kinds = ("acc", "acc", "dat", "+", "dir")
    return s.activity(subject, kinds=kinds, adjuncts=adjuncts).but(tense="past")


def thing_predicate(s: Sampler, entry: Noun) -> Phrase:
    """is very old, or a verb-free remark that fits any thing."""
    adjective = s.adjective(entry, gradable=True)
    degree = s.adverb("degree")
    if adjective is None:
        return s.pick((Phrase("from Italy", "aus Italien"), Phrase("unusual", "ungewöhnlich")))
    return Phrase(f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}")


@structure(2)
def relative_nominative(s: Sampler) -> Pair:
    """The man who bought the house works ..."""
    head = human_head(s, plural=s.chance(0.25))
    subject = with_subject_gap(head, past_activity(s, head, 0).but(time=None))
    clause = past_activity(s, head, 0)
    return statement(clause.but(subject=subject, time=s.time("past")))


@structure(1.5)
def relative_nominative_object(s: Sampler) -> Pair:
    """knows the woman who ..."""
    head, who = human_head(s), s.person()
    obj = with_subject_gap(head, past_activity(s, head, 0))
    verb = s.pick([v for v in s.ordinary if v.en in ("visit", "greet", "meet", "praise", "admire")])
    return statement(Clause(who, verb, obj, tense="past"))


@structure(2)
def relative_accusative(s: Sampler) -> Pair:
    """The book that Anna bought yesterday is very exciting."""
    verb, who = thing_verb(s, ("acc",)), s.person()
    head, entry = thing_head(s, verb)
    inner = Clause(who, verb, tense="past", time=s.time("past"))
    subject = with_object_gap(head, inner, is_person=False)
    clause = Clause(subject, s.core["be"], predicate=thing_predicate(s, entry))
    return statement(clause.but(tense=s.pick(("present", "past"))))


@structure(1.5)
def relative_accusative_object(s: Sampler) -> Pair:
    """lost the key that his brother had given ... : the clause stands inside the sentence."""
    who, other = s.person(), s.third()
    verb = thing_verb(s, ("acc",))
    head, entry = thing_head(s, verb, 0.6)
    outer = [v for v in s.ordinary if v.government == "acc" and fits(entry, v) and not v.prefix]
    if len(outer) > 1:
        outer = [v for v in outer if v.de != verb.de]
    if not outer:
        return relative_accusative_object(s)
    inner = Clause(other, verb, tense="pluperfect")
    obj = with_object_gap(head, inner, is_person=False)
    return statement(Clause(who, s.pick(outer), obj, tense="past", time=None))


def fits(entry: Noun, verb: Verb) -> bool:
    return entry.en in verb.objects or bool(entry.types & set(verb.objects))


@structure(1.5)
def relative_dative(s: Sampler) -> Pair:
    """The woman whom we helped: die Frau, der wir halfen."""
    head = human_head(s, plural=s.chance(0.2))
    verb = s.pick([v for v in s.ordinary if v.en in ("help", "thank", "congratulate", "trust")])
    inner = Clause(s.person(), verb, tense="past")
    subject = with_object_gap(head, inner, is_person=True)
    clause = past_activity(s, head, 0)
    return statement(clause.but(subject=subject, time=s.time("past")))


@structure(1.5)
def relative_preposition(s: Sampler) -> Pair:
    """The train that we were waiting for: der Zug, auf den wir warteten."""
    who = s.person()
    verb = thing_verb(s, ("+",))
    head, entry = thing_head(s, verb)
    inner = Clause(who, verb, tense="past")
    subject = with_object_gap(head, inner, is_person=False)
    clause = Clause(subject, s.core["be"], predicate=thing_predicate(s, entry))
    return statement(clause.but(tense="past"))


@structure()
def relative_with_person(s: Sampler) -> Pair:
    """The colleague with whom Anna travelled to Rome: mit dem Anna nach Rom reiste."""
    head, other = human_head(s), s.person()
    inner = s.activity(other, kinds=("dir",)).but(tense="past")
    lead = f"mit {relative_pronoun(head, 'dat')}"
    subject = phrases.attach(
        head, f" with whom {english_clause(inner)}",
        f", {german_clause(inner, SUBORDINATE, lead)},",
    )  # fmt: skip
    return statement(past_activity(s, head, 0).but(subject=subject, time=s.time("past")))


@structure()
def relative_genitive(s: Sampler) -> Pair:
    """The man whose car we bought: der Mann, dessen Auto wir kauften."""
    head = human_head(s)
    names = ("buy", "repair", "find", "sell", "admire", "photograph")
    verb = s.pick([v for v in s.ordinary if v.en in names])
    thing = s.noun("vehicle", "bicycle", "boat", "piano", "camera", "suitcase", "ring", "sofa")
    while not fits(thing, verb):
        verb = s.pick([v for v in s.ordinary if v.en in names])
        thing = s.noun("vehicle", "bicycle", "bldg", "piano", "camera", "suitcase", "ring", "sofa")
    inner = Clause(s.person(), verb, tense="past")
    lead = f"{relative_pronoun(head, 'gen')} {thing.de}"
    subject = phrases.attach(
        head, f" whose {thing.en} {english_clause(inner)}",
        f", {german_clause(inner, SUBORDINATE, lead)},",
    )  # fmt: skip
    return statement(past_activity(s, head, 0).but(subject=subject, time=s.time("past")))


@structure()
def relative_where(s: Sampler) -> Pair:
    """The city in which Peter lives: die Stadt, in der Peter wohnt."""
    entry = s.noun("city", "village", "house", "villa", "castle", "farmhouse", "hotel")
    head = phrases.noun_phrase(entry, "the")
    lead = f"in {relative_pronoun(head, 'dat')}"
    inner = Clause(s.person(), s.core["live"], tense=s.pick(("present", "past")))
    subject = phrases.attach(
        head, f" in which {english_clause(inner)}",
        f", {german_clause(inner, SUBORDINATE, lead)},",
    )  # fmt: skip
    degree, adjective = s.adverb("degree"), s.adjective(entry, gradable=True)
    predicate = Phrase(f"{degree.en} {adjective.en}", f"{degree.de} {adjective.de}")
    return statement(Clause(subject, s.core["be"], predicate=predicate))


@structure()
def cleft(s: Sampler) -> Pair:
    """It was the baker who ...: Es war der Bäcker, der ..."""
    head = human_head(s)
    subject = with_subject_gap(head, past_activity(s, head, 0.4).but(time=s.time("past")))
    clause = Clause(NP("it", ("es",) * 4, "n", is_pronoun=True), s.core["be"], tense="past")
    return statement(clause.but(predicate=Phrase(subject.en, subject.de[0])))
