"""Catalogues of messages as text: gettext's .po, JSON, Java's .properties, Apple's .strings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specdec_plugins.documents.base import (
    Document,
    Edit,
    State,
    Unit,
    decoded,
    edited,
    escaped_ascii,
    escaping,
    has_letters,
    is_other,
    line_of,
    lines_of,
    replacing,
    unescaped,
)
from specdec_plugins.errors import UserError

_STRING = r'"(?:[^"\\]|\\.)*"'

# gettext

_PO_LINE = re.compile(
    r'[ \t]*(?:(?P<key>msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,3}\])?)[ \t]*)?'
    r'"(?P<said>(?:[^"\\\r\n]|\\.)*)"[ \t]*'
)  # fmt: skip
_CHARSET = re.compile(rb'"Content-Type:[^"]*charset=([\w.:-]+)')
_PO_LANGUAGE = re.compile(r'"Language:([^"\\]*)\\n"')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPING = escaping({**_ESCAPES, '"': '"'})
_PO_WIDTH = 77  # of what gettext wraps


@dataclass
class _Message:
    """An entry of a .po file."""

    said: dict[str, str] = field(default_factory=dict)  # by keyword
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # from the keyword on
    flags: list[tuple[int, int]] = field(default_factory=list)  # lines, with their ends


def read_po(data: bytes) -> Document:
    """Raises UserError for what is no .po file."""
    charset = _CHARSET.search(data)
    told = charset[1].decode().upper() if charset else "UTF-8"
    # A file of ASCII alone becomes UTF-8, in which every translation can be written.
    is_new = told != "UTF-8" and data.isascii()
    renamed = [Edit(*charset.span(1), "UTF-8")] if charset and is_new else []
    text = decoded(data, None if is_new or told in ("UTF-8", "CHARSET") else told)
    units, header = list[Unit](), (0, 0)
    for message in _messages(text.text):
        units += _po_units(message, text.text)
        if not message.said["msgid"] and "msgstr" in message.places:
            header = message.places["msgstr"]

    def named(language: str) -> list[Edit]:
        found = _PO_LANGUAGE.search(text.text, *header)
        is_new = found and is_other(found[1].strip(), language)
        return [Edit(*found.span(1), f" {language}")] if found and is_new else []

    def written(edits: Sequence[Edit]) -> bytes:
        is_ascii = all(edit.text.isascii() for edit in edits)
        return text.encoded(edited(text.text, [*edits, *([] if is_ascii else renamed)]))

    return Document(data, units, written, named)


def _messages(text: str) -> Iterator[_Message]:
    message, key, at = _Message(), "", 0
    for line in lines_of(text):
        begin, at = at, at + len(line)
        bare = line.rstrip("\r\n")
        found = _PO_LINE.fullmatch(bare)
        is_new = found is None or found["key"] in ("msgctxt", "msgid")
        if is_new and any(k.startswith("msgstr") for k in message.said):
            yield message
            message, key = _Message(), ""
        if found is None:
            if bare.strip() and not bare.lstrip().startswith("#"):
                raise _no_po(text, begin, "neither a comment nor a string of a .po file")
            message.flags += [(begin, at)] * bare.startswith("#,")
            continue
        key = found["key"] or key
        if not key or (found["key"] and key in message.said):
            raise _no_po(text, begin, "a string without a keyword, or its keyword stands twice")
        message.said[key] = message.said.get(key, "") + _unescaped(found["said"])
        first, _ = message.places.get(key, (begin, 0))
        message.places[key] = first, begin + len(bare)
    if any(k.startswith("msgstr") for k in message.said):
        yield message
    elif message.said:
        raise _no_po(text, at - 1, "the end of the file, within a message")


def _no_po(text: str, place: int, what: str) -> UserError:
    return UserError(
        f"line {line_of(text, place)}: is {what}; correct it (msgfmt --check finds such errors)."
    )


def _unescaped(said: str) -> str:
    return re.sub(
        r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,4})|(.))",
        lambda m: (
            chr(int(m[1], 8)) if m[1] else chr(int(m[2], 16)) if m[2] else _ESCAPES.get(m[3], m[3])
        ),
        said,
    )


def _po_units(message: _Message, text: str) -> Iterator[Unit]:
    """A unit for each msgstr: of the singular for the first of several, else of the plural."""
    said = message.said
    if "msgid" not in said:
        raise _no_po(text, min(message.places.values())[0], "a message without msgid")
    forms = [key for key in said if key.startswith("msgstr")]
    if not has_letters(said["msgid"]):  # the header, or nothing to translate
        return
    is_fuzzy = any(re.search(r"[,\s]fuzzy\b", text[slice(*line)]) for line in message.flags)
    for key in forms:
        is_singular = key == "msgstr" or (key == "msgstr[0]" and len(forms) > 1)
        source = said["msgid"] if is_singular else said.get("msgid_plural", said["msgid"])
        state = State.FUZZY if is_fuzzy else State.DONE
        if not said[key]:
            state = State.NEW
        marks = message.flags if key == forms[0] else []
        yield Unit(source, _po_writer(message.places, key, marks, text), state, said[key])


def _po_writer(
    places: dict[str, tuple[int, int]], key: str, flags: list[tuple[int, int]], text: str
) -> Callable[[str], list[Edit]]:
    begin, end = places[key]
    newline = "\r\n" if text[end : end + 1] == "\r" else "\n"
    source = text[slice(*places["msgid"])]

    def write(translation: str) -> list[Edit]:
        lines = _po_lines(key, translation, wraps="\n" in source)
        edits = [Edit(begin, end, newline.join(lines))]
        for first, last in flags:
            kept = re.sub(r"(,\s*)fuzzy\b[ \t]*", "", text[first:last])
            edits.append(Edit(first, last, kept if kept.strip() != "#" else ""))
        return [e for e in edits if text[e.begin : e.end] != e.text]

    return write


def _po_lines(key: str, translation: str, wraps: bool) -> list[str]:
    """The lines of a message: one, or as gettext wraps them."""
    whole = f'{key} "{_escaped(translation)}"'
    if "\n" not in translation[:-1] and (len(whole) <= _PO_WIDTH + 2 or not wraps):
        return [whole]
    lines = [f'{key} ""']
    for line in lines_of(translation) or [""]:
        row = ""
        for word in re.findall(r"\S+\s*|\s+", line):
            if row and len(_escaped(row + word.rstrip(" "))) > _PO_WIDTH:
                lines.append(f'"{_escaped(row)}"')
                row = ""
            row += word
        lines.append(f'"{_escaped(row)}"')
    return lines


def _escaped(said: str) -> str:
    return said.translate(_ESCAPING)


# JSON

_JSON = re.compile(rf"{_STRING}|[{{}}\[\],:]|[^\s\"{{}}\[\],:]+", re.DOTALL)


def read_json(data: bytes) -> Document:
    """All strings that are values; of Chrome's messages, and of .arb files, those that are shown.

    Raises UserError for what is no JSON.
    """
    text = decoded(data)
    try:
        whole = json.loads(text.text)
    except json.JSONDecodeError as error:
        raise UserError(f"line {error.lineno}: is not JSON ({error.msg}); correct it.") from error
    except (RecursionError, ValueError) as error:
        told = "is nested too deeply, or has too long a number, for a reader of JSON."
        raise UserError(told) from error
    is_chrome = isinstance(whole, dict) and bool(whole) and all(
        isinstance(one, dict) and isinstance(one.get("message"), str) for one in whole.values()
    )  # fmt: skip
    is_ascii = text.text.isascii() and "\\u" in text.text

    def written(translation: str) -> str:
        return json.dumps(translation, ensure_ascii=is_ascii)

    units = []
    for path, begin, end in _json_values(text.text):
        said = json.loads(text.text[begin:end])
        is_shown = not any(key.startswith("@") for key in path)
        if is_chrome:
            is_shown = len(path) == 2 and path[1] == "message"
        if is_shown and has_letters(said):
            units.append(replacing(said, begin, end, written))
    return Document.of(data, text, units)


def _json_values(text: str) -> Iterator[tuple[list[str], int, int]]:
    """The keys above each string that is a value, and its place."""
    path, opened = list[str](), list[str]()
    tokens = [*_JSON.finditer(text)]
    for number, token in enumerate(tokens):
        if token[0] in "{[":
            opened.append(token[0])
            path.append("")
        elif token[0] in "}]":
            opened.pop()
            path.pop()
        elif token[0][0] == '"':
            after = tokens[number + 1][0] if number + 1 < len(tokens) else ""
            if after == ":" and opened[-1] == "{":
                path[-1] = json.loads(token[0])
            else:
                yield path, token.start(), token.end()


# Java

_PROPERTY = re.compile(
    r"^[ \t\f]*(?![#!])(?:[^\\\s:=]|\\(?:\r\n?|.))+[ \t\f]*(?:[=:][ \t\f]*)?"
    r"(?P<value>(?:[^\\\r\n]|\\(?:\r\n?|.))*)",
    re.MULTILINE | re.DOTALL,
)
_CONTINUED = re.compile(r"\\(?:\r\n?|\n)[ \t\f]*")
_JAVA = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_JAVA_ESCAPING = escaping(_JAVA)


def read_properties(data: bytes) -> Document:
    """In UTF-8 or, as before Java 9, in Latin-1 with escapes."""
    text = decoded(data, "latin-1")
    is_plain = not text.text.isascii() and text.encoding != "latin-1"
    units = []
    for found in _PROPERTY.finditer(text.text):
        said = unescaped(_CONTINUED.sub("", found["value"]), _JAVA)
        # A format, where an apostrophe is doubled.
        doubles = "''" in said

        def written(translation: str, doubles: bool = doubles) -> str:
            made = translation.replace("'", "''") if doubles else translation
            made = made.translate(_JAVA_ESCAPING)
            made = f"\\{made}" if made.startswith((" ", "=", ":")) else made
            return made if is_plain else escaped_ascii(made)

        if has_letters(said):
            source = said.replace("''", "'") if doubles else said
            units.append(replacing(source, *found.span("value"), written))
    return Document.of(data, text, units)


# Apple

_SKIPPED = r"(?>/\*.*?\*/|//[^\n]*|\s+)*+"
_WORD = r"[\w.$-]+"
_ENTRY = re.compile(  # without a key, the text is its own
    rf"{_SKIPPED}(?:(?:{_STRING}|{_WORD}){_SKIPPED}={_SKIPPED})?"
    rf"(?:(?P<value>{_STRING})|{_WORD}){_SKIPPED};",
    re.DOTALL,
)


def read_strings(data: bytes) -> Document:
    """Raises UserError for what is no table of strings."""
    text, units, at = decoded(data), list[Unit](), 0
    while entry := _ENTRY.match(text.text, at):
        at = entry.end()
        said = unescaped((entry["value"] or "")[1:-1], _ESCAPES, "uU")
        if has_letters(said):
            begin, end = entry.span("value")
            units.append(replacing(said, begin + 1, end - 1, _escaped))
    if rest := re.sub(rf"\A{_SKIPPED}", "", text.text[at:], flags=re.DOTALL):
        number = line_of(text.text, len(text.text) - len(rest))
        raise UserError(
            f'line {number}: expected "key" = "text"; as in a .strings file; correct it.'
        )
    return Document.of(data, text, units)
