"""Documents of running text: HTML, Markdown, subtitles and plain text."""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from specdec_plugins.documents.base import (
    Document,
    Edit,
    Unit,
    decoded,
    has_letters,
    is_other,
    lines_of,
    replacing,
)
from specdec_plugins.documents.inline import Kind, Piece, inline
from specdec_plugins.errors import UserError, imported

# HTML

# Quotes may enclose >. The bound keeps the time of broken markup in proportion to its length.
_HTML = re.compile(
    r"(?P<comment><!--)|<[!?][^>]*>"
    r"|<(?P<close>/?)(?P<name>[a-zA-Z][^\s/>]{0,64})"
    r"(?:[^>\"']++|\"[^\"]*\"|'[^']*'){0,100}+>"
)
_ELEMENTS = {
    "in a sentence": """
        a abbr acronym b bdi bdo big button cite code data del dfn em font i img ins kbd label mark
        q s samp small span strike strong sub sup time tt u var wbr
    """,
    "void": "area base br col embed hr img input link meta source track wbr",
    "no text": "code kbd math pre samp script style svg template textarea var",
}
_PHRASES, _VOIDS, _CODE = (frozenset(names.split()) for names in _ELEMENTS.values())
_KEPT = re.compile(r"\stranslate\s*=\s*[\"']?no\b|\sclass\s*=\s*[\"'][^\"']*\bnotranslate\b", re.I)
_VALUE = r"\s*=\s*(?P<quote>[\"'])(?P<value>(?:(?!(?P=quote)).)*)(?P=quote)"
_SHOWN, _CONTENT = (
    re.compile(rf"\s(?:{names}){_VALUE}", re.IGNORECASE | re.DOTALL)
    for names in ("alt|title|placeholder|aria-label", "content")
)
_UNSEEN = {"link", "base"}
# What a search engine or a chat shows of a page
_SUMMARY = re.compile(
    r"\s(?:name|property)\s*=\s*[\"']?(?:\w+:)?(?:description|title)\b", re.IGNORECASE
)
_LANG = re.compile(r"<html\b[^<>]*?\slang\s*=\s*[\"']?(?P<name>[\w-]+)", re.IGNORECASE)
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w.:-]+)", re.IGNORECASE)


def read_html(data: bytes, attributes: bool = True) -> Document:
    """The text, without code. attributes: and those attributes that are shown."""
    charset = _CHARSET.search(data[:4096])
    text = decoded(data, charset and charset[1].decode(), "xmlcharrefreplace")
    lang = _LANG.search(text.text)

    def named(language: str) -> list[Edit]:
        is_new = lang and is_other(lang["name"], language)
        return [Edit(*lang.span("name"), language)] if lang and is_new else []

    return Document.of(data, text, [*html_units(text.text, attributes=attributes)], named)


def html_units(
    text: str, begin: int = 0, end: int | None = None, attributes: bool = False
) -> Iterator[Unit]:
    """The units of a part of a page."""
    pieces, first, place = list[Piece](), begin, begin
    for piece in _html_pieces(text, begin, len(text) if end is None else end):
        if attributes and piece.kind in (Kind.OPEN, Kind.VOID):
            yield from _attribute_units(piece, place)
        place += len(piece.raw)
        if piece.kind is not Kind.TEXT and piece.name not in _PHRASES:
            yield from _html_unit(pieces, first)
            first += sum(len(one.raw) for one in pieces) + len(piece.raw)
            pieces = []
        else:
            pieces.append(piece)
    yield from _html_unit(pieces, first)


def _attribute_units(piece: Piece, place: int) -> Iterator[Unit]:
    """The attributes of a tag that are shown, such as alt."""
    tag = _HTML.match(piece.raw)
    if tag is None or piece.name in _UNSEEN or piece.name in _CODE or _KEPT.search(tag[0]):
        return
    is_meta = piece.name == "meta"
    if is_meta and not _SUMMARY.search(tag[0]):
        return
    for found in (_CONTENT if is_meta else _SHOWN).finditer(tag[0]):
        said = html.unescape(found["value"])
        if has_letters(said):
            head, tail = found[0][: found.start("value") - found.start()], found[0][-1]

            def escape(translation: str, head: str = head, tail: str = tail) -> str:
                return head + html.escape(translation) + tail

            yield replacing(said, place + found.start(), place + found.end(), escape)


