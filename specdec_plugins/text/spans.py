"""Spans that a translation must contain unchanged: placeholders, tags, addresses, code.

A model reads a symbol in place of each span, and writes it where the span belongs. Where it does
not, the text is translated in pieces around its spans. One pass of one regular expression finds
them; each alternative begins at a character or a word that opens it, and reads no further than a
bound, so the time grows as the text does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product

from specdec_plugins.formats.text import PROTECTED

# In the order of precedence where two begin at the same character.
_KINDS = {
    "symbol": "[\ue000-\uf8ff]",
    "control": r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\x01-\x08\x0e-\x1f\x7f]",
    "code": r"(?P<ticks>`{1,3})[^`\n]{1,500}(?P=ticks)",
    "url": r"\b(?:https?|ftps?|file|mailto|ssh|git)://?[^\s<>\"„“”«»{}]{2,2000}|\bwww\.[^\s<>\"„“”«»]{3,2000}",
    "mail": r"(?<![\w.+%-])[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "tag": r"<!--.{0,2000}?-->|</?[A-Za-z_][^<>\n]{0,2000}>",
    "entity": r"&(?:[A-Za-z]\w{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});",
    # A message of ICU, {n, plural, one {# file} other {# files}}: spans_of finds its end.
    "icu": r"\{\s?\w{1,64}\s?,\s?(?:plural|select|selectordinal|number|date|time)\b",
    # {{ Jinja }}, {% if %}, ${shell}, #{ruby}, {.NET:N2}, {python!r}; ICU's nested ones: _braces
    "brace": r"\{\{[^{}\n]{0,200}\}\}|\{%[^{}\n]{0,200}?%\}|[$#@]?\{[^\s{}][^\s{}]{0,200}\}|\{\}",
    # printf and its kin: %d %-5.2f %(n)s %1$s %ld %@ %%; %1 of Qt, %NAME% of Windows
    "percent": (
        r"(?<!\d)%[A-Za-z_]\w{1,64}%(?!%)(?:\\[^\s\"<>|„“]{1,260})?"
        r"|(?<!\d)%(?:\(\w{1,64}\)|\d{1,2}\$)?[-+#0]{0,4}(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?"
        r"(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGaAcspn@]\w{0,32}"
        r"|%%|(?<!\d)%L?\d{1,2}(?!\d)"
    ),
    "variable": (
        r"(?<![\w$])\$(?:[A-Z_][A-Z0-9_]{0,64}/[\w.+@%~/-]{1,500}"
        r"|[A-Za-z_]\w{0,64}(?:(?:->|\.)\w{1,64}|\[[^\s\[\]]{1,64}\])*)"
    ),
    "drive": (
        r"(?<!\w)(?:[A-Za-z]:|\\)\\[^\s\"<>|„“”]{1,260}"
        r"|\b(?:HKEY_|HK)[A-Z_]{2,24}\\[^\s\"<>|„“”]{1,260}"
    ),
    "path": r"(?<![\w/.~<])(?:~|\.{1,2})?/(?:[\w.+@%~-]{1,255}/){0,32}[\w.+@%~-]{1,255}/?",
    "escape": r"\\[nrtfv0](?![A-Za-z])|\\['\"@?]|\\u[0-9A-Fa-f]{4}",
    "flag": r"(?<![\w-])--[A-Za-z][\w-]{0,64}(?:=[^\s,;\"<>]{1,200})?",
    "mention": r"(?<![\w&])[@#][A-Za-z_][\w-]{0,64}(?:\.\w{1,64})*|(?<![\w&])#\d{1,10}\b",
    # 1..10, 250'000, 5'10"
    "number": (
        r"(?<![\w.,'’])\d{1,9}(?:\.{2,3}\d{1,9}(?![\w.])|(?:['’]\d{3}){1,6}(?![\w'’])"
        r"|['’′]\d{1,2}(?:[\"”″]|'')(?!\w))"
    ),
    "emoticon": r"(?<!\S)(?:[:;=]['’-]?[()DPp|/\\*]{1,9}|<3)(?![^\s.,!?])",
    "colon": r"(?<![\w:]):[A-Za-z_][\w-]{0,32}:?(?![\w:])",
    "file": (
        r"(?<![\w.-])[A-Za-z_][\w-]{0,64}(?:\(\d{1,3}\))?(?:\.[\w-]{1,64}){0,4}\.(?:json|ya?ml|toml|xml|html?|css|[jt]sx?"
        r"|py|rb|php|java|cs|cpp|hpp|sh|bat|ps1|exe|dll|so|txt|md|csv|tsv|log|conf|cfg|ini|sql|zip"
        r"|t?gz|tar|docx?|xlsx?|pptx?|pdf|png|jpe?g|gif|svg|mp[34])\b"
    ),
    "name": (
        r"(?<![\w.])[A-Za-z]\w{0,64}(?:(?:\.|::|->)[A-Za-z_]\w{0,64}){0,8}\(\)"
        r"|(?<!\w)(?:_{1,2}[A-Za-z]|[A-Za-z][A-Za-z0-9]{0,32}_{1,3}[A-Za-z0-9])\w{0,64}"
    ),
    "run": r"(?P<sign>[*_=~#])(?P=sign){1,200}",  # Markdown, lines to fill in, 2 ** 3
}
_ANY = re.compile("|".join(f"(?P<{name}>{kind})" for name, kind in _KINDS.items()))
# *Emphasis* of Markdown, which is not 2 * 3 or an item.
_EMPHASIS = re.compile(r"(?<![\w*])(\*)(?=[^\s*])[^*\n]{1,300}(?<=[^\s*])(\*)(?![\w*])")
_NUMBER = r"(?:\d{1,3}(?:[ \u00a0\u202f]\d{3}){1,8}(?!\d)|\d{1,20})(?:[.,'’]\d{1,20}){0,8}"
_UNIT = (
    r"[kKMGTP]i?B(?:/s)?|[kKMGT]?bit(?:/s)?|[kMGT]?bps|B|[kMGT]b/s|[YZEPTGMkmcdnµμ]?m(?:/s)?[²³23]?"
    r"|km/h|mph|[kmµμn]?g|[mcd]?[lL]|[nµμm]?s|min|h|[kMGT]?Hz|[kMGm]?W|[kMG]?Wh|m?Ah|mA|[mk]?V|k?J"
    r"|k?cal|[kM]?Pa|bar|psi|[kMG]?N|Nm|k?Ω|K|t|lbs?|oz|ft|yd|mi|px|pt|r?em|dpi|ppi|fps|rpm"
    r"|°[CF]?|[%‰€£¥$]|EUR|USD|GBP|CHF|JPY|dB"
)
_MEASURE = re.compile(
    rf"(?<![\w.,])(?:[-+−±~]?{_NUMBER}(?:\s?[-–×x/]\s?{_NUMBER})?"
    rf"[ \u00a0\u202f]?(?:{_UNIT})(?!/?\w)"
    rf"|[-+−]?[$€£¥][ \u00a0]?{_NUMBER}(?!\w))"
)
_ADDRESSES = {"url", "path", "drive", "flag", "variable", "percent"}
_BRACE = re.compile(r"[{}]")
_TRAILING = ".,;:!?)]}'’»›…"  # that end a sentence rather than an address
_OPENERS = {")": "(", "]": "[", "}": "{"}
TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z_][\w:.-]*)[^<>]*?(?P<void>/?)>")
VOID = {"br", "hr", "img", "input", "wbr", "meta", "link"}
_MOST_AROUND = 8  # tags before a text, and behind it
_SPACES = re.compile(r"\s*")
_CLOSING = re.compile(r"[\W_]*")
_OPENING = "([{<\"'„“«‚‘» \t\n\u00a0"


def spans_of(text: str) -> list[tuple[int, int]]:
    """Begin and end of each span, in order. Spans that touch are one."""
    found: list[tuple[int, int]] = []
    closers: dict[int, int] | None = None
    at = 0
    while (match := _ANY.search(text, at)) is not None:
        begin, at = match.span()
        if match.lastgroup == "icu":
            closers = _closers(text) if closers is None else closers
            if begin not in closers:
                continue
            at = closers[begin]
        elif match.lastgroup in _ADDRESSES:
            at = _without_punctuation(text, begin, at)
        if found and found[-1][1] == begin:
            begin, _ = found.pop()
        found.append((begin, at))
    stars = [match.span(n) for match in _EMPHASIS.finditer(text) for n in (1, 2)]
    return united(found, stars) if stars else found


def measures_of(text: str) -> list[tuple[int, int]]:
    """Begin and end of each number that has a unit: 5 GB, 20 °C, 3.5 %, $10."""
    return [found.span() for found in _MEASURE.finditer(text)]


def united(*lists: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans of several lists, in order; those that touch are one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(span for spans in lists for span in spans):
        if found and found[-1][1] >= begin:
            begin, end = found[-1][0], max(found.pop()[1], end)
        found.append((begin, end))
    return found


def _closers(text: str) -> dict[int, int]:
    """Where each brace that is closed opens, and where it ends."""
    opened, closed = list[int](), dict[int, int]()
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            closed[opened.pop()] = brace.end()
    return closed


def _without_punctuation(text: str, begin: int, end: int) -> int:
    while end > begin + 1 and (mark := text[end - 1]) in _TRAILING:
        opener = _OPENERS.get(mark)
        if opener and text.count(opener, begin, end) >= text.count(mark, begin, end):
            break
        end -= 1
    return end


@dataclass(frozen=True)
class Masked:
    """A text with a symbol in place of each span."""

    text: str
    symbols: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()  # those that the symbols stand for, in order
    # Of each span, the nearest character before and behind it, with the white space between;
    # what is behind it is reversed.
    neighbours: tuple[tuple[str, str], ...] = ()
    head: str = ""  # tags and white space that stay around the text
    tail: str = ""

    def restored(self, translation: str) -> str | None:
        """The translation with the spans in place of their symbols, and what is around it.

        None if a symbol is missing or stands twice, or if tags no longer close in order.
        """
        text, found = self.filled(translation)
        if sorted(found) != [*range(len(self.spans))]:
            return None
        is_nested = nests(text) or not nests("".join(self.spans))
        return self.head + text + self.tail if is_nested else None

    def filled(self, translation: str) -> tuple[str, list[int]]:
        """The translation, with a span in place of each symbol that it has, and their numbers."""
        text, *rest = self.pieces(translation)
        found = list[int]()
        for number, piece in zip(rest[::2], rest[1::2], strict=True):
            assert isinstance(number, int)
            found.append(number)
            if number >= 0:
                before, behind = self.neighbours[number]
                text = _beside(str(text), before) + self.spans[number]
                piece = _beside(str(piece)[::-1], behind)[::-1]
            text = f"{text}{piece}"
        return str(text), found

    def pieces(self, text: str) -> list[str | int]:
        """What is between the symbols in a text, by turns with the numbers of their spans.

        -1: a symbol that was not read.
        """
        if not self.symbols:
            return [text]
        first, *rest = self._pattern.split(text)
        numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        found = [numbers.get(symbol.replace(" ", ""), -1) for symbol in rest[::2]]
        turns = zip(found, rest[1::2], strict=True)
        return [first, *(each for turn in turns for each in turn)]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Matches a symbol, which a detokeniser may have spread."""
        spread = (" ?".join(map(re.escape, symbol)) for symbol in self.symbols)
        return re.compile(f"({'|'.join(spread)}|[{PROTECTED[0]}-{PROTECTED[-1]}])")


