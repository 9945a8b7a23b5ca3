"""Two clauses or two objects joined: und, aber, deshalb, sowohl ... als auch."""

from __future__ import annotations

from sample_corpus.clause import MAIN, Clause, complements, english_clause, german_clause
from sample_corpus.phrases import NP, words
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, structure
from sample_corpus.subordinate import act, again, could_not, state


@structure(1.5)
def two_clauses_and(s: Sampler) -> Pair:
    first, second = act(s, s.third(), timed=True), act(s, s.third(), timed=True)
    en = f"{english_clause(first)}, and {english_clause(second)}"
    return finish(en), finish(f"{german_clause(first)}, und {german_clause(second)}")


@structure(1.5)
def two_clauses_but(s: Sampler) -> Pair:
    first = act(s, s.third(), timed=True).but(modal="wanted")
    second = state(s, again(first.subject), "past")
    en = f"{english_clause(first)}, but {english_clause(second)}"
    return finish(en), finish(f"{german_clause(first)}, aber {german_clause(second)}")


@structure()
def shared_subject(s: Sampler) -> Pair:
    """The man opened the window and closed the door (one subject, two verbs)."""
    first = act(s, s.third())
    second = act(s, first.subject)
    while second.verb.de == first.verb.de:
        second = act(s, first.subject)
    silent = words(second.verb.en_past, complements(second))
    de = german_clause(second).removeprefix(second.subject.de[0]).strip()
    return finish(f"{english_clause(first)} and {silent}"), finish(
        f"{german_clause(first)} und {de}"
    )


@structure()
def therefore(s: Sampler) -> Pair:
    """..., therefore ...: ..., deshalb + verb."""
    who = s.third()
    first, second = state(s, who, "past"), could_not(s, again(who))
    return (
        finish(f"{english_clause(first)}; therefore {english_clause(second)}"),
        finish(f"{german_clause(first)}; deshalb {german_clause(second, MAIN, 'X')[2:]}"),
    )


@structure()
def either_or(s: Sampler) -> Pair:
    """either ... or ...: entweder ... oder ... (two objects of one verb)."""
    return paired_objects(s, ("either", "or"), ("entweder", "oder"), "future")


@structure()
def both_and(s: Sampler) -> Pair:
    return paired_objects(s, ("both", "and"), ("sowohl", "als auch"), "past")


@structure()
def neither_nor(s: Sampler) -> Pair:
    return paired_objects(s, ("neither", "nor"), ("weder", "noch"), "past")


def paired_objects(s: Sampler, en: tuple[str, str], de: tuple[str, str], tense: str) -> Pair:
    who = s.person()
    verb = s.verb("i", ("acc",))
    one, two = (s.object_of(verb, who, "definite", 0.2) for _ in "ab")
    while one.en.split()[-1] == two.en.split()[-1]:
        verb = s.verb("i", ("acc",))
        one, two = (s.object_of(verb, who, "definite", 0.2) for _ in "ab")
    comma = " " + de[1]
    forms = tuple(f"{de[0]} {a}{comma} {b}" for a, b in zip(one.de, two.de, strict=True))
    obj = NP(f"{en[0]} {one.en} {en[1]} {two.en}", (forms[0], forms[1], forms[2], forms[3]))
    clause = Clause(who, verb, obj, tense=tense)
    return finish(english_clause(clause)), finish(german_clause(clause))
