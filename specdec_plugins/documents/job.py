"""What of a document is translated, and what is known already.

Labels may mark a key: &File of Qt and Windows, _File of GTK. A model reads the label without its
mark. The translation has it before a word with the same letter or, if there is none, before its
first one; a script without cases has it behind the label, as (&F).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from specdec_plugins.documents.base import Document, Edit, State
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.pretrained.languages import plain
from specdec_plugins.text.spans import spans_of

_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# Which units are translated, by the word that users have for it.
CHOICES = {
    "untranslated": frozenset([State.NEW]),
    "fuzzy": frozenset([State.NEW, State.FUZZY]),
    "all": frozenset([State.NEW, State.FUZZY, State.DONE]),
}
# At the beginning of a word, or within one that is no name such as AT&T or my_file.
_MARKS = {
    "&": re.compile(r"(?:(?<![&\w])|(?<![A-Za-z])[A-Z](?=&[a-z])|(?<=[a-z]))&(?!\w+;)(?=[^\W_])"),
    "_": re.compile(r"(?<!\S)(?:[A-Z][a-z]*(?=_[a-z]+(?:[\s.…:]|\Z)))?_(?=[^\W\d_])"),
}
_LONGEST = 60  # characters of a label with an underscore
_END = re.compile(r"[\s.…:]*\Z")


class Label(NamedTuple):
    """A text without its mark."""

    text: str
    mark: str = ""  # empty if it has none
    letter: str = ""  # behind the mark
    given: str = ""  # with the mark

    def marked(self, translation: str) -> str:
        if translation == self.text:
            return self.given or translation
        if not self.mark or self.mark in translation:
            return translation
        cased = [*_cased(translation)]
        begins = (at for at in cased if not translation[at - 1 : at].isalnum())
        own = (at for at in begins if translation[at].lower() == self.letter.lower())
        for at in (*own, *cased):
            return translation[:at] + self.mark + translation[at:]
        end = _END.search(translation).start()  # type: ignore[union-attr]
        return f"{translation[:end]}({self.mark}{self.letter.upper()}){translation[end:]}"


def label_of(text: str, marks: str) -> Label:
    """marks: the characters that may be one; empty = none."""
    for mark in marks:
        found = [*_MARKS[mark].finditer(text)]
        is_label = mark == "&" or (text.count(mark) == 1 and len(text) <= _LONGEST)
        if len(found) == 1 and is_label and mark * 2 not in text:
            at = found[0].end() - 1
            return Label(text[:at] + text[at + 1 :], mark, text[at + 1], text)
    return Label(text)


def _cased(text: str) -> Iterator[int]:
    """The places of letters outside of spans, in scripts with cases."""
    at = 0
    for begin, end in (*spans_of(text), (len(text), len(text))):
        yield from (one for one in range(at, begin) if text[one].swapcase() != text[one])
        at = end


class Job:
    def __init__(
        self,
        document: Document,
        units: str = "untranslated",
        memory: Mapping[str, str] | None = None,
    ) -> None:
        """units: one of CHOICES; memory: translations of texts, which are used as they are."""
        self.document = document
        self.units = [unit for unit in document.units if unit.state in CHOICES[units]]
        self._labels = {unit.source: label_of(unit.source, document.marks) for unit in self.units}
        done = (unit for unit in document.units if unit.state is State.DONE and unit.target)
        own = {unit.source: unit.target for unit in done} if units != "all" else {}
        self._known = {**own, **(memory or {})}
        self.num_known = 0  # units whose translation was known
        self.lost = list[str]()  # sources whose markup a translation would have lost

    @property
    def texts(self) -> list[str]:
        """What is to be translated, each text once."""
        sources = dict.fromkeys(unit.source for unit in self.units)
        unknown = (source for source in sources if source not in self._known)
        return [*dict.fromkeys(self._labels[source].text for source in unknown)]

    def written(self, translations: Mapping[str, str], language: str | None = None) -> bytes:
        """The file. translations: of `texts`, in that language; what has none stays as it is."""
        edits, self.num_known, self.lost = list[Edit](), 0, []
        for unit in self.units:
            label, translation = self._labels[unit.source], self._known.get(unit.source)
            if translation is None and label.text in translations:
                translation = label.marked(translations[label.text])
            if translation is None:
                continue
            made = unit.write(translation)
            if made is None:
                self.lost.append(unit.source)
            else:
                edits += made
                self.num_known += unit.source in self._known
        return self.document.written(edits, language)


def read_memory(path: str | Path, source: str | None, target: str | None) -> dict[str, str]:
    """Translations of a .tmx file, by their sources; the last of several.

    source, target: languages; None = the one that the file calls its source, and the other one.
    Units with markup inside are left out, as is whatever is in other languages. Raises UserError if
    it is no such file or has nothing in these languages.
    """
    found = dict[str, str]()
    try:
        for srclang, said in _variants(Path(path)):
            first = plain(source or srclang)
            others = [code for code in said if code != first]
            last = plain(target) if target else others[0] if len(others) == 1 else ""
            if first in said and last in said:
                found[said[first]] = said[last]
    except (OSError, ElementTree.ParseError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as a .tmx file ({reason}); check it.") from error
    pair = f"from {source or 'its source language'} to {target or 'one other'}"
    require(bool(found), f"{path}: holds no translations {pair}; give another --memory.")
    return found


def _variants(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The source language and the texts of each unit, by language."""
    srclang = ""
    for _, node in ElementTree.iterparse(path):
        if node.tag == "header":
            srclang = node.get("srclang", "")
        elif node.tag == "tu":
            said = dict[str, str]()
            for one in node.iter("tuv"):
                segment = one.find("seg")
                code = one.get(_LANG) or one.get("lang") or ""
                if segment is not None and not len(segment) and segment.text:
                    said[plain(code)] = segment.text
            yield node.get("srclang", srclang), said
            node.clear()