def _html_pieces(text: str, begin: int, end: int) -> Iterator[Piece]:
    at, ends = begin, dict[str, dict[int, int]]()
    last = text.rfind(">", begin, end) + 1  # what follows has no tags
    while tag := _HTML.search(text, at, last):
        place, after, name = tag.start(), tag.end(), (tag["name"] or "").lower()
        if tag["comment"]:
            closed = text.find("-->", after, end)
            after = last if closed < 0 else closed + len("-->")
        yield Piece(Kind.TEXT, text[at:place], html.unescape(text[at:place]))
        kind = Kind.CLOSE if tag["close"] else Kind.OPEN
        if not name:
            kind, name = Kind.VOID, "wbr"  # a comment, which divides no sentence
        elif name in _VOIDS or tag[0].endswith("/>"):
            kind = Kind.VOID
        elif kind is Kind.OPEN and (name in _CODE or _KEPT.search(tag[0])):
            if name not in ends:
                ends[name] = _element_ends(text, name, begin, end)
            kind, after = Kind.VOID, ends[name].get(place, after)
        yield Piece(kind, text[place:after], name=name)
        at = after
    yield Piece(Kind.TEXT, text[at:end], html.unescape(text[at:end]))


def _element_ends(text: str, name: str, begin: int, end: int) -> dict[int, int]:
    """Where each element of a name ends, by its beginning; without those that are not closed."""
    tags = re.compile(rf"<(/?){re.escape(name)}(?=[\s/>])[^>]*>", re.IGNORECASE)
    opened, ends = list[int](), dict[int, int]()
    for tag in tags.finditer(text, begin, end):
        if not tag[1] and not (opened and name in ("script", "style", "textarea")):
            opened.append(tag.start())
        elif tag[1] and opened:
            ends[opened.pop()] = tag.end()
    return ends


def _html_unit(pieces: Sequence[Piece], first: int) -> Iterator[Unit]:
    made = inline(pieces, _escaped)
    if made is not None:
        yield made.unit(first, first + sum(len(piece.raw) for piece in pieces))


def _escaped(said: str) -> str:
    return html.escape(said, quote=False).replace("\xa0", "&nbsp;")


# Markdown

_FRONT = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_TARGET = r"(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])"
_IMAGE = r"!\[(?P<alt>(?:\\.|[^\[\]\\]|\[[^\[\]]*\])*)\]"
_MARKDOWN = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"
    rf"|(?P<void>\\\n|[ ]{{2,}}\n|{_IMAGE}(?P<target>{_TARGET})?|\[\^[^\[\]]+\]"
    r"|\\[^\w\s]|<[^<>\s]*[:@][^<>\s]*>)"
    rf"|(?P<close>\](?P<link>{_TARGET})?)"
    r"|(?P<open>\[)"
    r"|(?P<mark>\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~)"
    r"|(?P<tag></?[a-zA-Z][^<>]*>|<!--.*?-->)",
    re.DOTALL,
)
_BLOCK = re.compile(r"(?=[-+*#>]+\s|\d+[.)]\s)")
_TITLE = re.compile(r"\s(?P<quote>[\"'])(?P<said>[^\n]*)(?P=quote)\s*\)\Z")