def stand_ins(text: str) -> Iterator[str]:
    """Symbols for models that were not trained with any: marks of footnotes, which most copy.

    None occurs in the text.
    """
    taken = {*re.findall(r"\d+", text)}
    return (f"[{number}]" for number in count(1) if str(number) not in taken)


def masked(
    text: str, spans: Sequence[tuple[int, int]] | None = None, symbols: Iterable[str] = PROTECTED
) -> Masked:
    """The text as a model is to read it, with as many symbols as there are spans.

    spans: begin and end of each; None = `spans_of` the text.
    """
    begin, end = _inside(text)
    inner = text[begin:end]
    found = spans_of(text) if spans is None else spans
    within = [
        (max(b, begin) - begin, min(e, end) - begin) for b, e in found if e > begin and b < end
    ]
    pieces, neighbours, used, at = list[str](), [], [], 0
    for symbol, (left, right) in zip(symbols, within, strict=False):
        pieces += [inner[at:left], symbol]
        neighbours.append((_neighbour(inner[:left]), _neighbour(inner[right:][::-1])))
        used.append(symbol)
        at = right
    made = "".join([*pieces, inner[at:]])
    kept = tuple(inner[left:right] for left, right in within)
    return Masked(made, tuple(used), kept, tuple(neighbours), text[:begin], text[end:])


