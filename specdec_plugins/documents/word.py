"""Documents of Word (.docx): the text of its paragraphs, which keeps the format of its runs."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from specdec_plugins.documents.base import Document, Edit, Unit, decoded, edited, replacing
from specdec_plugins.documents.inline import Inline, Kind, Piece, inline
from specdec_plugins.documents.xml import Node, escaped, parsed
from specdec_plugins.errors import UserError

_TEXTS = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_AROUND = {"hyperlink", "ins", "smartTag", "sdt", "fldSimple", "customXml"}
_NOISE = {"proofErr", "lastRenderedPageBreak"}  # Word's own remarks, which it makes again
_BETWEEN = "\0"  # parts of the text; no XML has it
_MOST_BYTES, _MOST_GROWTH = 50_000_000, 20  # of texts, and of what else a file has compressed
_DAMAGED = (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError, OSError)


@dataclass(frozen=True)
class _Run(Piece):
    """A piece of a paragraph: a text, or the beginning or end of one in another format."""

    format: str | None = None  # of a text, as XML


def read_docx(data: bytes) -> Document:
    """The paragraphs of the text, headers, footers and notes. Raises UserError for other files."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        names = [name for name in archive.namelist() if _TEXTS.fullmatch(name)]
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        size, most = sum(sizes[name] for name in names), _MOST_BYTES + _MOST_GROWTH * len(data)
        is_readable = size <= _MOST_BYTES and sum(sizes.values()) <= most
        # What is not translated is compressed anew, so it must be whole, too.
        if "word/document.xml" not in names or not is_readable or archive.testzip() is not None:
            raise UserError("is no .docx file that can be read; save it anew with Word or Writer.")
        parts = {name: decoded(archive.read(name)) for name in names}
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(f"is no .docx file, or a damaged or encrypted one ({error}).") from error
    units, begin = list[Unit](), 0
    for part in parts.values():
        units += _paragraphs(parsed(part.text), part.text, begin)
        begin += len(part.text) + len(_BETWEEN)
    whole = _BETWEEN.join(part.text for part in parts.values())

    def with_edits(edits: Sequence[Edit]) -> bytes:
        texts = edited(whole, edits).split(_BETWEEN)
        made = zip(parts.items(), texts, strict=True)
        return _repacked(archive, {name: part.encoded(text) for (name, part), text in made})

    return Document(data, units, with_edits)


