"""Documents in XML: XLIFF, Qt's .ts, .NET's .resx and Android's strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import partial
from xml.parsers import expat
from xml.sax import saxutils

from specdec_plugins.documents.base import (
    Document,
    Edit,
    State,
    Unit,
    Write,
    decoded,
    escaping,
    is_other,
    unescaped,
)
from specdec_plugins.documents.inline import Inline, Kind, Piece, inline
from specdec_plugins.errors import UserError

_TAG = re.compile(r"<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")
_LINE_END = re.compile(r"\r\n?|\n")  # for expat
_DECLARED = re.compile(rb"<\?xml[^>]*encoding=[\"']([\w.:-]+)")
_CDATA = "<![CDATA["
OTHER = "#other"  # the name of a comment, an instruction or an entity


@dataclass(eq=False)
class Node:
    """An element, a text or something else, and where it is in the file."""

    name: str  # without a prefix; empty for a text
    begin: int
    end: int = 0
    inner: tuple[int, int] = (0, 0)  # between the tags
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    text: str = ""

    def named(self, *names: str) -> list[Node]:
        return [child for child in self.children if child.name in names]

    def walk(self, *closed: str) -> Iterator[Node]:
        """It and all in it, in their order, without what is in elements of these names."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            if node.name not in closed:
                left += reversed(node.children)

    def find(self, *names: str) -> Iterator[Node]:
        """The elements of these names in it, but none that is within another one of them."""
        return (node for node in self.walk(*names) if node.name in names)

    @property
    def said(self) -> str:
        return "".join(node.text for node in self.walk())


def _local(name: str) -> str:
    return name.rpartition(":")[2]


class _Reader:
    """Builds nodes."""

    def __init__(self, text: str) -> None:
        self._source = text
        self._lines = [0, *(found.end() for found in _LINE_END.finditer(text))]
        self.root = Node("", 0)
        self._opened = [self.root]
        self._in_cdata = False
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._stop
        parser.CharacterDataHandler = self._text
        parser.StartCdataSectionHandler = partial(self._cdata, True)
        parser.EndCdataSectionHandler = partial(self._cdata, False)
        # Also keeps entities of the file's own as they are.
        parser.DefaultHandler = self._other
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            told = expat.ErrorString(error.code)
            raise UserError(
                f"line {error.lineno}: is not XML ({told}); correct it, and close what is open."
            ) from error

    @property
    def _place(self) -> int:
        parser = self._parser
        return self._lines[parser.CurrentLineNumber - 1] + parser.CurrentColumnNumber

    def _at(self) -> int:
        at = self._place
        last = self._opened[-1].children[-1:]
        if last and not last[0].end:  # a text, which ends where something begins
            last[0].end = at
        return at

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        at = self._at()
        node = Node(_local(name), at, attributes={_local(k): v for k, v in attributes.items()})
        tag = _TAG.match(self._source, at)
        assert tag is not None
        node.inner = tag.end(), tag.end()
        self._opened[-1].children.append(node)
        self._opened.append(node)

    def _stop(self, name: str) -> None:
        at = self._at()
        node = self._opened.pop()
        begin = node.inner[0]
        tag = None if self._source[begin - 2 : begin] == "/>" else _TAG.match(self._source, at)
        node.inner, node.end = (begin, at if tag else begin), tag.end() if tag else begin

    def _cdata(self, begins: bool) -> None:
        self._at()
        self._in_cdata = begins
        if begins:
            self._opened[-1].children.append(Node("", self._place))
        else:
            self._opened[-1].children[-1].end = self._place + len("]]>")

    def _text(self, said: str) -> None:
        children = self._opened[-1].children
        is_new = not children or children[-1].name or children[-1].end
        if is_new:
            children.append(Node("", self._at()))
        children[-1].text += said

    def _other(self, said: str) -> None:
        if len(self._opened) > 1 and not self._in_cdata:
            at = self._at()
            end = at + len(said)
            self._opened[-1].children.append(Node(OTHER, at, end, (at, end)))


def parsed(text: str) -> Node:
    """The root, with the element of the document as its child. Raises UserError if it is no XML."""
    return _Reader(text).root


def read_xml(data: bytes, units: Callable[[Node, str], Iterator[Unit]]) -> Document:
    """A document whose units are found in its tree. Raises UserError if it is no XML."""
    declared = _DECLARED.match(data.removeprefix(b"\xef\xbb\xbf"))
    text = decoded(data, declared and declared[1].decode(), "xmlcharrefreplace")
    root = parsed(text.text)

    def named(language: str) -> list[Edit]:
        return [edit for node in root.walk() for edit in _named(node, text.text, language)]

    return Document.of(data, text, [*units(root, text.text)], named)


