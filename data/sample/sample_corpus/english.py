"""English morphology: articles, verb forms, verb groups."""

from __future__ import annotations

import re

DOUBLED = {"get": "getting", "run": "running", "put": "putting", "cut": "cutting",
           "win": "winning", "swim": "swimming", "begin": "beginning", "forget": "forgetting",
           "set": "setting", "plan": "planning", "travel": "travelling", "sit": "sitting",
           "cancel": "cancelling", "shop": "shopping"}  # fmt: skip
PARTICLES = {"on", "off", "out", "up", "along", "back", "away"}
YOU_SOUND = ("uni", "use", "euro")
MODALS = {  # name: (finite for third person, finite otherwise, whether do-support is needed, "to")
    "must": ("must", "must", False, False),
    "can": ("can", "can", False, False),
    "could": ("could", "could", False, False),
    "could_polite": ("could", "could", False, False),
    "should": ("should", "should", False, False),
    "want": ("wants", "want", True, True),
    "wanted": ("wanted", "wanted", True, True),
    "had": ("had", "had", True, True),
    "like": ("would like", "would like", False, True),
    "may": ("is allowed", "are allowed", False, True),
}
MODAL_BASE = {"want": "want", "wanted": "want", "had": "have"}
BE = {"present": {1: "am", 3: "is"}, "past": {1: "was", 3: "was"}}


def article(phrase: str) -> str:
    """a or an, by the sound of the first word."""
    word = phrase.split()[0].lower()
    if word.startswith(("hon", "hour")) and word != "honey":
        return "an"
    return "an" if word[0] in "aeiou" and not word.startswith(YOU_SOUND) else "a"


def third(base: str) -> str:
    irregular = {"have": "has", "be": "is", "do": "does", "go": "goes"}
    if base in irregular:
        return irregular[base]
    if re.search(r"(s|x|z|ch|sh)$", base):
        return base + "es"
    if re.search(r"[^aeiou]y$", base):
        return base[:-1] + "ies"
    return base + "s"


def gerund(base: str) -> str:
    if base in DOUBLED:
        return DOUBLED[base]
    if base == "be":
        return "being"
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and not base.endswith("ee"):
        return base[:-1] + "ing"
    return base + "ing"


def be(tense: str, person: int, plural: bool) -> str:
    many = "are" if tense == "present" else "were"
    return many if plural or person == 2 else BE[tense][person]


def have(person: int, plural: bool) -> str:
    return "has" if person == 3 and not plural else "have"


def active(forms: tuple[str, str, str], tense: str, person: int, plural: bool) -> list[str]:
    """The verb group as words, the finite one first; a single word needs do-support."""
    base, past, participle = forms
    single = person == 3 and not plural
    if base == "be" and tense in ("present", "past"):
        return [be(tense, person, plural)]
    groups = {
        "present": [third(base) if single else base],
        "past": [past],
        "progressive": [be("present", person, plural), gerund(base)],
        "past_progressive": [be("past", person, plural), gerund(base)],
        "perfect": [have(person, plural), participle],
        "pluperfect": ["had", participle],
        "future": ["will", base],
        "would": ["would", base],
        "would_have": ["would", "have", participle],
    }
    return groups[tense]


def passive(forms: tuple[str, str, str], tense: str, person: int, plural: bool) -> list[str]:
    participle = forms[2]
    groups = {
        "present": [be("present", person, plural)],
        "past": [be("past", person, plural)],
        "perfect": [have(person, plural), "been"],
        "pluperfect": ["had", "been"],
        "future": ["will", "be"],
    }
    return [*groups[tense], participle]


def with_modal(
    forms: tuple[str, str, str], modal: str, person: int, plural: bool, is_passive: bool
) -> list[str]:
    finite_single, finite_other, _, needs_to = MODALS[modal]
    finite = finite_single if person == 3 and not plural else finite_other
    if modal == "may" and person == 1 and not plural:
        finite = "am allowed"
    base = ["be", forms[2]] if is_passive else [forms[0]]
    return [*finite.split(), *(["to"] if needs_to else []), *base]


def do_support(tense_or_modal: str, base: str, person: int, plural: bool, rest: list[str]):
    """The same group with do: needed by questions and negation of one-word groups."""
    past = tense_or_modal in ("past", "wanted", "had")
    finite = "did" if past else ("does" if person == 3 and not plural else "do")
    return [finite, MODAL_BASE.get(tense_or_modal, base), *rest]
