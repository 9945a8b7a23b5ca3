"""Tags and signs around words, without which a sentence is translated better.

What has symbols inside in place of them is translated worse (`benchmarks/results/markup.md`). So
such a sentence is also translated without them. These are the words of its translation, and the
translation with symbols says where among them the markup belongs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain

from specdec_plugins.text.spans import TAG, VOID, Masked, nests

_RUN = re.compile(r"\*|([*_~=])\1+")
_QUOTE = re.compile('["„“”«»]')
_TYPED = str.maketrans("“”„«»’–—", '"""""\'--')
# Thai, Lao, Burmese, Khmer, Japanese and Chinese have no spaces between words.
DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{DENSE}]|[^\W{DENSE}]+(?:['’][^\W{DENSE}]+)*|[^\w\s]")


@dataclass(frozen=True)
class Markup:
    """What of a masked text can be left out."""

    mask: Masked
    opens: dict[int, int]  # by the numbers of its spans: how many each opens, or (-) closes
    plain: str  # the text that is left
    quoted: str | None  # with quotation marks in place of markup, if they say which is which
    # What opens, what closes, and between which words of the text that is left; if none nest
    pairs: Sequence[tuple[int, int, int, int]]

    def merged(self, marked: str, plain: str, quoted: str | None = None) -> str | None:
        """A translation of what is left, with the markup where the others have it.

        marked: a translation of the masked text, which may lack symbols; quoted: one of `quoted`,
        if there is any. None if these do not show where.
        """
        by_symbols = self._by_symbols(marked)
        said = self._placed(by_symbols, plain)
        if said is None and quoted is not None:
            said = self._placed(self._by_quotes(quoted), plain)
        if said is None and (quoted is not None or self.quoted is None):
            said = self._placed(by_symbols, plain, may_guess=True)
        return said

    def _by_symbols(self, translation: str) -> list[str | int]:
        """A translation of the masked text as its words and, between them, numbers of markup."""
        pieces, spans = self.mask.pieces(translation), self.mask.spans
        return [
            spans[piece] if isinstance(piece, int) and piece not in self.opens else piece
            for piece in pieces
        ]

    def _by_quotes(self, translation: str) -> list[str | int]:
        """The same of a translation of `quoted`; its markup is in the source's order."""
        first, *rest = _QUOTE.split(translation)
        if len(rest) != len(self.opens):
            return [translation]
        return [first, *chain(*zip(self.opens, rest, strict=True))]

    def _placed(
        self, pieces: Sequence[str | int], plain: str, may_guess: bool = False
    ) -> str | None:
        """The plain translation with its markup, as in the pieces of another.

        None if that lacks some, or no word is between what opens and what closes. may_guess: then
        the next words are, as many as in the source.
        """
        words, marks = list[str](), list[tuple[int, int]]()
        for piece in pieces:
            if isinstance(piece, int):
                marks.append((piece, len(words)))
            else:
                words += _words(piece)
        source = _words(self.plain)
        inside = {closing: source[first:last] for _, closing, first, last in self.pairs}
        if may_guess:
            marks = self._completed(marks, len(words) / max(1, len(source)))
        own, places = [*_WORD.finditer(plain)], _Places(words, _words(plain))
        order = dict[int, tuple[int, int, int, int]]()
        for opening, closing, first, last in self._paired(marks):
            begin, end = places.between(first, last)
            if may_guess:
                begin, end = places.guessed(begin, end, inside.get(closing, []))
            if begin >= end or not places.has_word(begin, end):
                return None
            # At one place what closes comes first, then the outer one of two that open. One that
            # opens or closes two is around both.
            at_begin = own[begin].start(), 1, -end, opening
            at_end = own[end - 1].end(), 0, -begin, -opening
            order[opening] = min(at_begin, order.get(opening, at_begin))
            order[closing] = max(at_end, order.get(closing, at_end))
        return self._inserted(order, plain) if order.keys() == self.opens.keys() else None

    def _inserted(self, order: Mapping[int, tuple[int, ...]], plain: str) -> str | None:
        """The plain translation with markup; None if that does not nest.

        order: of its numbers, each by its place in the text and what comes first there.
        """
        made, at = "", 0
        for number in sorted(order, key=order.__getitem__):
            made += plain[at : order[number][0]] + self.mask.spans[number]
            at = order[number][0]
        made += plain[at:]
        is_nested = nests(made) or not nests("".join(self.mask.spans))
        return self.mask.head + made + self.mask.tail if is_nested else None

    def _completed(self, marks: Sequence[tuple[int, int]], growth: float) -> list[tuple[int, int]]:
        """The marks, and those that are missing, as far from another as in the source.

        growth: words of the other translation for one of the source.
        """
        places, found = dict(marks), list[tuple[int, int]]()
        for opening, closing, first, last in self.pairs:
            begin = places.get(opening, places.get(closing, round(last * growth)) - (last - first))
            end = places.get(closing, begin + last - first)
            found += [(opening, max(0, begin)), (closing, max(0, end))]
        return found

    def _paired(self, marks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
        """Numbers of what opens and what closes, and their places, as long as they go together."""
        left, opened, spans = sorted(self.opens), list[tuple[int, int]](), self.mask.spans
        for number, place in marks:
            # Of like spans the first of the source comes first.
            own = next((n for n in left if spans[n] == spans[number]), None)
            if own is None or len(opened) + self.opens[own] < 0:
                return
            left.remove(own)
            opened += [(own, place)] * self.opens[own]
            for _ in range(-self.opens[own]):
                opening, first = opened.pop()
                yield opening, own, first, place


def markup_of(mask: Masked) -> Markup | None:
    """The markup of a masked text; None if there is none, or it does not close in order."""
    pieces = mask.pieces(mask.text)
    opens, opened, plain, quoted = dict[int, int](), list[str](), "", ""
    is_flat, before = True, list[int]()  # words before each of the markup
    for at, piece in enumerate(pieces):
        names = list[tuple[str, bool]]()
        text = mask.spans[piece] if isinstance(piece, int) else piece
        if isinstance(piece, int):
            names += _names(text, str(pieces[at - 1])[-1:], str(pieces[at + 1])[:1], opened)
        if not isinstance(piece, int) or not names:
            plain, quoted = plain + text, quoted + text
            continue
        opens[piece], quoted = len(names) * (1 if names[0][1] else -1), f'{quoted}"'
        before.append(len(_words(plain)))
        is_flat = is_flat and len(names) == 1 and bool(opened) != names[0][1]
        for name, is_opening in names:
            if is_opening:
                opened.append(name)
            elif not opened or opened.pop() != name:
                return None
    if opened or not opens:
        return None
    numbers = [*opens]
    flat = zip(numbers[::2], numbers[1::2], before[::2], before[1::2], strict=True)
    pairs = [*flat] if is_flat else []
    is_clear = is_flat and not _QUOTE.search(plain)
    return Markup(mask, opens, plain, quoted if is_clear else None, pairs)


def _names(span: str, before: str, after: str, opened: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """What a span opens (True) or closes (False); nothing unless it all opens or all closes.

    before, after: the characters beside it.
    """
    if _RUN.fullmatch(span):  # that closes behind a word, and opens before one
        is_closing = bool(opened) and opened[-1] == span and bool(before.strip())
        if is_closing or (after.strip() and not before.isalnum()):
            yield span, not is_closing
        return
    tags = [*TAG.finditer(span)]
    are_tags = sum(len(tag[0]) for tag in tags) == len(span)
    are_paired = all(not tag["void"] and tag["name"].lower() not in VOID for tag in tags)
    if are_tags and are_paired and len({tag["close"] for tag in tags}) == 1:
        yield from ((tag["name"], not tag["close"]) for tag in tags)


def _words(text: str) -> list[str]:
    """In small letters, and with the marks of a typewriter: which one opens may differ."""
    return [word[0].lower().translate(_TYPED) for word in _WORD.finditer(text)]


class _Places:
    """Where words of one text are in another, by the words that both share."""

    def __init__(self, words: list[str], others: list[str]) -> None:
        matcher = SequenceMatcher(None, words, others, autojunk=False)
        self._words, self._others, self._parts = words, others, matcher.get_opcodes()

    def between(self, begin: int, end: int) -> tuple[int, int]:
        """Where the words begin to end are there: if at one place, that, else what is between the
        words around them.
        """
        return self._only(self._words[begin:end]) or (self._after(begin), self._before(end))

    def guessed(self, begin: int, end: int, source: Sequence[str]) -> tuple[int, int]:
        """A place for words of the source near that one: if they are there at one place, that."""
        if (known := self._only(source)) is not None:
            return known
        places = [n for n in range(len(self._others)) if self.has_word(n, n + 1)]
        if places and not self.has_word(begin, end):
            begin = min(places, key=lambda n: abs(n - begin))
            end = min(len(self._others), begin + max(1, len(source)))
        while end > begin + 1 and not self.has_word(end - 1, end):
            end -= 1
        return begin, end

    def has_word(self, begin: int, end: int) -> bool:
        return any(word[0].isalnum() for word in self._others[begin:end])

    def _only(self, words: Sequence[str]) -> tuple[int, int] | None:
        """Where the words are, if at one place."""
        others, size = self._others, len(words)
        found = [n for n in range(len(others) - size + 1) if others[n : n + size] == [*words]]
        return (found[0], found[0] + size) if size and len(found) == 1 else None

    def _after(self, place: int) -> int:
        """The place before the word that is behind this one."""
        for _, begin, end, other, stop in self._parts:
            if begin <= place < end:
                return other + (place - begin) * (stop - other) // (end - begin)
        return len(self._others)

    def _before(self, place: int) -> int:
        """The place behind the word that is before this one."""
        for _, begin, end, other, stop in self._parts:
            if begin < place <= end:
                return other - (begin - place) * (stop - other) // (end - begin)
        return 0
