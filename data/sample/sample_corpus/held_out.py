"""Structures for the test split alone: parts that training shows, joined as it never does."""

from __future__ import annotations

from sample_corpus import phrases
from sample_corpus.clause import (
    SUBORDINATE,
    Clause,
    english_bare,
    english_clause,
    german_clause,
    german_zu,
)
from sample_corpus.infinitives import purpose_trip
from sample_corpus.lexicon import Phrase
from sample_corpus.nominal import COMPARED, described, grade
from sample_corpus.passives import passive_clause
from sample_corpus.relatives import with_object_gap
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, inverted, structure, subordinate
from sample_corpus.subordinate import (
    ABSENCES,
    FEELINGS,
    act,
    again,
    could_not,
    leading,
    state,
    trailing,
)


@structure(held_out=True)
def that_clause_passive(s: Sampler) -> Pair:
    """A passive inside a that-clause."""
    main = Clause(s.person(), s.core[s.pick(("know", "say", "think"))])
    return trailing(main, passive_clause(s).but(tense="perfect", late=Phrase("already", "schon")),
                    "that", "dass")  # fmt: skip


@structure(held_out=True)
def because_passive(s: Sampler) -> Pair:
    """A passive inside a because-clause."""
    sub = passive_clause(s).but(tense="past", agent=s.third())
    main = state(s, s.third(), "past", FEELINGS)
    return trailing(main, sub, "because", "weil")


@structure(held_out=True)
def relative_in_whether(s: Sampler) -> Pair:
    """A relative clause inside a whether-clause."""
    names = ("lose", "forget", "hide", "look")
    verbs = [v for v in s.ordinary if v.en in names and v.government == "acc"]
    entry = s.noun("small")
    head, verb = phrases.noun_phrase(entry, "the", s.adjectives(entry)), s.pick(verbs)
    obj = with_object_gap(head, Clause(s.third(), verb, tense="past", time=s.time("past")), False)
    find = next(v for v in s.ordinary if v.en == "find")
    main = Clause(s.person(), s.core["know"], negation="nicht")
    return trailing(main, Clause(s.third(), find, obj, tense="perfect"), "whether", "ob")


@structure(held_out=True)
def although_zu(s: Sampler) -> Pair:
    """A zu-infinitive after a fronted although-clause."""
    who = s.third()
    clause = s.activity(again(who), flags="i", kinds=("acc", "+"), adjuncts=0.2)
    en_sub, de_sub = subordinate(state(s, who, "past"), "although", "obwohl")
    de = "versuchten" if who.plural else "versuchte"
    subject = again(who)
    return (
        finish(f"{en_sub}, {subject.en} tried to {english_bare(clause)}"),
        finish(f"{de_sub}, {de} {subject.de[0]}, {german_zu(clause)}"),
    )


@structure(held_out=True)
def comparative_in_that(s: Sampler) -> Pair:
    """A comparison inside a that-clause: the verb goes behind it."""
    entry, adjective = described(s, *COMPARED, gradable=True)
    owner = s.pick(s.lexicon.names[s.pick(("female", "male"))])
    second, first = phrases.owned(owner, entry), phrases.noun_phrase(entry, "my")
    en, de = grade(adjective, "er"), adjective.comparative
    after = Phrase(f"than {second.en}", f"als {second.de[0]}")
    sub = Clause(first, s.core["be"], predicate=Phrase(en, de), after=after)
    return trailing(Clause(s.third(), s.core[s.pick(("think", "say"))]), sub, "that", "dass")


@structure(held_out=True)
def question_with_because(s: Sampler) -> Pair:
    """A question that carries a because-clause."""
    who = s.third()
    clause = could_not(s, who)
    en_sub, de_sub = subordinate(state(s, again(who), "past"), "because", "weil")
    en, de = english_clause(clause, "first"), german_clause(clause, "first")
    return finish(f"{en} {en_sub}", "?"), finish(f"{de}, {de_sub}", "?")


@structure(held_out=True)
def if_then_passive(s: Sampler) -> Pair:
    """A passive future after an if-clause."""
    sub = state(s, s.third(), "present", ABSENCES)
    return leading(passive_clause(s).but(tense="future", agent=s.third()), sub, "if", "wenn")


@structure(held_out=True)
def after_then_purpose(s: Sampler) -> Pair:
    """An after-clause, a main clause of motion and a purpose, in one sentence."""
    who = s.third()
    sub = act(s, who, "pluperfect")
    main, purpose = purpose_trip(s, again(who), "past")
    en = f"after {english_clause(sub)}, {english_clause(main)} in order to {english_bare(purpose)}"
    front = f"nachdem {german_clause(sub, SUBORDINATE)}"
    return finish(en), finish(f"{inverted(main, front)}, um {german_zu(purpose)}")
