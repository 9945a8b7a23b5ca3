"""Marks of a key before a letter of a label: &File of Qt and Windows, _File of GTK.

A model reads the label without its mark. The translation has it before a word with the same letter
or, if there is none, before its first one; a script without cases has it behind the label, as (&F).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from specdec_plugins.text.spans import spans_of

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

    def marked(self, translation: str) -> str:
        """The translation with the mark."""
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
            return Label(text[:at] + text[at + 1 :], mark, text[at + 1])
    return Label(text)


def _cased(text: str) -> Iterator[int]:
    """The places of letters outside of spans, in scripts with cases."""
    at = 0
    for begin, end in (*spans_of(text), (len(text), len(text))):
        yield from (one for one in range(at, begin) if text[one].swapcase() != text[one])
        at = end