def around(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, str, bool]]:
    """The text as its spans and what is between them: the white space before each piece, the
    piece, and whether it is to be translated. Punctuation beside a span is not.
    """
    at, gap = 0, ""
    for begin, end in [*spans, (len(text), len(text))]:
        piece = text[at:begin]
        head = _CLOSING.match(piece).end() if at else 0  # type: ignore[union-attr]
        tail = max(head, len(piece.rstrip(_OPENING) if end > begin else piece))
        for part, is_text in zip(
            (piece[:head], piece[head:tail], piece[tail:]), (False, True, False), strict=True
        ):
            bare = part.strip()
            if bare:
                gap += part[: len(part) - len(part.lstrip())]
                yield gap, bare, is_text and any(map(str.isalpha, bare))
            gap = part[len(part.rstrip()) :] if bare else gap + part
        if begin < end:
            yield gap, text[begin:end], False
            gap = ""
        at = end
    if gap:
        yield gap, "", False


def _inside(text: str) -> tuple[int, int]:
    """Where the text begins and ends within tags that close each other, and white space."""
    tags = [match.span() for match in TAG.finditer(text)]
    begins, ends = [len(text) - len(text.lstrip())], [len(text.rstrip())]
    for left, right in tags[:_MOST_AROUND]:
        if left == begins[-1]:
            begins.append(_SPACES.match(text, right).end())  # type: ignore[union-attr]
    for left, right in tags[: -_MOST_AROUND - 1 : -1]:
        if right == ends[-1]:
            ends.append(len(text[:left].rstrip()))
    for begin, end in product(begins[::-1], ends[::-1]):
        if begin < end and nests(text[:begin] + text[end:]):
            return begin, end
    return 0, len(text)


def nests(text: str) -> bool:
    """Whether each tag of the text is closed, in order."""
    opened: list[str] = []
    for tag in TAG.finditer(text):
        if not tag["close"] and not tag["void"] and tag["name"].lower() not in VOID:
            opened.append(tag["name"])
        elif tag["close"] and (not opened or opened.pop() != tag["name"]):
            return False
    return not opened


def _neighbour(text: str) -> str:
    """The last character of a text that is no white space, and the white space behind it."""
    bare = text.rstrip()
    return bare[-1:] + text[len(bare) :]


def _beside(text: str, wanted: str) -> str:
    """The text before a span, a space apart from it if the source's was.

    wanted: the source's `_neighbour`. Beside another character the detokeniser's space stays,
    except that a word is apart from a span, and a tag beside a word is not.
    """
    bare = text.rstrip()
    if not bare or not wanted.strip():
        return text
    are_words = bare[-1].isalnum() and wanted[0].isalnum()
    if bare[-1] == wanted[0] or are_words:
        return bare + wanted[1:]
    return bare + wanted[1:] if bare[-1].isalnum() and wanted[1:] else text
