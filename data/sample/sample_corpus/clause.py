"""Noun phrases and clauses with both sides at once, and the word order of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sample_corpus import inflection
from sample_corpus.lexicon import NOTHING, Phrase, Row, indexed, table, words

PASSIVE = next(verb for verb in table("verbs") if "P" in verb.flags)


@dataclass(frozen=True)
class NP:
    """English text and the four German cases; `pronoun` takes it up again, `known` things stand
    before new ones in German."""

    en: str
    de: tuple[str, ...]
    pronoun: str = "it"
    gender: str = "n"
    known: bool = True
    noun: Row | None = None

    @property
    def agreement(self) -> int:
        """0 for I, 1 for he, 2 for they and the polite Sie: the column of verb forms."""
        return int(indexed("pronouns")[self.pronoun].agreement)

    @property
    def is_human(self) -> bool:
        return self.noun is not None and self.noun.is_any(("prof", "human", "kin", "kinpl"))

    def case(self, name: str) -> str:
        return self.de[inflection.CASES.index(name)]


def noun_phrase(
    entry: Row,
    det: Row,
    plural: bool = False,
    adjective: Phrase = NOTHING,
    number: Phrase = NOTHING,
) -> NP:
    """Determiner, number, adjective and noun, agreeing; the adjective's German side is its stem."""
    plural = plural or entry.gender == "p"
    body = words(number.en, adjective.en, entry.en_plural if plural else entry.en)
    lead = inflection.english_article(body) if det.en == "a" else det.en
    lead = det.en_plural if plural or not entry.de_plural else lead
    pronoun = "they" if plural else {"m": "he", "f": "she"}.get(entry.gender, "it")
    forms = inflection.declined(entry, det, adjective.de, number.de, plural)
    gender = "p" if plural else entry.gender
    return NP(words(lead, body), forms, pronoun, gender, det.known == "yes", entry)


@dataclass(frozen=True)
class Clause:
    """`gap`: the object is left out, because the clause is relative to it. `negation` is "", nicht,
    noch nicht, or kein, which the object carries. `after` stands behind even the last verb."""

    subject: NP
    verb: Row
    tense: Row
    obj: NP | None = None
    dative: NP | None = None
    agent: NP | None = None
    gap: bool = False
    passive: bool = False
    negation: str = ""
    time: Phrase = NOTHING
    early: Phrase = NOTHING
    late: Phrase = NOTHING
    manner: Phrase = NOTHING
    place: Phrase = NOTHING
    goal: Phrase = NOTHING
    predicate: Phrase = NOTHING
    after: Phrase = NOTHING

    def english(self, order: str) -> str:
        """`order` is main, first (a question's), bare or gerund (both without the subject)."""
        middle = words("not" if self.negation else "", self.early.en, self.late.en)
        if order in ("bare", "gerund"):
            form = self.verb.en if order == "bare" else self.verb.en_gerund
            return words(middle, form, *self.english_end())
        with_do = bool(self.negation) or order == "first"
        verb = PASSIVE if self.passive else self.verb
        finite, *group = inflection.verb_group(verb, self.tense, self.subject.agreement, with_do)
        group += [self.verb.en_participle] if self.passive else []
        if order == "first":
            return words(finite, self.subject.en, middle, *group, *self.english_end())
        has_auxiliary = group or verb.en == "be"
        opening = (finite, middle) if has_auxiliary else (middle, finite)
        return words(self.subject.en, *opening, *group, *self.english_end())

    def english_end(self) -> list[str]:
        core = words(self.verb.en_extra, self.obj.en if self.obj and not self.gap else "")
        if self.dative:
            to = "T" in self.verb.flags
            core = words(core, "to", self.dative.en) if to else words(self.dative.en, core)
        return [
            core, self.predicate.en, f"by {self.agent.en}" if self.agent else "", self.manner.en,
            self.goal.en, self.place.en, self.time.en,
            "yet" if self.negation == "noch nicht" else "",
        ]  # fmt: skip

    def german(self, order: str) -> str:
        """`order` is main (verb second), first, final, or zu (an infinitive with its objects)."""
        middle, subject = self.german_middle(), self.subject.de[0]
        row = indexed("pronouns")[self.subject.pronoun]
        reflexive = getattr(row, f"reflexive_{self.verb.reflexive}", "")
        if order == "zu":
            zu = f"{self.verb.prefix}zu{'' if self.verb.prefix else ' '}"
            return words(reflexive, *middle, zu + self.verb.de.removeprefix(self.verb.prefix))
        verb = PASSIVE if self.passive else self.verb
        finite, prefix, tail = inflection.conjugate(verb, self.tense, self.subject.agreement)
        tail = words(self.verb.de_participle if self.passive else "", tail)
        if order == "final":
            return words(subject, reflexive, *middle, tail, prefix + finite, self.after.de)
        if order == "main":
            return words(subject, finite, reflexive, *middle, tail, prefix, self.after.de)
        is_pronoun = self.subject.en == self.subject.pronoun
        opening = (subject, reflexive) if is_pronoun else (reflexive, subject)
        return words(finite, *opening, *middle, tail, prefix, self.after.de)

    def german_middle(self) -> list[str]:
        """The known before nicht, the new behind it, and what the verb governs at the end."""
        preposition, case = self.governed
        obj = self.obj.case(case) if self.obj and not self.gap else ""
        direct = obj if not preposition and case != "nom" else ""
        known = self.obj is not None and self.obj.known
        return [
            self.time.de, self.early.de, self.dative.case("dat") if self.dative else "",
            direct if known else "",
            inflection.contract("von", self.agent.case("dat")) if self.agent else "", self.late.de,
            "" if self.negation == "kein" else self.negation, self.manner.de, self.place.de,
            "" if known else direct,
            inflection.contract(preposition, obj) if preposition and obj else "",
            obj if case == "nom" else "", self.predicate.de, self.goal.de,
        ]  # fmt: skip

    @property
    def governed(self) -> tuple[str, str]:
        """The preposition, if any, and the case that the verb asks of its object."""
        preposition, _, case = self.verb.government.rpartition("+")
        return preposition, case if case in inflection.CASES else "acc"


def relative(head: NP, clause: Clause) -> NP:
    """The head with a clause behind it, in which it is the subject or (a gap) the object."""
    en, de = "", ""
    if clause.gap:
        preposition, case = clause.governed
        en = "whom " if head.is_human else "that "
        de = words(preposition, inflection.ending("relative", case, head.gender)) + " "
    en, de = f" {en}{clause.english('main')}", f", {de}{clause.german('final')},"
    return replace(head, en=head.en + en, de=tuple(form + de for form in head.de))