def _named(node: Node, text: str, language: str) -> Iterator[Edit]:
    """The edit of an element that names the language of translations."""
    if node.name == "TS":
        name = "language"
    elif node.name == "xliff" and node.attributes.get("version", "").startswith("2"):
        name = "trgLang"
    elif node.name == "file" and "source-language" in node.attributes:  # not of XLIFF 2
        name = "target-language"
    else:
        return
    if not is_other(node.attributes.get(name, ""), language):
        return
    tag = text[node.begin : node.inner[0]]
    if name in node.attributes:
        tag = re.sub(rf"(\s{name}\s*=\s*)([\"'])[^\"']*\2", rf"\1\g<2>{language}\2", tag)
    else:
        tag = re.sub(r"\s*/?>\Z", rf' {name}="{language}"\g<0>', tag)
    yield Edit(node.begin, node.inner[0], tag)


def _pieces(node: Node, text: str, voids: Set[str]) -> Iterator[Piece]:
    """What is in an element. voids: elements that hold no text to translate."""
    left: list[Node | Piece] = [*reversed(node.children)]
    with_text = set[Node]()
    for inner in reversed([*node.walk()]):
        if inner.text.strip() or not with_text.isdisjoint(inner.children):
            with_text.add(inner)
    while left:
        one = left.pop()
        if isinstance(one, Piece):
            yield one
        elif not one.name:
            yield Piece(Kind.TEXT, text[one.begin : one.end], one.text)
        elif one.name in voids or one not in with_text:
            yield Piece(Kind.VOID, text[one.begin : one.end])
        else:
            begin, end = one.inner
            yield Piece(Kind.OPEN, text[one.begin : begin], name=one.name)
            left.append(Piece(Kind.CLOSE, text[end : one.end], name=one.name))
            left += reversed(one.children)


def escaped(said: str) -> str:
    # What XML cannot hold at all has no escape either.
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", saxutils.escape(said))


def _within(node: Node, text: str) -> Inline | None:
    escape = _in_cdata if _is_cdata(text[slice(*node.inner)]) else escaped
    return inline([*_pieces(node, text, _OPAQUE)], escape, keeps_space=True)


def _is_cdata(raw: str) -> bool:
    raw = raw.strip()
    return raw.startswith(_CDATA) and raw.endswith("]]>") and raw.count(_CDATA) == 1


def _in_cdata(said: str) -> str:
    return f"{_CDATA}{said.replace(']]>', ']] >')}]]>"


# XLIFF

# Whose content is code.
_OPAQUE = {"x", "bx", "ex", "bpt", "ept", "ph", "it", "sub", "sc", "ec", "cp", "byte"}
_FRESH = {"new", "needs-translation", "initial"}


def xliff(root: Node, text: str) -> Iterator[Unit]:
    """The units of XLIFF 1.2 and 2."""
    fixed = {n for node in root.walk() if node.attributes.get("translate") == "no"
             for n in node.walk()}  # fmt: skip
    for node in root.find("trans-unit", "segment"):
        sources, targets = node.named("source"), node.named("target")
        made, target = sources and _within(sources[0], text), targets[0] if targets else None
        if not made:
            continue
        said = target.said if target is not None else ""
        state = State.FIXED if node in fixed else State.NEW if not said.strip() else State.DONE
        marks = {one and one.attributes.get("state", "") for one in (node, target)}
        is_fuzzy = node.attributes.get("approved") == "no" or any(
            mark in _FRESH or (mark or "").startswith("needs-") for mark in marks
        )
        state = State.FUZZY if is_fuzzy and state is State.DONE else state
        write = _xliff_writer(node, sources[0], target, text, made)
        yield Unit(made.source, write, state, "" if made.marks else said)


def _xliff_writer(node: Node, source: Node, target: Node | None, text: str, made: Inline) -> Write:
    prefix = text[source.begin + 1 : source.inner[0]].partition("source")[0]  # of its name

    def write(translation: str) -> list[Edit] | None:
        said = made.restored(translation)
        if said is None:
            return None
        if target is None:
            blank = re.search(r"\s*$", text[node.inner[0] : source.begin])
            gap = blank[0] if blank else ""
            return [Edit(source.end, source.end, f"{gap}<{prefix}target>{said}</{prefix}target>")]
        tag = _changed(_opening(target, text), "state", "new|needs-translation", "translated")
        edits = [Edit(target.begin, target.end, f"{tag}{said}</{prefix}target>")]
        if node.attributes.get("state") == "initial":
            head = _changed(_opening(node, text), "state", "initial", "translated")
            edits.append(Edit(node.begin, node.inner[0], head))
        return edits

    return write