def _repacked(archive: zipfile.ZipFile, changed: Mapping[str, bytes]) -> bytes:
    """The archive with other contents of these files; names, times and order stay."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for info in archive.infolist():
            data = changed[info.filename] if info.filename in changed else archive.read(info)
            out.writestr(info, data)
    return made.getvalue()


def _paragraphs(root: Node, text: str, first: int) -> Iterator[Unit]:
    """first: where the text begins in that of all parts."""
    tag = next(text[node.begin : node.inner[0]] for node in root.children if node.inner[0])
    prefix = tag[1:].partition(":")[0] + ":" if ":" in tag.split()[0] else ""
    for node in root.walk():
        if node.name == "p" and text.startswith(f"<{prefix}p", node.begin):
            for part in _parts(node):
                yield from _Paragraph(part, text, prefix).units(first)


def _parts(paragraph: Node) -> Iterator[list[Node]]:
    """What is in a paragraph, parted where another one is inside, as in a text box."""
    part = list[Node]()
    for child in paragraph.children:
        if any(node.name == "p" for node in child.walk()):
            yield part
            part = []
        elif child.name not in ("pPr", ""):
            part.append(child)
    yield part


class _Paragraph:
    """A paragraph, or a part of it."""

    def __init__(self, nodes: Sequence[Node], text: str, prefix: str) -> None:
        self._nodes, self._text, self._prefix = nodes, text, prefix

    def units(self, first: int) -> Iterator[Unit]:
        """Its unit, if there is something to translate."""
        runs = _fields([*self._runs()])
        lengths = Counter[str]()
        for run in runs:
            if run.format is not None:
                lengths[run.format] += len(run.text.strip())
        self._usual = max(lengths, key=lengths.__getitem__, default="")
        made = inline([*self._marked(runs)], keeps_space=True)
        if made is not None:
            place = first + self._nodes[0].begin, first + self._nodes[-1].end
            yield replacing(made.source, *place, partial(self._restored, made))

    def _run(self, format: str, inner: str) -> str:
        return f"<{self._prefix}r>{format}{inner}</{self._prefix}r>"

    def _said(self, format: str, said: str) -> str:
        tag = f"{self._prefix}t"
        return self._run(format, f'<{tag} xml:space="preserve">{escaped(said)}</{tag}>')

    def _runs(self) -> Iterator[_Run]:
        """The runs, one by one, and what is between them."""
        left: list[Node | _Run] = [*reversed(self._nodes)]
        while left:
            one = left.pop()
            if isinstance(one, _Run):
                yield one
            elif one.name == "r":
                yield from self._of_run(one)
            elif one.name in _AROUND:
                inner = (one.named("sdtContent") or [one])[0]
                children = [child for child in inner.children if child.name]
                while children and children[0].name.endswith("Pr"):
                    inner.inner = children.pop(0).end, inner.inner[1]
                begin, end = inner.inner
                yield _Run(Kind.OPEN, self._text[one.begin : begin], name=one.name)
                left.append(_Run(Kind.CLOSE, self._text[end : one.end], name=one.name))
                left += reversed(children)
            elif one.name and one.name not in _NOISE:
                yield _Run(Kind.VOID, self._text[one.begin : one.end])

    def _of_run(self, run: Node) -> Iterator[_Run]:
        format = "".join(self._text[p.begin : p.end] for p in run.named("rPr"))
        for node in run.children:
            if node.name == "t":
                said = node.said
                yield _Run(Kind.TEXT, self._said(format, said), said, format=format)
            elif node.name and node.name not in {"rPr", *_NOISE}:
                raw = self._run(format, self._text[node.begin : node.end])
                kind = node.attributes.get("fldCharType", "") if node.name == "fldChar" else ""
                yield _Run(Kind.VOID, raw, name=kind)

    def _marked(self, runs: Sequence[_Run]) -> Iterator[Piece]:
        """The runs, with marks around text of another format than most; texts are joined."""
        pieces = list[_Run]()
        for run in runs:
            last = pieces[-1] if pieces else None
            if last and last.kind is run.kind is Kind.TEXT and last.format == run.format:
                said = last.text + run.text
                pieces[-1] = replace(last, text=said, raw=self._said(run.format or "", said))
            elif last and last.kind is run.kind is Kind.VOID:
                pieces[-1] = replace(last, raw=last.raw + run.raw)
            else:
                pieces.append(run)
        for run in pieces:
            if run.format in (None, self._usual):
                yield run
            else:
                mark = _Run(Kind.OPEN, "", name=f"format {run.format}", format=run.format)
                yield from (mark, run, replace(mark, kind=Kind.CLOSE))

    def _restored(self, made: Inline, translation: str) -> str | None:
        pieces = made.pieces(translation)
        if pieces is None:
            return None
        parts, formats = [made.head], [self._usual]
        for piece in pieces:
            format = getattr(piece, "format", None)
            if piece.kind is Kind.TEXT:
                parts.append(self._said(formats[-1], piece.text))
            elif piece.kind is Kind.OPEN and format is not None:
                formats.append(format)
            elif piece.kind is Kind.CLOSE and format is not None:
                formats.pop()
            else:
                parts.append(piece.raw)
        return "".join([*parts, made.tail])


def _fields(runs: Sequence[_Run]) -> list[_Run]:
    """The runs, with a mark around what a field shows: its instruction is no text."""
    found, begins = list[_Run](), list[int]()
    for run in runs:
        found.append(run)
        if run.kind is not Kind.VOID or not run.name:
            continue
        if run.name == "begin":
            begins.append(len(found) - 1)
        elif begins and run.name == "separate":
            raw = "".join(one.raw for one in found[begins[-1] :])
            found[begins[-1] :] = [_Run(Kind.OPEN, raw, name="field")]
        elif begins and run.name == "end":
            begin = begins.pop()
            if found[begin].kind is Kind.OPEN:
                found[-1] = _Run(Kind.CLOSE, run.raw, name="field")
            else:
                found[begin:] = [_Run(Kind.VOID, "".join(one.raw for one in found[begin:]))]
    return [replace(one, name="") if one.kind is Kind.VOID else one for one in found]
