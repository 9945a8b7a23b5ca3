"""Passives: in four tenses, with a modal verb, with and without an agent."""

from __future__ import annotations

from sample_corpus.clause import Clause
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.simple import ALREADY
from sample_corpus.structures import Pair, statement, structure


def passive_clause(s: Sampler) -> Clause:
    verb = s.verb("x", ("acc",))
    entry = s.noun(*verb.objects)
    while entry.types & {"game", "subj", "lang"}:
        verb = s.verb("x", ("acc",))
        entry = s.noun(*verb.objects)
    nobody = NP("", ("", "", "", ""))
    subject = s.thing(entry, nobody, "definite", described=0.5)
    return Clause(subject, verb, passive=True)


@structure(1.5)
def passive_past(s: Sampler) -> Pair:
    return statement(passive_clause(s).but(tense="past", time=s.time("past")), front=s.chance(0.4))


@structure(1.5)
def passive_with_agent(s: Sampler) -> Pair:
    clause = passive_clause(s).but(tense=s.pick(("past", "perfect")), agent=s.third())
    return statement(clause.but(time=s.time("past") if clause.tense == "past" else None))


@structure()
def passive_perfect(s: Sampler) -> Pair:
    return statement(passive_clause(s).but(tense="perfect", late=ALREADY))


@structure()
def passive_modal(s: Sampler) -> Pair:
    clause = passive_clause(s).but(modal=s.pick(("must", "should", "had")))
    kind = "past" if clause.modal == "had" else "future"
    return statement(clause.but(time=s.time(kind)))


@structure()
def passive_future(s: Sampler) -> Pair:
    return statement(passive_clause(s).but(tense="future", time=s.time("future")), s.chance(0.4))
