"""German morphology: articles, declension of nouns and adjectives, conjugation, contractions."""

from __future__ import annotations

import re

from sample_corpus.lexicon import Noun, Verb

CASES = ("nom", "acc", "dat", "gen")
GENDERS = ("m", "n", "f", "p")
# Rows are cases, columns masculine, neuter, feminine, plural.
DEFINITE = {"nom": "der das die die", "acc": "den das die die",
            "dat": "dem dem der den", "gen": "des des der der"}  # fmt: skip
DER_ENDINGS = {"nom": "er es e e", "acc": "en es e e", "dat": "em em er en", "gen": "es es er er"}
EIN_ENDINGS = {"nom": "- - e e", "acc": "en - e e", "dat": "em em er en", "gen": "es es er er"}
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"}
MIXED = {"nom": "er es e en", "acc": "en es e en", "dat": "en en en en", "gen": "en en en en"}
STRONG = {"nom": "er es e e", "acc": "en es e e", "dat": "em em er en", "gen": "en en er er"}
RELATIVE = {"nom": "der das die die", "acc": "den das die die",
            "dat": "dem dem der denen", "gen": "dessen dessen deren deren"}  # fmt: skip
CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "bei dem": "beim",
                "von dem": "vom", "in das": "ins", "an das": "ans"}  # fmt: skip
PERSONAL = {  # (person, gender or p): nominative, accusative, dative
    (1, "s"): "ich mich mir", (2, "s"): "du dich dir", (3, "m"): "er ihn ihm",
    (3, "f"): "sie sie ihr", (3, "n"): "es es ihm", (1, "p"): "wir uns uns",
    (2, "p"): "ihr euch euch", (3, "p"): "sie sie ihnen", (0, "p"): "Sie Sie Ihnen",
}  # fmt: skip
REFLEXIVE = {(1, False): "mich mir", (2, False): "dich dir", (1, True): "uns uns",
             (2, True): "euch euch"}  # fmt: skip
DER_WORDS = {"dies", "jed", "welch", "jen"}
EIN_WORDS = {"ein", "kein", "mein", "dein", "sein", "ihr", "unser", "euer", "Ihr"}
MODALS = {  # present ich/er, du, plural; or the whole preterite or subjunctive
    "must": "muss musst müssen", "can": "kann kannst können", "want": "will willst wollen",
    "may": "darf darfst dürfen", "could": "konnte konntest konnten",
    "should": "sollte solltest sollten", "wanted": "wollte wolltest wollten",
    "had": "musste musstest mussten", "like": "möchte möchtest möchten",
    "could_polite": "könnte könntest könnten",
}  # fmt: skip
HABEN = {"present": "habe hast hat haben", "past": "hatte hattest hatte hatten",
         "subjunctive": "hätte hättest hätte hätten"}  # fmt: skip
SEIN = {"present": "bin bist ist sind", "past": "war warst war waren",
        "subjunctive": "wäre wärst wäre wären"}  # fmt: skip
WERDEN = {"present": "werde wirst wird werden", "past": "wurde wurdest wurde wurden",
          "subjunctive": "würde würdest würde würden"}  # fmt: skip
IRREGULAR_PRESENT = {"sein": SEIN["present"], "haben": HABEN["present"],
                     "werden": WERDEN["present"], "wissen": "weiß weißt weiß wissen"}  # fmt: skip
AUXILIARY = {"haben": HABEN, "sein": SEIN, "werden": WERDEN}


def cell(table: dict[str, str], case: str, gender: str) -> str:
    return table[case].split()[GENDERS.index(gender)].strip("-")


def determiner(stem: str, case: str, gender: str) -> str:
    """`stem` is "d", a der-word stem, an ein-word stem, or empty for no determiner."""
    if not stem:
        return ""
    if stem == "d":
        return cell(DEFINITE, case, gender)
    if stem in DER_WORDS:
        return stem + cell(DER_ENDINGS, case, gender)
    ending = cell(EIN_ENDINGS, case, gender)
    return ("eur" if stem == "euer" and ending else stem) + ending


def adjective(stem: str, det: str, case: str, gender: str) -> str:
    """Weak after der-words, mixed after ein-words, strong where no determiner stands."""
    table = STRONG if not det else MIXED if det in EIN_WORDS else WEAK
    return stem + cell(table, case, gender)


