"""A clause as its parts, and its word order in English and German."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sample_corpus import english, german
from sample_corpus.lexicon import Phrase, Verb
from sample_corpus.phrases import NP, words

SUBORDINATE, QUESTION, MAIN = "final", "first", "second"


@dataclass(frozen=True)
class Clause:
    """`negation` is "", nicht, kein (carried by the object) or noch nicht; `early` adverbs
    (often, just) precede the German objects, `late` ones (already) follow definite objects;
    `after` stands behind even the final verb (als ...)."""

    subject: NP
    verb: Verb
    obj: NP | None = None
    dative: NP | None = None
    tense: str = "present"
    modal: str = ""
    passive: bool = False
    agent: NP | None = None
    negation: str = ""
    time: Phrase | None = None
    early: Phrase | None = None
    late: Phrase | None = None
    manner: Phrase | None = None
    place: Phrase | None = None
    direction: Phrase | None = None
    predicate: Phrase | None = None
    extra: Phrase | None = None
    after: Phrase | None = None

    def but(self, **changes) -> Clause:
        return replace(self, **changes)


def en(phrase: Phrase | None) -> str:
    return phrase.en if phrase else ""


def de(phrase: Phrase | None) -> str:
    return phrase.de if phrase else ""


# English -----------------------------------------------------------------------------------


def verb_group(clause: Clause, question: bool) -> list[str]:
    forms = (clause.verb.en, clause.verb.en_past, clause.verb.en_participle)
    person, plural = clause.subject.person, clause.subject.plural
    if clause.modal:
        group = english.with_modal(forms, clause.modal, person, plural, clause.passive)
        needs_do = english.MODALS[clause.modal][2]
        rest = group[1:]
    else:
        build = english.passive if clause.passive else english.active
        group = build(forms, clause.tense, person, plural)
        needs_do, rest = len(group) == 1 and clause.verb.en != "be", []
    if needs_do and (question or clause.negation):
        key = clause.modal or clause.tense
        return english.do_support(key, clause.verb.en, person, plural, rest)
    return group


def complements(clause: Clause) -> str:
    """Everything after the English verb, in order."""
    verb = clause.verb
    particle = verb.en_extra if verb.en_extra in english.PARTICLES else ""
    rest = "" if particle else verb.en_extra
    obj = clause.obj.as_object if clause.obj else ""
    if verb.government.startswith("dat+") and clause.dative:
        recipient = clause.dative.as_object
        with_to = "T" in verb.flags
        core = words(obj, "to", recipient) if with_to else words(recipient, obj)
    else:
        core = words(en(clause.manner), rest, obj) if rest and obj else words(rest, obj)
    split = particle and clause.obj is not None and clause.obj.is_pronoun
    core = words(core, particle) if split else words(particle, core)
    agent = f"by {clause.agent.as_object}" if clause.agent else ""
    yet = "yet" if clause.negation == "noch nicht" else ""
    return words(
        core, en(clause.predicate), agent, "" if rest and obj else en(clause.manner),
        en(clause.direction), en(clause.after),
        en(clause.extra), en(clause.place), en(clause.time), yet,
    )  # fmt: skip


def english_clause(clause: Clause, order: str = MAIN, front: str = "") -> str:
    """Statement or question; `front` (a time, a question word) is put before it."""
    group = verb_group(clause, order == QUESTION)
    middle = words(
        "not" if clause.negation else "",
        en(clause.early),
        en(clause.late),
    )
    subject = clause.subject.en
    if order == QUESTION:
        return words(front, group[0], subject, middle, *group[1:], complements(clause))
    simple = len(group) == 1 and clause.verb.en != "be"
    verbs = [middle, *group] if simple else [group[0], middle, *group[1:]]
    return words(front, subject, *verbs, complements(clause))


def english_bare(clause: Clause, form: str = "base") -> str:
    """The verb phrase without its subject, as a base form or a gerund."""
    verb = english.gerund(clause.verb.en) if form == "ing" else clause.verb.en
    return words(en(clause.early), verb, complements(clause))


# German ------------------------------------------------------------------------------------


def negator(clause: Clause) -> str:
    return "" if clause.negation == "kein" else clause.negation


def governed(clause: Clause, with_preposition: bool) -> str:
    """The object in the case its verb asks for: the bare one, or the prepositional one."""
    if clause.obj is None or clause.passive:
        return ""
    preposition, plus, case = clause.verb.government.rpartition("+")
    if preposition == "dat":
        preposition = ""
    if bool(preposition) != with_preposition:
        return ""
    phrase = clause.obj.case(case if case in german.CASES else "acc")
    return german.contract(preposition, phrase) if preposition else phrase


def german_middle(clause: Clause, with_time: bool = True, with_reflexive: bool = True) -> list[str]:
    """The middle field: pronouns, time, dative, definite object, nicht, place, the new."""
    reflexive = ""
    if clause.verb.reflexive and with_reflexive:
        who = clause.subject
        polite = who.natural == "Your"
        person = 3 if polite else who.person
        reflexive = german.reflexive(person, who.plural, clause.verb.reflexive)
    direct = governed(clause, with_preposition=False)
    is_pronoun = clause.obj is not None and clause.obj.is_pronoun
    is_known = clause.obj is not None and clause.obj.definite
    dative = clause.dative.case("dat") if clause.dative else ""
    dative_first = clause.dative is not None and clause.dative.is_pronoun
    agent = german.contract("von", clause.agent.case("dat")) if clause.agent else ""
    return [
        reflexive,
        direct if is_pronoun else "",
        dative if dative_first else "",
        de(clause.time) if with_time else "",
        de(clause.early),
        dative if not dative_first else "",
        direct if is_known and not is_pronoun else "",
        agent,
        words(de(clause.late), negator(clause)),
        de(clause.extra) if is_known else "",
        de(clause.manner),
        de(clause.place),
        de(clause.extra) if not is_known else "",
        direct if not is_known and not is_pronoun else "",
        governed(clause, with_preposition=True),
        de(clause.predicate),
        de(clause.direction),
    ]


def german_clause(clause: Clause, order: str = MAIN, front: str = "") -> str:
    """Verb second, first or final. `front` fills the first position, and is not the subject."""
    who = clause.subject
    polite = who.natural == "Your"
    finite, prefix, tail = german.verb_complex(
        clause.verb, clause.tense, 3 if polite else who.person, who.plural,
        clause.modal, clause.passive,
    )  # fmt: skip
    subject = who.case("nom")
    front_is_time = bool(front) and clause.time is not None and front == clause.time.de
    inverted = order != SUBORDINATE and (bool(front) or order == QUESTION)
    early_sich = bool(clause.verb.reflexive) and inverted and not who.is_pronoun
    middle = german_middle(clause, not front_is_time, not early_sich)
    if order == SUBORDINATE:
        return words(front, subject, *middle, *tail, prefix + finite, de(clause.after))
    sich = german.reflexive(who.person, who.plural, clause.verb.reflexive) if early_sich else ""
    if inverted:
        return words(front, finite, sich, subject, *middle, *tail, prefix, de(clause.after))
    return words(subject, finite, *middle, *tail, prefix, de(clause.after))


def german_zu(clause: Clause) -> str:
    return words(*german_middle(clause), german.zu_infinitive(clause.verb))
