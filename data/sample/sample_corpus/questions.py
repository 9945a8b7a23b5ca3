"""Questions, imperatives and polite requests."""

from __future__ import annotations

from sample_corpus import german, phrases
from sample_corpus.clause import Clause, english_bare, english_clause, german_clause, german_middle
from sample_corpus.lexicon import Phrase
from sample_corpus.phrases import NP, words
from sample_corpus.quantities import PRICES, SHOPS
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, question, structure

KINDS = ("acc", "acc", "+", "dat", "")
PLEASE = Phrase("", "bitte")


def friend(s: Sampler) -> str:
    """A first name to address: it makes `you` the familiar du."""
    return s.pick(s.lexicon.names[s.pick(("female", "male"))])


def formal(s: Sampler) -> tuple[str, str]:
    """Mr Weber, Herr Weber: it makes `you` the polite Sie."""
    person = s.titled()
    return person.en, person.de[0]


def addressed(pair: Pair, en: str, de: str) -> Pair:
    """Put the address before a sentence, which loses its capital (I and Sie keep theirs)."""
    return f"{en}, {pair[0][0].lower()}{pair[0][1:]}", f"{de}, {pair[1][0].lower()}{pair[1][1:]}"


@structure(1.5)
def asks_friend_perfect(s: Sampler) -> Pair:
    """Anna, did you read the book yesterday? (spoken past: perfect)"""
    clause = s.activity(phrases.pronoun("you"), flags="i", kinds=KINDS, adjuncts=0.2)
    clause = clause.but(time=s.time("past"))
    en = question(clause.but(tense="past"))[0]
    de = question(clause.but(tense="perfect"))[1]
    name = friend(s)
    return addressed((en, de), name, name)


@structure()
def asks_friend_present(s: Sampler) -> Pair:
    clause = s.activity(phrases.pronoun("you"), flags="hi", mode="generic", kinds=KINDS)
    pair = question(clause.but(early=s.pick(s.lexicon.phrases["frequency"][:3])))
    name = friend(s)
    return addressed(pair, name, name)


@structure(1.5)
def asks_friend_modal(s: Sampler) -> Pair:
    clause = s.activity(phrases.pronoun("you"), flags="i", kinds=KINDS, adjuncts=0.2)
    clause = clause.but(modal=s.pick(("can", "like", "want")), time=s.time("future"))
    name = friend(s)
    return addressed(question(clause), name, name)


@structure(1.5)
def asks_formal_request(s: Sampler) -> Pair:
    """Mrs Weber, could you please sign the contract tomorrow?"""
    clause = s.activity(phrases.formal_you(), flags="i", kinds=KINDS, adjuncts=0.2)
    clause = clause.but(time=s.time("future"))
    en = question(clause.but(modal="could", early=Phrase("please", "")))[0]
    de = question(clause.but(modal="could_polite", early=None, time=Phrase(
        "", f"bitte {clause.time.de}")))[1]  # fmt: skip
    return addressed((en, de), *formal(s))


@structure(1.5)
def asks_yes_no_past(s: Sampler) -> Pair:
    clause = s.activity(s.third(), kinds=KINDS, adjuncts=0.3).but(time=s.time("past"))
    return question(clause.but(tense="past"))[0], question(clause.but(tense="perfect"))[1]


@structure()
def asks_yes_no_present(s: Sampler) -> Pair:
    clause = s.activity(s.third(), flags="h", mode="generic", kinds=KINDS)
    return question(clause.but(time=s.time("habit")))


@structure()
def asks_yes_no_already(s: Sampler) -> Pair:
    clause = s.activity(s.third(), flags="i", mode="definite", kinds=("acc", "dat"), adjuncts=0)
    return question(clause.but(tense="perfect", late=Phrase("already", "schon")))


def wh(s: Sampler, en: str, de: str, clause: Clause) -> Pair:
    """Past questions take did in English and the perfect in German."""
    return (
        question(clause.but(tense="past"), en, "x")[0],
        question(clause.but(tense="perfect"), en, de)[1],
    )


@structure(1.5)
def asks_where(s: Sampler) -> Pair:
    clause = s.activity(s.third(), flags="i", mode="any", kinds=("acc", "acc", "+"), adjuncts=0)
    return wh(s, "where", "wo", clause.but(time=s.time("past")))


@structure()
def asks_when(s: Sampler) -> Pair:
    clause = s.activity(s.third(), flags="i", kinds=("acc", "dat", "+", "dir"), adjuncts=0.3)
    tense = s.pick(("past", "future"))
    if tense == "past":
        return wh(s, "when", "wann", clause)
    return question(clause.but(tense="future"), "when", "wann")


@structure()
def asks_why(s: Sampler) -> Pair:
    clause = s.activity(s.third(), kinds=KINDS, adjuncts=0.3).but(time=s.time("past"))
    return wh(s, "why", "warum", clause)


@structure()
def asks_why_not(s: Sampler) -> Pair:
    clause = s.activity(
        s.third(), flags="i", mode="definite", kinds=("acc", "dat", "+"), adjuncts=0
    )
    return question(clause.but(modal=s.pick(("could", "should", "want")), negation="nicht"),
                    "why", "warum")  # fmt: skip


