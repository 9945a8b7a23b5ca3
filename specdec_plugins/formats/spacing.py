"""Spaces around signs, of which Moses tokens say nothing: "A/B" and "A / B" are the same three."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import repeat

# What is set apart in tokens and remains so, and the symbols of protected spans.
_SIGN = re.compile(r"[^\w\s.,;:!?%'\"«»‹›„“”‚‘’`…–—-]|_")
_TOUCHED = re.compile(f"{_SIGN.pattern}|-")
_BRACKETS = "()[]{}"
_NEAR = 5  # characters beside a sign that decide
_AMOUNT = re.compile(r"\d ?$")
_COMPOUND = re.compile(r" -[^\W\d_]")  # its second part: "C#-Kurs"
_SHORT_BEFORE, _SHORT_BEHIND = re.compile(r"(?<!\w)\w{1,3} ?$"), re.compile(r" ?\w{1,3}(?!\w)")
_WITH_APOSTROPHE = re.compile(r"\w+'\w+")
_S = re.compile(r"(?<=\w) (?='s\b)")
_GENITIVE = re.compile(r"(?<=[sxzß]) '(?=[^\W\d_])")  # "Thomas 'Haus"

Sides = tuple[str | None, str | None]  # "" or " " before and behind; None = not known


def spaced_like(source: str, line: str) -> str:
    """A detokenised line, its signs as close to words as those of its source.

    Signs that stand as often in both are taken to be in the same order; others are all spaced in
    one way, if the source's are.
    """
    text, at, ways = "", 0, _ways(source, line)
    for sign in _SIGN.finditer(line):
        mark, (before, behind) = sign[0], next(ways[sign[0]])
        text += line[at : sign.start()]
        at = sign.end()
        joins = _may_join(mark, (before, behind), text[-_NEAR:], line[at : at + _NEAR])
        if before == "" and joins:
            text = text.removesuffix(" ")
        elif before == " " and text[-1:].isalnum():
            text += " "
        # Moses joins a currency to the next word.
        is_price = unicodedata.category(mark) == "Sc" and _AMOUNT.search(text[-_NEAR:])
        is_compound = _COMPOUND.match(line, at) and f"{mark} -" not in source
        text, next_one = text + mark, line[at : at + 1]
        if is_compound or (behind == "" and joins):
            at += next_one == " "
        elif (behind == " " and next_one.isalnum()) or (is_price and next_one.isalpha()):
            text += " "
    text += line[at:]
    for word in _WITH_APOSTROPHE.findall(source):
        text = text.replace(word.replace("'", " '"), word)
    text = _S.sub("", text)
    return _GENITIVE.sub("' ", text) if text.count("'") == 1 else text


def _ways(source: str, line: str) -> dict[str, Iterator[Sides]]:
    """How each sign of the line is to stand, in order."""
    found = defaultdict[str, list[Sides]](list)
    for sign in _SIGN.finditer(source):
        begin, end = sign.span()
        before, behind = source[max(0, begin - 2) : begin], source[end : end + 2]
        found[sign[0]].append((_gap(sign[0], before[::-1]), _gap(sign[0], behind)))
    ways = dict[str, Iterator[Sides]]()
    for mark, count in Counter(_SIGN.findall(line)).items():
        own = found[mark]
        agreed = _agreed(before for before, _ in own), _agreed(behind for _, behind in own)
        ways[mark] = iter(own) if len(own) == count else repeat(agreed)
    return ways


def _gap(mark: str, near: str) -> str | None:
    """What is between a sign and the word or sign beside it; None if there is none.

    near: the next two characters, the nearer one first. A bracket touches brackets alone.
    """
    is_alike = near[:1] not in _BRACKETS or mark in _BRACKETS
    if near[:1].isalnum() or (is_alike and _TOUCHED.match(near)):
        return ""
    return " " if near[:1] == " " and near[1:].isalnum() else None


def _agreed(gaps: Iterable[str | None]) -> str | None:
    kinds = {*gaps} - {None}
    return kinds.pop() if len(kinds) == 1 else None


def _may_join(mark: str, sides: Sides, before: str, behind: str) -> bool:
    """Not currencies, which stand elsewhere in other languages, nor "&" between long words."""
    if mark == "&" and sides[0] == "":
        return bool(_SHORT_BEFORE.search(before) and _SHORT_BEHIND.match(behind))
    return unicodedata.category(mark) not in ("Sc", "Co")
