"""Terms and the translations that they must have, and which of them a text has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, Self

from specdec_plugins.app.codec import Codec, spelt
from specdec_plugins.app.files import open_input, read_lines
from specdec_plugins.errors import UserError, located, require
from specdec_plugins.text.markup import DENSE

# Words, signs, and single characters of scripts without spaces.
_PIECES = re.compile(rf"[{DENSE}]|[^\W{DENSE}]+|[^\w\s]")


class _Term(NamedTuple):
    number: int  # of two that fit, the first counts
    pieces: tuple[str, ...]  # of the source; with capitals, it must be written as here
    target: str
    where: str


def read_terms(path: str | os.PathLike[str]) -> list[tuple[str, str, str]]:
    """Of each line of a file: a source term, after a tab its translation, and where that stands.

    Raises UserError if it cannot be read, and for a line of another form.
    """
    name, terms = os.fspath(path), list[tuple[str, str, str]]()
    with open_input(name) as stream:
        for line in read_lines(stream, name):
            columns = line.text.split("\t")
            if line.text.strip():
                told = f"{line.where}: has {len(columns) - 1} tabs; give a source term, a tab, "
                require(len(columns) == 2, f"{told}and its translation.")
                terms.append((columns[0], columns[1], line.where))
    require(bool(terms), f"{name}: has no terms; give a source term, a tab, and a translation.")
    return terms


class Glossary:
    """Terms of the source language, each with its translation; both as they are inflected here."""

    def __init__(self, terms: Iterable[tuple[str, str, str]], codec: Codec) -> None:
        """terms: source, target, and where they stand, for messages.

        Raises UserError if one is empty, is there twice with different translations, or has a
        translation that the model cannot write.
        """
        self._terms = distinct(terms)
        for term in self._terms.values():
            with located(f"{term.where}: translation {term.target!r}"):
                ids = codec.target_ids(term.target)
                require(codec.unk not in ids, "has what the model cannot write; remove the line.")
        # Of terms that begin with a piece, in small letters: the numbers of their pieces.
        lengths = dict[str, set[int]]()
        for pieces in self._terms:
            lengths.setdefault(pieces[0].lower(), set()).add(len(pieces))
        self._lengths = {piece: sorted(some, reverse=True) for piece, some in lengths.items()}

    @classmethod
    def of(cls, terms: Mapping[str, str] | str | os.PathLike[str], codec: Codec) -> Self:
        """Of terms and their translations, or of a file of them; raises as `read_terms`, too."""
        if isinstance(terms, Mapping):
            return cls(((s, t, f"glossary, {s!r}") for s, t in terms.items()), codec)
        told = f"glossary: must be terms with translations, or a file's name, not {terms!r}."
        require(isinstance(terms, str | os.PathLike), told)
        return cls(read_terms(terms), codec)

    def targets(self, text: str) -> list[str]:
        """The translations of the terms of a text, one for each place where a term stands.

        Of terms that overlap, the first counts; of those that begin at one place, the longest. A
        term in small letters stands wherever its letters do.
        """
        pieces, at, found = _PIECES.findall(spelt(text)), 0, list[str]()
        while at < len(pieces):
            term = self._at(pieces, at)
            at += 1 if term is None else len(term.pieces)
            found += [] if term is None else [term.target]
        return found

    def _at(self, pieces: Sequence[str], at: int) -> _Term | None:
        for length in self._lengths.get(pieces[at].lower(), ()):
            there = tuple(pieces[at : at + length])
            small = tuple(map(str.lower, there))
            terms = [self._terms[one] for one in (there, small) if one in self._terms]
            if terms:
                return min(terms, key=attrgetter("number"))
        return None


def distinct(terms: Iterable[tuple[str, str, str]]) -> dict[tuple[str, ...], _Term]:
    """Terms by their pieces; the argument is that of `Glossary`.

    Raises UserError if one is empty, or is there twice with different translations.
    """
    known = dict[tuple[str, ...], _Term]()
    for source, target, where in terms:
        term = _read(len(known), source, target, where)
        other = known.setdefault(term.pieces, term)
        told = f"{where}: {source!r} is {other.target!r} in {other.where}; remove one of them."
        require(other.target == target, told)
    return known


def _read(number: int, source: str, target: str, where: str) -> _Term:
    is_text = isinstance(source, str) and isinstance(target, str)
    require(is_text, f"{where}: a term and its translation must be strings, not {target!r}.")
    pieces = _PIECES.findall(spelt(source))
    if not pieces or not target.strip():
        side = "translation" if pieces else "source term"
        raise UserError(f"{where}: the {side} is empty; write it, or remove the line.")
    return _Term(number, tuple(pieces), target, where)
