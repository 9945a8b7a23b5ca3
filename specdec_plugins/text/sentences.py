"""Texts as their sentences, and sentences in two, with the white space between them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from specdec_plugins.errors import imported
from specdec_plugins.formats.pretrained.languages import plain

Split = Callable[[str], Sequence[str]]

_END = r"\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029"
_LINE = re.compile(rf"(?:<[A-Za-z/!][^<>\r\n]{{0,2000}}>|[^{_END}])+")  # a tab may be in a tag
_WHOLE_LINE = re.compile(r"[^\n]+")
_SPACE = re.compile(r"\s")
_WINDOW = 5000  # characters
# What ends as a sentence and is none: "1." or "a)" before an item, "Signal." of Signal.Id, and
# abbreviations that the package does not know everywhere.
_SHORT = "approx|incl|excl|Dr|Mr|Mrs|Ms|Prof"
_GOES_ON = re.compile(
    rf"\s*(?:\d{{1,3}}|[A-Za-z])[.)]\s*|.*(?:[!-~]|\b(?:{_SHORT})\.\s*)", re.DOTALL
)
# A letter of its own beside a sign, as in "A/B" and "C++"; in English each but "a".
_LETTER = r"(\A.|(?<![^\W_])(?:[^\W\d_](?=[/&+#-])|(?<=[/&+#-])[^\W\d_]%s)(?![^\W_]))"
_LETTERS, _ENGLISH = (re.compile(_LETTER % more) for more in ("", r"|(?<!['’])(?:[B-Z]|A(?!\s))"))

# Where a sentence is cut, the best places first: after a sentence's end, after a clause, or at any
# white space; and how far from its middle, as a share of its length.
_CUTS = (
    (re.compile(r"(?<=[.!?…।؟])\s+|(?<=[。！？])\s*"), 0.25),
    (re.compile(r"(?<=[,;:–—،؛])\s+|(?<=[，、；：])\s*"), 0.25),
    (re.compile(r"\s+|(?<=[。！？，、；：])"), 0.5),
)


def whole_lines(line: str) -> list[str]:
    """No splitting: asked for, or as a model reads whole texts, such as a summariser."""
    return [line]


def sentence_splitter(language: str | None) -> Split:
    """Splits a line by the rules of a language, or of English if it has none.

    The pieces of a line are the line. Raises UserError if the package is not installed.
    """
    segments, code = imported("sentencex", "text").segment, plain(language or "en")

    def ends(line: str) -> Iterator[int]:
        """Where its sentences end. A long line is looked at in parts, as the package takes
        quadratic time for some; the last sentence of a part may go on in the next.
        """
        at = 0
        while at < len(line):
            is_last = at + _WINDOW >= len(line)
            pieces = segments(code, line[at : at + _WINDOW])
            for piece in pieces if is_last else pieces[:-1]:
                at += len(piece)
                yield at
            at += 0 if is_last or len(pieces) > 1 else len(pieces[0])

    def split(line: str) -> list[str]:
        pieces, at = list[str](), 0
        # The package stops at a no-break space before a name; it looks for spaces alone anyway.
        for end in ends(_SPACE.sub(" ", line)):
            begin, at = at, end
            if pieces and _GOES_ON.fullmatch(pieces[-1]):
                begin -= len(pieces.pop())
            pieces.append(line[begin:at])
        return pieces

    return split


def in_small_letters(text: str, language: str | None) -> str:
    """A sentence in capitals as it would be without: its first letter stays, and letters that are
    words of their own."""
    letters = _ENGLISH if plain(language or "en") == "en" else _LETTERS
    pieces = letters.split(text)
    pieces[::2] = map(str.lower, pieces[::2])
    return "".join(pieces)


def segment(text: str, split: Split) -> list[str]:
    """The text as gap, sentence, gap, ..., sentence, gap.

    Split at line ends and tabs, and each part with `split`; `whole_lines` end at newlines alone,
    as those of files do. Gaps are white space, or empty; sentences have no white space at either
    end.
    """
    parts, end = list[str](), 0
    for line in (_WHOLE_LINE if split is whole_lines else _LINE).finditer(text):
        at = line.start()
        for piece in split(line[0]):
            if bare := piece.strip():
                start = at + len(piece) - len(piece.lstrip())
                parts += [text[end:start], bare]
                end = start + len(bare)
            at += len(piece)
    return [*parts, text[end:]]


def halves(
    text: str, separates: Callable[[str, int, int], bool], spans: Sequence[tuple[int, int]] = ()
) -> tuple[str, str, str] | None:
    """The text in two, and the white space between; None if there is no place to cut it.

    separates: whether white space at these places is between words; spans: that must stay whole.
    """
    middle = len(text) / 2
    begins = [begin for begin, _ in spans]

    def is_free(at: int) -> bool:
        number = bisect_left(begins, at)  # of the spans before it
        return number == 0 or spans[number - 1][1] <= at

    for pattern, reach in _CUTS:
        places = (place.span() for place in pattern.finditer(text))
        near = [place for place in places if abs(place[1] - middle) <= reach * len(text)]
        for begin, end in sorted(near, key=lambda place: abs(place[1] - middle)):
            is_inside = begin > 0 and end < len(text) and is_free(begin)
            if is_inside and separates(text, begin, end):
                return text[:begin], text[begin:end], text[end:]
    return None
