"""Documents that are translated in place: catalogues of messages, pages, subtitles, texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import PurePath

from specdec_plugins.documents import catalogues, pages, word, xml
from specdec_plugins.documents.base import Document
from specdec_plugins.errors import UserError

_XLIFF = partial(xml.read_xml, units=xml.xliff)
# By the ending of a file's name: how it is read.
FORMATS: dict[str, Callable[[bytes], Document]] = {
    ".po": catalogues.read_po,
    ".pot": catalogues.read_po,
    ".xliff": _XLIFF,
    ".xlf": _XLIFF,
    ".ts": partial(xml.read_xml, units=xml.qt),
    ".json": catalogues.read_json,
    ".arb": catalogues.read_json,
    ".properties": catalogues.read_properties,
    ".strings": catalogues.read_strings,
    ".resx": partial(xml.read_xml, units=xml.resx),
    ".xml": partial(xml.read_xml, units=xml.android),
    ".srt": pages.read_subtitles,
    ".vtt": pages.read_subtitles,
    ".md": pages.read_markdown,
    ".html": pages.read_html,
    ".htm": pages.read_html,
    ".docx": word.read_docx,
    ".txt": pages.read_text,
}
# Whose translations stand beside their texts.
BILINGUAL = {".po", ".xliff", ".xlf", ".ts"}
# What may mark the key of a label.
_MARKS = dict.fromkeys((".ts", ".resx", ".properties"), "&")
_MARKS |= dict.fromkeys((".po", ".pot", ".xliff", ".xlf"), "&_")


def read(name: str, data: bytes) -> Document:
    """The document of a file's bytes. Raises UserError, without its name, if it cannot be read."""
    ending = PurePath(name).suffix.lower()
    if ending not in FORMATS:
        raise UserError(f"is of an unknown kind; the names of these end in {', '.join(FORMATS)}.")
    document = FORMATS[ending](data)
    document.marks = _MARKS.get(ending, "")
    return document