def read_markdown(data: bytes) -> Document:
    """Paragraphs, headings, items, cells and HTML; front matter and code stay as they are."""
    text = decoded(data)
    parser = imported("markdown_it", "files").MarkdownIt("commonmark").enable("table")
    front = _FRONT.match(text.text)
    first = front.end() if front else 0
    # The lines of markdown-it, which ends them at \r, too.
    lines = [m.span() for m in re.finditer(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", text.text[first:])]
    starts = [first + begin for begin, _ in lines] + [len(text.text)]
    units, at, defined = list[Unit](), 0, dict[str, dict[str, object]]()
    for token in parser.parse(text.text[first:], defined):
        if token.type == "html_block":
            begin, end = token.map
            units += html_units(text.text, starts[begin], starts[end], attributes=True)
        if token.type == "inline" and token.map:
            place = _place(text.text, token.content, max(at, starts[token.map[0]]))
            if place is not None:
                units += _markdown_unit(token.content, place, defined.get("references", ()))
                units += _shown_units(text.text, *place, defined.get("references", ()))
                at = place[1]
    return Document.of(data, text, units)


def _place(text: str, content: str, at: int) -> tuple[int, int] | None:
    """Where the lines of a paragraph are, behind the marks of quotes and lists."""
    begin, end = None, at
    for line in content.split("\n"):
        line = line.strip()
        found = text.find(line, end)
        if found < 0 or found - end > 1000:  # escaped in a cell of a table
            return None
        begin, end = found if begin is None else begin, found + len(line)
    return begin or 0, end


def _markdown_unit(content: str, place: tuple[int, int], labels: Collection[str]) -> Iterator[Unit]:
    # What marks the lines of a quote inside is not part of the text.
    made = inline([*_markdown_pieces(re.sub(r"\n[ \t]*", "\n", content), labels)])
    if made is None:
        return

    def written(translation: str) -> str | None:
        said = made.restored(translation)
        begins = said is not None and _BLOCK.match(said) and not _BLOCK.match(content)
        return f"\\{said}" if begins else said

    yield replacing(made.source, *place, written)


def _shown_units(text: str, first: int, last: int, labels: Collection[str]) -> Iterator[Unit]:
    """What images show in their place, the titles of images and links, and attributes of tags.

    labels: of the targets that the file defines, as `_label` gives them.
    """
    for mark in _MARKDOWN.finditer(text, first, last):
        alt, is_link = mark["alt"], mark["alt"] is not None or mark["link"]
        if mark["tag"]:
            yield from _attribute_units(_tag_piece(mark[0]), mark.start())
        if has_letters(alt or ""):
            if mark["target"] not in (None, "[]"):
                tail, stop = "]", mark.end("alt") + 1
            else:  # The text is the label, too, which must stay.
                tail, stop = f"][{alt}]", mark.end()
            if tail == "]" or _label(alt) in labels:
                yield replacing(alt, mark.start(), stop, _written("![", tail, "[]"))
        begin = max(mark.start(), mark.end("alt"))
        title = _TITLE.search(text, begin, mark.end()) if is_link else None
        if title and has_letters(title["said"]):
            head, _, tail = title[0].partition(title["said"])
            yield replacing(title["said"], *title.span(), _written(head, tail, title["quote"]))


def _written(head: str, tail: str, special: str) -> Callable[[str], str]:
    """special: characters that need a backslash, unless the text has one before each."""
    needing = re.compile(rf"(?<!\\)[{re.escape(special)}]")
    return lambda translation: head + needing.sub(r"\\\g<0>", translation) + tail


def _label(text: str) -> str:
    """A label as markdown-it compares it."""
    return re.sub(r"\s+", " ", text.strip()).lower().upper()


def _markdown_pieces(text: str, labels: Collection[str]) -> Iterator[Piece]:
    marks = [*_MARKDOWN.finditer(text)]
    at, opened, links = 0, list[str](), _links(text, marks, labels)
    for found in marks:
        begin, kind, raw = found.start(), found.lastgroup, found[0]
        yield Piece(Kind.TEXT, text[at:begin], text[at:begin])
        at = found.end()
        if kind == "tag":
            yield _tag_piece(raw)
        elif kind == "mark":
            is_loose = text[begin - 1 : begin].isspace() and text[at : at + 1].isspace()
            yield Piece(Kind.TEXT, raw, raw) if is_loose else _mark_piece(raw, opened)
        elif kind in ("open", "close"):
            yield links.get(begin, Piece(Kind.TEXT, raw, raw))
        else:
            yield Piece(Kind.VOID, raw)
    yield Piece(Kind.TEXT, text[at:], text[at:])


def _links(text: str, marks: Sequence[re.Match[str]], labels: Collection[str]) -> dict[int, Piece]:
    """Both ends of each link, by their places."""
    links, opened = dict[int, Piece](), list[re.Match[str]]()
    for mark in marks:
        if mark.lastgroup == "open":
            opened.append(mark)
        elif mark.lastgroup == "close" and opened:
            first, raw = opened.pop(), mark[0]
            if mark["link"] in (None, "[]"):  # The text is the label, too, which must stay.
                label = text[first.end() : mark.start()]
                raw = f"][{label}]" if _label(label) in labels else ""
            if raw:
                links[first.start()] = Piece(Kind.OPEN, first[0], name="link")
                links[mark.start()] = Piece(Kind.CLOSE, raw, name="link")
    return links


def _mark_piece(mark: str, opened: list[str]) -> Piece:
    """Of emphasis: the second of two equal marks ends it."""
    if mark in opened:
        opened.remove(mark)
        return Piece(Kind.CLOSE, mark, name=mark)
    opened.append(mark)
    return Piece(Kind.OPEN, mark, name=mark)


def _tag_piece(raw: str) -> Piece:
    name = re.sub(r"\W.*", "", raw.lstrip("</"), flags=re.DOTALL).lower()
    is_void = name in _VOIDS or raw.endswith("/>") or raw.startswith("<!")
    kind = Kind.VOID if is_void else Kind.CLOSE if raw.startswith("</") else Kind.OPEN
    return Piece(kind, raw, name=name)


# Subtitles

# With the number before them, which may follow a cue without a blank line between.
_TIMES = re.compile(r"^(?:[ \t]*\d+[ \t]*\r?\n)?[^\r\n]*-->[^\r\n]*(?:\r?\n|\Z)", re.MULTILINE)
_CUE_END = re.compile(r"\r?\n[ \t]*(?:\r?\n|\Z)|\Z")
_CUE = re.compile(r"</?[A-Za-z0-9][^<>\r\n]*>|\{\\[^{}\r\n]*\}")
_SPEAKER = re.compile(
    r"^[ \t]*(?:(?:<[^<>\r\n]*>|\{\\[^{}\r\n]*\})[ \t]*){0,8}[-–—][ \t]?", re.MULTILINE
)


def read_subtitles(data: bytes) -> Document:
    """The cues of .srt and .vtt, in as many lines as before; every speaker's lines are a unit."""
    text, units = decoded(data), list[Unit]()
    times = [*_TIMES.finditer(text.text)]
    if not times and text.text.strip():
        raise UserError("has no cues: lines such as 00:00:01,000 --> 00:00:02,500.")
    starts = [found.start() for found in times[1:]] + [len(text.text)]
    for found, following in zip(times, starts, strict=False):
        begin = found.end()
        # A cue without text ends where it begins.
        end = _CUE_END.search(text.text, begin, following)
        stop = end.start() if end and text.text[begin : begin + 1] not in "\r\n" else begin
        for first, last in _speakers(text.text, begin, stop):
            units += _cue_unit(text.text[first:last], first)
    return Document.of(data, text, units)


def _speakers(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    places = [begin, *(m.start() for m in _SPEAKER.finditer(text, begin, end)), end]
    for first, last in zip(places, places[1:], strict=False):
        if first < last:
            yield first, last


def _cue_unit(raw: str, first: int) -> Iterator[Unit]:
    dash = _SPEAKER.match(raw)
    begin = dash.end() if dash else 0
    body = raw[begin:]
    pieces, at = list[Piece](), 0
    for tag in _CUE.finditer(body):
        pieces += [Piece(Kind.TEXT, body[at : tag.start()], body[at : tag.start()])]
        pieces += [_tag_piece(tag[0]) if tag[0][0] == "<" else Piece(Kind.VOID, tag[0])]
        at = tag.end()
    pieces += [Piece(Kind.TEXT, body[at:], body[at:])]
    made, newline = inline(pieces), "\r\n" if "\r\n" in body else "\n"
    if made is None:
        return
    num_lines = len(body.strip().splitlines())

    def written(translation: str) -> str | None:
        return made.restored(newline.join(_rows(translation, num_lines)))

    yield replacing(made.source, first + begin, first + len(raw), written)


def _rows(text: str, num: int) -> list[str]:
    """The text in so many lines of about the same length, or fewer if it has too few words."""
    words, rows, left = deque(text.split()), list[str](), len(text)
    for number in range(num, 0, -1):
        row, wanted = "", left / number
        while words and (number == 1 or not row or len(row) + len(words[0]) / 2 < wanted):
            row += (" " if row else "") + words.popleft()
        left -= len(row) + 1
        rows += [row] if row else []
    return rows


# Plain text


def read_text(data: bytes) -> Document:
    """Each line is a unit."""
    text, units, at = decoded(data), list[Unit](), 0
    for line in lines_of(text.text):
        bare = line.strip()
        if has_letters(bare):
            begin = at + line.index(bare)
            units.append(replacing(bare, begin, begin + len(bare)))
        at += len(line)
    return Document.of(data, text, units)
