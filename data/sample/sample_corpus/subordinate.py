"""Subordinate clauses (verb final), conditionals, indirect questions, coordination."""

from __future__ import annotations

from sample_corpus import phrases
from sample_corpus.clause import (
    SUBORDINATE,
    Clause,
    english_clause,
    german_clause,
)
from sample_corpus.lexicon import Phrase
from sample_corpus.phrases import NP
from sample_corpus.sampler import Sampler
from sample_corpus.structures import Pair, finish, inverted, structure, subordinate

KINDS = ("acc", "acc", "+", "dat", "")
OPENERS = (("know", "know"), ("hope", "hope"), ("think", "think"), ("say", "say"))
HINDRANCES = {"tired": "müde", "sick": "krank", "busy": "beschäftigt", "hungry": "hungrig",
              "nervous": "nervös", "thirsty": "durstig", "sad": "traurig", "exhausted": "erschöpft",
              "injured": "verletzt", "angry": "wütend", "distracted": "abgelenkt"}  # fmt: skip
ABSENCES = {en: HINDRANCES[en] for en in ("tired", "sick", "busy", "exhausted", "injured")}
FEELINGS = {"happy": "glücklich", "satisfied": "zufrieden", "surprised": "überrascht",
            "disappointed": "enttäuscht", "proud": "stolz", "excited": "aufgeregt",
            "angry": "wütend", "relieved": "erleichtert", "grateful": "dankbar"}  # fmt: skip
PRONOUN_OF = {"his": "he", "her": "she", "their": "they", "my": "I", "our": "we"}


def again(subject: NP) -> NP:
    """The pronoun that takes a subject up again."""
    return (
        phrases.pronoun(PRONOUN_OF[subject.natural]) if subject.natural in PRONOUN_OF else subject
    )


def act(s: Sampler, who: NP | None = None, tense: str = "past", timed: bool = False) -> Clause:
    clause = s.activity(who, flags="i", kinds=KINDS, adjuncts=0.4).but(tense=tense)
    return clause.but(time=s.time(tense)) if timed and s.chance(0.6) else clause


def state(s: Sampler, who: NP, tense: str, states: dict[str, str] = HINDRANCES) -> Clause:
    """was very tired: war sehr müde. By default a state that stands in the way of acting."""
    en, de = s.pick(sorted(states.items()))
    very = s.pick((Phrase("very ", "sehr "), Phrase("", "")))
    if en == "injured":
        very = Phrase("badly ", "schwer ")
    return Clause(who, s.core["be"], tense=tense, predicate=Phrase(very.en + en, very.de + de))


def trailing(main: Clause, sub: Clause, en: str, de: str) -> Pair:
    """Main clause, then the subordinate clause."""
    en_sub, de_sub = subordinate(sub, en, de)
    return (
        finish(f"{english_clause(main)} {en_sub}"),
        finish(f"{german_clause(main)}, {de_sub}"),
    )


def leading(main: Clause, sub: Clause, en: str, de: str) -> Pair:
    """Subordinate clause first: the German main clause then opens with its verb."""
    en_sub, de_sub = subordinate(sub, en, de)
    return finish(f"{en_sub}, {english_clause(main)}"), finish(inverted(main, de_sub))


@structure(2)
def that_clause_past(s: Sampler) -> Pair:
    main = Clause(s.person(), s.pick([s.core[k] for k in ("know", "say", "think")]))
    return trailing(main, act(s, s.person(), "perfect"), "that", "dass")


@structure(1.5)
def that_clause_future(s: Sampler) -> Pair:
    main = Clause(s.person(), s.pick([s.core[k] for k in ("hope", "think", "know")]))
    sub = act(s, s.person(), "future").but(time=s.time("future"))
    return trailing(main, sub, "that", "dass")


@structure(1.5)
def that_clause_modal(s: Sampler) -> Pair:
    main = Clause(s.person(), s.pick([s.core[k] for k in ("say", "think")]))
    sub = act(s, s.person(), "present").but(modal=s.pick(("must", "can", "should", "want", "may")))
    return trailing(main, sub, "that", "dass")


@structure(1.5)
def separable_in_subordinate(s: Sampler) -> Pair:
    """because she turned on the lamp: weil sie die Lampe einschaltete (one word)."""
    main = state(s, s.third(), "past", FEELINGS)
    sub = s.activity(again(main.subject), kinds=("acc", "+", ""), only="separable", adjuncts=0)
    return trailing(main, sub.but(tense="past"), "when", "als")


@structure(1.5)
def whether_clause(s: Sampler) -> Pair:
    main = Clause(s.person(), s.core["know"], negation="nicht")
    sub = act(s, s.person(), s.pick(("perfect", "future")))
    return trailing(main, sub, "whether", "ob")


@structure(1.5)
def asked_whether(s: Sampler) -> Pair:
    who = s.third()
    main = Clause(who, s.core["ask"], s.someone(who), tense="past")
    sub = act(s, s.third()).but(tense="pluperfect", early=Phrase("already", "schon"))
    return trailing(main, sub.but(early=None), "whether", "ob")


@structure(1.5)
def indirect_question(s: Sampler) -> Pair:
    main = Clause(s.person(), s.core["know"], negation="nicht")
    en, de = s.pick((("why", "warum"), ("when", "wann"), ("where", "wo"), ("how often", "wie oft")))
    sub = s.activity(s.person(), flags="hi", kinds=("acc", "+"), adjuncts=0).but(tense="past")
    return trailing(main, sub, en, de)


def could_not(s: Sampler, who: NP) -> Clause:
    """could not repair the car: what a state in the way explains."""
    clause = s.activity(
        who, flags="i", mode="definite", kinds=("acc", "acc", "dat", "+"), adjuncts=0
    )
    return clause.but(modal=s.pick(("could", "wanted", "could")), negation="nicht")