def _opening(node: Node, text: str) -> str:
    """The tag that opens an element, also of one that is empty."""
    return re.sub(r"\s*/>$", ">", text[node.begin : node.inner[0]])


def _changed(tag: str, name: str, values: str, value: str) -> str:
    """A tag with another value of an attribute, if it has one of these; without it for ''."""
    new = rf"\1\2{value}\2" if value else ""
    return re.sub(rf"(\s{name}=)([\"'])(?:{values})\2", new, tag)


# Qt


def qt(root: Node, text: str) -> Iterator[Unit]:
    """The messages of a .ts file."""
    for node in root.find("message"):
        if node.named("source") and node.named("translation"):
            target = node.named("translation")[0]
            made, kind = _within(node.named("source")[0], text), target.attributes.get("type")
            if made is None or kind in ("obsolete", "vanished"):
                continue
            forms = target.named("numerusform") or [target]
            for form in forms:
                state = State.FUZZY if kind == "unfinished" else State.DONE
                state = state if form.said.strip() else State.NEW
                finished = {form, target} if form is forms[-1] else {form}
                write = _qt_writer(form, finished, text, made)
                yield Unit(made.source, write, state, "" if made.marks else form.said)


def _qt_writer(form: Node, finished: Set[Node], text: str, made: Inline) -> Write:
    """form: where the translation goes; finished: what is then to be marked as such."""

    def write(translation: str) -> list[Edit] | None:
        said = made.restored(translation)
        if said is None:
            return None
        edits = [Edit(form.inner[0], form.end, f"{said}</{form.name}>")]
        for node in finished:
            tag = _changed(_opening(node, text), "type", "unfinished", "")
            edits.append(Edit(node.begin, node.inner[0], tag))
        return edits

    return write


# .NET


def resx(root: Node, text: str) -> Iterator[Unit]:
    """The strings of a .resx file, without those of a form's design."""
    for node in root.find("data"):
        named = node.attributes
        is_text = not {"type", "mimetype"} & named.keys()
        if is_text and not named.get("name", "").startswith(("$this.", ">>")):
            for value in node.named("value"):
                made = _within(value, text)
                yield from [made.unit(*value.inner)] if made else []


# Android

_ANDROID = {"n": "\n", "t": "\t"}
_ESCAPING = escaping({**_ANDROID, "'": "'"})


def android(root: Node, text: str) -> Iterator[Unit]:
    """Strings, and the items of arrays and plurals, but not those that are not translatable."""
    for node in root.find("string", "string-array", "plurals"):
        if node.attributes.get("translatable") != "false":
            for one in [node] if node.name == "string" else node.named("item"):
                yield from _android_unit(one, text)


def _android_unit(node: Node, text: str) -> Iterator[Unit]:
    raw = text[slice(*node.inner)]
    is_quoted = re.fullmatch(r'\s*"(?:[^"\\]|\\.)*"\s*', raw, re.DOTALL) is not None
    is_cdata = _is_cdata(raw)
    has_quotes = is_cdata and '"' in re.sub(r"\\.", "", raw)  # as HTML needs them
    pieces = [*_pieces(node, text, {"g"})]
    for at, piece in enumerate(pieces):
        if piece.kind is Kind.TEXT:
            # Of the quotes, the outer ones only: neither is escaped.
            quotes = r'^\s*"|(?<!\\)((?:\\\\)*)"\s*\Z'
            # Any white space is one space, but for what stands around the text in the file.
            is_first = at == 0 and piece.raw[:1].isspace()
            is_last = piece is pieces[-1] and piece.raw[-1:].isspace()
            blanks = r"(?<=\S)" * is_first + r"\s+" + r"(?=\S)" * is_last
            spaces, kept = (quotes, r"\1") if is_quoted else (blanks, " ")
            said = unescaped(re.sub(spaces, kept, piece.text), _ANDROID)
            pieces[at] = Piece(Kind.TEXT, piece.raw, said)

    def quoted(said: str) -> str:
        said = said.translate(_ESCAPING)
        said = said if has_quotes else said.replace('"', '\\"')
        said = f'"{said}"' if is_quoted else said
        said = f"\\{said}" if said[:1] in ("@", "?") else said
        return _in_cdata(said) if is_cdata else escaped(said)

    made = inline(pieces, quoted, keeps_space=True)
    if made is not None and not raw.strip().startswith(("@", "?")):  # a reference
        yield made.unit(*node.inner)
