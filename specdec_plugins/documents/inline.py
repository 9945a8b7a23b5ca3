"""Texts with markup inside: what a translator reads in place of the markup, and the way back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import count

from specdec_plugins.documents.base import Unit, has_letters, replacing

_BLANKS = " \t\r\n\f"
_SPACE = re.compile(f"[{_BLANKS}]+")


class Kind(Enum):
    TEXT = auto()
    OPEN = auto()
    CLOSE = auto()
    VOID = auto()  # markup that stands alone, with whatever it encloses


@dataclass(frozen=True)
class Piece:
    """A part of a text as its file has it."""

    kind: Kind
    raw: str
    text: str = ""  # what `raw` says, for `Kind.TEXT`
    name: str = ""  # a CLOSE ends the nearest OPEN of its name


@dataclass(frozen=True)
class Inline:
    """A text whose markup is written as tags: <g1>, </g1> and <x2/>."""

    source: str
    marks: dict[str, Piece]  # by tag
    escape: Callable[[str], str]  # how the file writes a text
    head: str = ""  # markup and white space around the text, as the file has it
    tail: str = ""

    def pieces(self, translation: str) -> list[Piece] | None:
        """The translation with its markup; None if a tag is missing, stands twice or overlaps."""
        found, opened = list[Piece](), list[str]()
        parts = _tags(self.marks).split(translation)
        if sorted(parts[1::2]) != sorted(self.marks):
            return None
        self._move_spaces(parts)
        for number, part in enumerate(parts):
            piece = self.marks[part] if number % 2 else Piece(Kind.TEXT, "", part)
            if piece.kind is Kind.OPEN:
                opened.append(part)
            elif piece.kind is Kind.CLOSE and (not opened or opened.pop() != f"<{part[2:]}"):
                return None
            found += [piece] if piece.raw or part else []
        return found

    def _move_spaces(self, parts: list[str]) -> None:
        """Spaces just inside of tags go outside, unless the source has them there, too.

        parts: texts, with a tag between two of them.
        """
        source, tags = self.source, [*_tags(self.marks).finditer(self.source)]
        tight = {m[0] for m in tags if source[m.end() : m.end() + 1] != " "}
        tight_ends = {m[0] for m in tags if source[m.start() - 1 : m.start()] != " "}
        for at in range(len(parts) - 2, 0, -2):
            before, tag, inner = parts[at - 1 : at + 2]
            if self.marks[tag].kind is Kind.OPEN and tag in tight and inner[:1] == " ":
                parts[at + 1] = inner.lstrip(" ")
                parts[at - 1] += " " * (at > 1 or bool(before)) * (not before.endswith(" "))
        for at in range(1, len(parts), 2):
            inner, tag, after = parts[at - 1 : at + 2]
            if self.marks[tag].kind is Kind.CLOSE and tag in tight_ends and inner[-1:] == " ":
                parts[at - 1] = inner.rstrip(" ")
                is_word = after[:1].isalnum() or (not after and at + 2 < len(parts))
                parts[at + 1] = " " * is_word + after

    def restored(self, translation: str) -> str | None:
        """The translation as the file is to have it; None as for `pieces`."""
        pieces = self.pieces(translation)
        if pieces is None:
            return None
        inner = (self.escape(p.text) if p.kind is Kind.TEXT else p.raw for p in pieces)
        return "".join([self.head, *inner, self.tail])

    def unit(self, begin: int, end: int) -> Unit:
        """The unit whose translation takes the place of the text itself."""
        return replacing(self.source, begin, end, self.restored)


def _tags(marks: dict[str, Piece]) -> re.Pattern[str]:
    letters = {tag.strip("</>").rstrip("0123456789") for tag in marks}
    nothing = "(?!)"
    return re.compile(f"(</?(?:{'|'.join(sorted(letters)) or nothing})[0-9]+/?>)")


def inline(
    pieces: Sequence[Piece], escape: Callable[[str], str] = str, keeps_space: bool = False
) -> Inline | None:
    """What of a text is to be translated; None if it has no letters.

    escape: how the file writes a text. keeps_space: white space inside the text has a meaning;
    else any of it is one space.
    """
    head, inner, tail = _unwrapped(*_paired(pieces))
    if not any(p.kind is Kind.TEXT and has_letters(p.text) for p in inner):
        return None
    said = "".join(p.text for p in inner)
    pair, void = (next(c * n for n in count(1) if f"<{c * n}" not in said) for c in "gx")
    marks, opened, source, number = dict[str, Piece](), list[int](), "", 0
    for piece in inner:
        if piece.kind is Kind.TEXT:
            source += piece.text
            continue
        if piece.kind is Kind.CLOSE:
            tag = f"</{pair}{opened.pop()}>"
        else:
            number += 1
            tag = f"<{void}{number}/>" if piece.kind is Kind.VOID else f"<{pair}{number}>"
            opened += [number] if piece.kind is Kind.OPEN else []
        marks[tag] = piece
        source += tag
    if not keeps_space:
        source = _SPACE.sub(" ", source)
    return Inline(source, marks, escape, head, tail)


def _paired(pieces: Sequence[Piece]) -> tuple[list[Piece], dict[int, int]]:
    """The pieces that are not empty, with VOID for what has no partner; where each OPEN ends."""
    found = [p for p in pieces if p.raw or p.name]
    partners, opened, num_open = dict[int, int](), list[int](), Counter[str]()
    for at, piece in enumerate(found):
        if piece.kind is Kind.OPEN:
            opened.append(at)
            num_open[piece.name] += 1
        elif piece.kind is Kind.CLOSE and num_open[piece.name]:
            while found[begin := opened.pop()].name != piece.name:
                num_open[found[begin].name] -= 1
            num_open[piece.name] -= 1
            partners[begin] = at
    kept = {*partners, *partners.values()}
    for at, piece in enumerate(found):
        if piece.kind is not Kind.TEXT and at not in kept:
            found[at] = replace(piece, kind=Kind.VOID)
    return found, partners


def _unwrapped(pieces: list[Piece], partners: dict[int, int]) -> tuple[str, list[Piece], str]:
    """What stands around the text as the file has it, and the pieces between."""
    begin, end = 0, len(pieces)
    while begin < end:
        if _is_outside(pieces[begin]):
            begin += 1
        elif _is_outside(pieces[end - 1]):
            end -= 1
        elif partners.get(begin) == end - 1:
            begin, end = begin + 1, end - 1
        else:
            break
    inner = pieces[begin:end]
    head, tail = ("".join(p.raw for p in some) for some in (pieces[:begin], pieces[end:]))
    if inner and inner[0].kind is Kind.TEXT:
        head, inner[0] = _cut(head, inner[0], str.lstrip)
    if inner and inner[-1].kind is Kind.TEXT:
        tail, inner[-1] = _cut(tail, inner[-1], str.rstrip)
    return head, inner, tail


def _is_outside(piece: Piece) -> bool:
    return piece.kind is Kind.VOID or (piece.kind is Kind.TEXT and not piece.text.strip())


def _cut(around: str, piece: Piece, strip: Callable[[str, str], str]) -> tuple[str, Piece]:
    """White space at the beginning or end of a text goes to what stands around it.

    Only what the file has as such: what an escape stands for is part of the text.
    """
    raw = strip(piece.raw, _BLANKS)
    if strip is str.lstrip:
        blanks = piece.raw[: len(piece.raw) - len(raw)]
        return around + blanks, replace(piece, text=piece.text.removeprefix(blanks), raw=raw)
    blanks = piece.raw[len(raw) :]
    return blanks + around, replace(piece, text=piece.text.removesuffix(blanks), raw=raw)
