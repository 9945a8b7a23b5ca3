"""What every format of document has in common: units of text, and edits of the bytes around them.

A document is never written anew. The translation of a unit replaces the bytes where it belongs, and
every other byte stays as it is: comments, order, indentation, line ends. Libraries that read and
write such files would format them in their own way, and translate-toolkit is under the GPL.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from specdec_plugins.errors import UserError
from specdec_plugins.formats.pretrained.languages import plain

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_CHECKED = 1 << 16  # bytes that are searched for signs of another kind of file


class Edit(NamedTuple):
    """What replaces a part of the text."""

    begin: int
    end: int
    text: str


class State(Enum):
    NEW = auto()  # has no translation
    FUZZY = auto()  # has one that somebody should look at
    DONE = auto()
    FIXED = auto()  # marked as not to be translated


Write = Callable[[str], list[Edit] | None]  # None: the translation does not fit
Named = Callable[[str], list[Edit]]  # the edits by which a document names the language of a code


@dataclass(frozen=True)
class Unit:
    """A text of a document that is to be translated."""

    source: str
    write: Write  # the edits by which the document has a translation
    state: State = State.NEW
    target: str = ""  # the translation that it has


class Text(NamedTuple):
    """The characters of a file, and how they become bytes again."""

    text: str
    encoding: str
    mark: bytes = b""  # of the byte order
    errors: str = "strict"

    def encoded(self, text: str) -> bytes:
        """Raises UserError if the encoding lacks a character."""
        try:
            return self.mark + text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            lacking = text[error.start]
            told = f"is in {self.encoding}, which has no {lacking!r}; convert the file to UTF-8."
            raise UserError(told) from error


def decoded(data: bytes, otherwise: str | None = None, errors: str = "strict") -> Text:
    """The text of a file: in the encoding of its byte order mark, in UTF-8, or in another one.

    otherwise: that which the file declares; one of ASCII alone stays in it. errors: what becomes of
    characters that the encoding lacks. Raises UserError for other files.
    """
    mark = next((mark for mark in _MARKS if data.startswith(mark)), b"")
    first = _MARKS.get(mark, "utf-8")
    if "\0" in data[len(mark) :][:_CHECKED].decode(first, "replace"):
        raise UserError("is not a text file; give the file that holds the text.")
    if otherwise and _is_ascii(data, otherwise):
        return Text(data.decode(), otherwise, errors=errors)
    for encoding in (first, *filter(None, [otherwise])):
        try:
            return Text(data[len(mark) :].decode(encoding), encoding, mark, errors)
        except UnicodeDecodeError as error:
            line, first = data.count(b"\n", 0, error.start) + 1, encoding
        except LookupError as error:
            raise UserError(f"is in an unknown encoding, {encoding}.") from error
    raise UserError(
        f"line {line}: is not {first} text; convert the file, for example with iconv, or, if only "
        "this line is in another encoding, correct it."
    )


def _is_ascii(data: bytes, encoding: str) -> bool:
    """Whether a file is of characters alone that ASCII and the encoding have in common."""
    try:
        return data.isascii() and data.decode(encoding) == data.decode()
    except (LookupError, UnicodeDecodeError):
        return False


def line_of(text: str, place: int) -> int:
    """The number of the line of a place."""
    return text.count("\n", 0, place) + 1


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text with edits, in any order.

    They must not overlap, but one may be of a tag that another one moves: it is within that one,
    which has the old tag in its text.
    """
    parts, at = list[str](), 0
    for begin, end, new in sorted(edits, key=lambda e: (e.begin, e.end > e.begin, -e.end)):
        if begin < at:
            assert end <= at
            parts[-1] = parts[-1].replace(text[begin:end], new, 1)
            continue
        parts += [text[at:begin], new]
        at = end
    return "".join([*parts, text[at:]])


def _unnamed(language: str) -> list[Edit]:
    return []


@dataclass
class Document:
    """A file that has been read: its units, and how it is written with their translations."""

    data: bytes
    units: Sequence[Unit]
    with_edits: Callable[[Sequence[Edit]], bytes]  # the file with edits of its text
    named: Named = _unnamed
    marks: str = ""  # that labels may have: `job`

    @classmethod
    def of(
        cls, data: bytes, text: Text, units: Sequence[Unit], named: Named = _unnamed
    ) -> Document:
        """A document whose edits are in a text."""
        return cls(data, units, lambda edits: text.encoded(edited(text.text, edits)), named)

    def written(self, edits: Sequence[Edit], language: str | None = None) -> bytes:
        """The file with edits, which are those of its units; without any, its very bytes.

        language: what the translations are in, to be named in the file; None = unknown.
        """
        if not edits:
            return self.data
        return self.with_edits([*edits, *(self.named(plain(language)) if language else [])])


def is_other(name: str, language: str) -> bool:
    """Whether a file names another language than that of a code, or none; de_AT is no other."""
    return not name or plain(name) != language


def replacing(
    source: str, begin: int, end: int, written: Callable[[str], str | None] = str
) -> Unit:
    """A unit whose translation takes the place of the text itself.

    written: a translation as the file is to have it; None: it does not fit.
    """

    def write(translation: str) -> list[Edit] | None:
        if translation == source:
            return []
        said = written(translation)
        return None if said is None else [Edit(begin, end, said)]

    return Unit(source, write)


def lines_of(text: str) -> list[str]:
    """The lines, with their ends, which are newlines only."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def unescaped(said: str, letters: Mapping[str, str], code: str = "u") -> str:
    """Without backslashes. letters: what those stand for that are more than themselves; code: those
    after which four hexadecimal digits are a character, or one half of it.
    """
    made = re.sub(
        rf"\\(?:[{code}]([0-9A-Fa-f]{{4}})|(.))",
        lambda m: chr(int(m[1], 16)) if m[1] else letters.get(m[2], m[2]),
        said,
        flags=re.DOTALL,
    )
    return made.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def escaping(letters: Mapping[str, str]) -> dict[int, str]:
    """For `str.translate`: backslashes before letters, in place of what these stand for."""
    return {ord(char): f"\\{letter}" for letter, char in {**letters, "\\": "\\"}.items()}


def has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def escaped_ascii(text: str) -> str:
    """The text with an escape of JSON and Java for every character beyond ASCII."""
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