@structure()
def asks_how_often(s: Sampler) -> Pair:
    clause = s.activity(s.third(), flags="h", mode="generic", kinds=KINDS, adjuncts=0.5)
    return question(clause, "how often", "wie oft")


@structure()
def asks_what_did(s: Sampler) -> Pair:
    """What did the cook buy at the market yesterday?"""
    names = ("buy", "sell", "find", "draw", "eat", "drink", "order", "photograph", "cook", "paint",
             "repair", "bake", "read")  # fmt: skip
    verb = s.pick([v for v in s.ordinary if v.en in names])
    clause = Clause(s.third(), verb, place=s.place(verb), time=s.time("past"))
    return wh(s, "what", "was", clause)


@structure()
def asks_who(s: Sampler) -> Pair:
    """Who wrote the letter? Wer hat den Brief geschrieben?"""
    who = NP("who", ("wer", "wen", "wem", "wessen"), natural="it")
    clause = s.activity(who, kinds=("acc", "acc", "dat", "+"), adjuncts=0.3)
    clause = clause.but(time=s.time("past"))
    return (
        finish(english_clause(clause.but(tense="past")), "?"),
        finish(german_clause(clause.but(tense="perfect")), "?"),
    )


@structure()
def asks_whom(s: Sampler) -> Pair:
    names = ("invite", "visit", "greet", "help", "thank", "congratulate", "meet", "call", "praise")
    verb = s.pick([v for v in s.ordinary if v.en in names and v.government in ("acc", "dat")])
    clause = Clause(s.third(), verb, time=s.time("past"))
    return wh(s, "whom", "wem" if verb.government == "dat" else "wen", clause)


@structure()
def asks_which(s: Sampler) -> Pair:
    """Which coat would your sister like to buy? Welchen Mantel möchte ...?"""
    names = ("buy", "read", "repair", "visit", "sell", "sign", "translate", "paint", "learn",
             "water", "rent")  # fmt: skip
    verb = s.pick([v for v in s.ordinary if v.en in names])
    entry = s.noun(*verb.objects)
    while entry.is_mass or entry.types & {"prof", "kin", "kinpl", "place"}:
        verb = s.pick([v for v in s.ordinary if v.en in names])
        entry = s.noun(*verb.objects)
    obj = phrases.noun_phrase(entry, "which", s.adjectives(entry, 0.4), s.chance(0.3))
    clause = Clause(
        s.third(), verb, time=s.time("future"), modal=s.pick(("like", "should", "must"))
    )
    return question(clause, obj.en, obj.case("acc"))


@structure()
def asks_how_much(s: Sampler) -> Pair:
    entry = s.noun(*sorted(PRICES))
    subject = phrases.noun_phrase(entry, s.pick(("the", "this")), s.adjectives(entry, 0.8))
    place = phrases.being_at(s.pick([p for p in s.lexicon.places if p.noun.en in SHOPS]))
    clause = Clause(subject, s.core["cost"], tense=s.pick(("present", "past")), place=place)
    return question(clause, "how much", "wie viel")


@structure(1.5)
def imperative_friend(s: Sampler) -> Pair:
    """Anna, please turn on the lamp. Anna, schalte bitte die Lampe ein!"""
    clause = s.activity(phrases.pronoun("you"), flags="i", kinds=KINDS, adjuncts=0.4)
    clause = clause.but(time=s.time("future") if s.chance(0.5) else None)
    name = friend(s)
    reflexive, *middle = german_middle(clause)
    de = words(german.imperative(clause.verb), reflexive, "bitte", *middle, clause.verb.prefix)
    return finish(f"{name}, please {english_bare(clause)}"), finish(f"{name}, {de}", "!")


@structure(1.5)
def imperative_formal(s: Sampler) -> Pair:
    """Please fill out the form, Mr Weber. Bitte füllen Sie das Formular aus, Herr Weber!"""
    clause = s.activity(phrases.formal_you(), flags="i", kinds=KINDS, adjuncts=0.4)
    clause = clause.but(time=s.time("future") if s.chance(0.5) else None)
    en, de = formal(s)
    return (
        finish(f"please {english_bare(clause)}, {en}"),
        finish(f"{german_clause(clause, front='bitte')}, {de}", "!"),
    )


@structure()
def imperative_not(s: Sampler) -> Pair:
    """Please do not forget the key, Mrs Weber."""
    clause = s.activity(
        phrases.formal_you(), flags="i", mode="definite", kinds=("acc",), adjuncts=0
    )
    clause = clause.but(negation="nicht")
    en, de = formal(s)
    return (
        finish(f"please do not {english_bare(clause)}, {en}"),
        finish(f"{german_clause(clause, front='bitte')}, {de}", "!"),
    )


@structure()
def lets(s: Sampler) -> Pair:
    """Let us visit the museum tomorrow, Anna. Lass uns morgen das Museum besuchen, Anna!"""
    clause = s.activity(phrases.pronoun("we"), flags="i", kinds=("acc", "acc", "+", "dir", ""))
    clause = clause.but(time=s.time("future"))
    if clause.verb.reflexive:
        clause = s.activity(phrases.pronoun("we"), flags="i", kinds=("dir",)).but(time=clause.time)
    name = friend(s)
    return (
        finish(f"let us {english_bare(clause)}, {name}"),
        finish(f"lass uns {words(*german_middle(clause), clause.verb.de)}, {name}", "!"),
    )