def noun(entry: Noun, case: str, plural: bool) -> str:
    if plural or entry.gender == "p":
        form = entry.de_plural
        return form if case != "dat" or form[-1] in "ns" else form + "n"
    if case == "gen" or (entry.is_weak and case != "nom"):
        return entry.de_genitive
    return entry.de


def reflexive(person: int, plural: bool, case: str) -> str:
    pair = REFLEXIVE.get((person, plural))
    return "sich" if pair is None else pair.split()[0 if case == "acc" else 1]


def contract(preposition: str, phrase: str) -> str:
    """Preposition and phrase, with im, zum, ins and the like where an article follows."""
    joined = f"{preposition} {phrase}"
    for full, short in CONTRACTIONS.items():
        if joined.startswith(full + " "):
            return short + joined[len(full) :]
    return joined


def slot(person: int, plural: bool) -> int:
    """Column of the auxiliaries: ich, du, er, plural."""
    return 3 if plural else person - 1


def auxiliary(name: str, mood: str, person: int, plural: bool) -> str:
    return AUXILIARY[name][mood].split()[slot(person, plural)]


def modal(name: str, person: int, plural: bool) -> str:
    forms = MODALS[name].split()
    return forms[2] if plural else forms[1] if person == 2 else forms[0]


def base(verb: Verb) -> str:
    """The infinitive without its separable prefix."""
    return verb.de.removeprefix(verb.prefix)


def stem(verb: Verb) -> str:
    infinitive = base(verb)
    return infinitive[:-1] if re.search(r"(el|er)n$", infinitive) else infinitive[:-2]


def present(verb: Verb, person: int, plural: bool) -> str:
    if verb.de in IRREGULAR_PRESENT:
        return IRREGULAR_PRESENT[verb.de].split()[slot(person, plural)]
    if plural:
        return base(verb)
    if person == 3:
        return verb.de_3sg
    if person == 1:
        root = stem(verb)
        return root[:-2] + "le" if root.endswith("el") else root + "e"
    root = second_root(verb)
    return root + ("t" if root[-1] in "sßzx" else "st")


def second_root(verb: Verb) -> str:
    special = {"hält": "hält", "lädt": "läd", "tritt": "tritt", "rät": "rät"}
    return special.get(verb.de_3sg, verb.de_3sg[:-1])


def preterite(verb: Verb, person: int, plural: bool) -> str:
    form = verb.de_preterite
    if plural:
        return form + ("n" if form.endswith("e") else "en")
    return form if person != 2 else form + "st"


def imperative(verb: Verb) -> str:
    """The singular form: e-i verbs keep the changed vowel, heavy stems take -e."""
    root = second_root(verb)
    infinitive = base(verb)
    if root != stem(verb) and "e" in infinitive[:-2] and not re.search("[äö]", root):
        return root
    root = stem(verb)
    if root.endswith("el"):
        return root[:-2] + "le"
    return root + ("e" if re.search(r"(d|t|er|ig|[^aeiouhlr][nm])$", root) else "")


def zu_infinitive(verb: Verb) -> str:
    return f"{verb.prefix}zu{base(verb)}" if verb.prefix else f"zu {verb.de}"


def mood_of(tense: str) -> str:
    return {"perfect": "present", "pluperfect": "past", "would_have": "subjunctive"}[tense]


def verb_complex(
    verb: Verb, tense: str, person: int, plural: bool, modal_name: str = "", passive: bool = False
) -> tuple[str, str, list[str]]:
    """(finite, separable prefix left behind, non-finite tail in verb-final order)."""
    inner = [verb.de_participle, "werden"] if passive else [verb.de]
    if modal_name:
        return modal(modal_name, person, plural), "", inner
    if tense in ("future", "would"):
        mood = "present" if tense == "future" else "subjunctive"
        return auxiliary("werden", mood, person, plural), "", inner
    if tense in ("perfect", "pluperfect", "would_have"):
        helper = "sein" if passive else verb.auxiliary
        tail = [verb.de_participle, *(["worden"] if passive else [])]
        return auxiliary(helper, mood_of(tense), person, plural), "", tail
    if passive:
        return auxiliary("werden", tense, person, plural), "", [verb.de_participle]
    past = tense in ("past", "past_progressive")
    finite = preterite(verb, person, plural) if past else present(verb, person, plural)
    return finite, verb.prefix, []