@structure(2)
def because_last(s: Sampler) -> Pair:
    main = could_not(s, s.person())
    return trailing(main, state(s, again(main.subject), "past"), "because", "weil")


@structure()
def because_feeling(s: Sampler) -> Pair:
    """was proud because her son had won the competition."""
    main = state(s, s.third(), "past", FEELINGS)
    return trailing(main, act(s, s.third(), "pluperfect"), "because", "weil")


@structure(1.5)
def because_first(s: Sampler) -> Pair:
    who = s.person()
    return leading(could_not(s, again(who)), state(s, who, "past"), "because", "weil")


@structure(1.5)
def although_first(s: Sampler) -> Pair:
    who = s.person()
    return leading(act(s, again(who), timed=True), state(s, who, "past"), "although", "obwohl")


@structure()
def although_last(s: Sampler) -> Pair:
    main = act(s, timed=True)
    return trailing(main, state(s, again(main.subject), "past"), "although", "obwohl")


@structure(1.5)
def when_past(s: Sampler) -> Pair:
    who, other = s.person(), s.third()
    verb = s.pick([v for v in s.ordinary if v.en == "come" and not v.government])
    sub = Clause(who, verb, tense="past")
    return leading(act(s, other), sub, "when", "als")


@structure(1.5)
def if_weather(s: Sampler) -> Pair:
    it = NP("it", ("es",) * 4, "n", natural="it", is_pronoun=True)
    sub = Clause(it, s.core[s.pick(("rain", "snow"))], time=s.time("future"))
    indoors = {"home", "living room", "kitchen", "school"}
    main = act(s, s.person(), "future")
    while not indoors & set(main.verb.places):
        main = act(s, main.subject, "future")
    return leading(main.but(place=None), sub, "if", "wenn")


@structure(1.5)
def if_unreal(s: Sampler) -> Pair:
    """If he had more time, he would learn French: Wenn er mehr Zeit hätte, würde er ..."""
    who = s.person()
    en, de = s.pick((("time", "Zeit"), ("help", "Hilfe"), ("energy", "Energie"),
                     ("strength", "Kraft")))  # fmt: skip
    haette = "hätten" if who.plural else "hätte"
    main = act(s, again(who), "would")
    return (
        finish(f"if {who.en} had more {en}, {english_clause(main)}"),
        finish(inverted(main, f"wenn {who.de[0]} mehr {de} {haette}")),
    )


@structure(1.5)
def if_past_unreal(s: Sampler) -> Pair:
    """If she had won the match, ...: Wenn ... gewonnen hätte, hätte ..."""
    who, other = s.person(), s.person()
    sub = act(s, who, "would_have")
    main = act(s, other, "would_have")
    en = english_clause(sub.but(tense="pluperfect"))
    de = german_clause(sub, SUBORDINATE)
    return finish(f"if {en}, {english_clause(main)}"), finish(inverted(main, f"wenn {de}"))


@structure()
def before_clause(s: Sampler) -> Pair:
    main = act(s)
    sub = act(s, again(main.subject))
    return trailing(main, sub, "before", "bevor")


@structure(1.5)
def after_clause(s: Sampler) -> Pair:
    """After Anna had read the letter, she ...: Nachdem Anna den Brief gelesen hatte, ... sie"""
    who = s.person()
    return leading(act(s, again(who), timed=True), act(s, who, "pluperfect"), "after", "nachdem")


@structure(1.5)
def while_clause(s: Sampler) -> Pair:
    """While the cook was cooking, ...: Während der Koch kochte, ..."""
    who, other = s.third(), s.third()
    sub = s.activity(who, flags="p", kinds=("acc", "", "+"), adjuncts=0.3)
    main = s.activity(other, flags="i", kinds=("acc", "acc", "dat"), adjuncts=0.2).but(tense="past")
    return leading(main, sub.but(tense="past_progressive"), "while", "während")


@structure()
def as_soon_as(s: Sampler) -> Pair:
    who = s.person()
    verb = s.pick([v for v in s.ordinary if v.en == "come"])
    sub = Clause(who, verb)
    return leading(act(s, s.third(), "future"), sub, "as soon as", "sobald")


@structure()
def until_clause(s: Sampler) -> Pair:
    who = s.person()
    main = Clause(who, s.pick([v for v in s.ordinary if v.en == "wait" and not v.government]))
    sub = act(s, s.third(), "pluperfect")
    return trailing(main.but(tense="past", manner=None), sub, "until", "bis")


TOOL_USES = {
    "ladder": ("streichen", "renovieren", "pflücken"), "hammer": ("reparieren", "bauen"),
    "saw": ("bauen",), "screwdriver": ("reparieren",), "drill": ("reparieren", "renovieren"),
    "shovel": ("pflanzen",), "brush": ("streichen", "malen"), "toolbox": ("reparieren", "bauen"),
}  # fmt: skip


@structure()
def so_that(s: Sampler) -> Pair:
    """lent the neighbour a ladder so that he could paint the fence."""
    who, helped = s.third(), s.professional("the")
    name = s.pick(sorted(TOOL_USES))
    entry = s.noun(name)
    tool = s.thing(entry, who, s.pick(("definite", "indefinite")))
    lend = next(v for v in s.ordinary if v.en == "lend")
    main = Clause(who, lend, tool, helped, tense="past", time=s.time("past"))
    verb = s.pick([v for v in s.ordinary if v.de in TOOL_USES[name]])
    other = again(helped)
    obj = s.object_of(verb, other, "definite")
    sub = Clause(other, verb, obj, modal="could")
    return trailing(main, sub, "so that", "damit")
