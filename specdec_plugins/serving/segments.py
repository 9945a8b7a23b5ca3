"""A text as sentences and the white space between them, which is kept as it is."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specdec_plugins.errors import not_installed

Split = Callable[[str], Sequence[str]]

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Segments:
    """`gaps[0] sentences[0] gaps[1] ... gaps[n]` is the text, to the character."""

    sentences: list[str]  # without white space at either end, never empty
    gaps: list[str]  # one more than there are sentences; white space only

    def join(self, translations: Sequence[str]) -> str:
        """The text with its sentences replaced."""
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        return "".join(parts)


def sentence_splitter(language: str) -> Split:
    """The rules of that language, or of English where there are none for it.

    Raises UserError where the package is missing.
    """
    try:
        package = importlib.import_module("sentence_splitter")
    except ModuleNotFoundError as error:
        raise not_installed("sentence-splitter", "serve") from error
    try:
        split: Split = package.SentenceSplitter(language=language).split
    except package.SentenceSplitterException:
        split = package.SentenceSplitter(language="en").split
    return split


def whole(line: str) -> list[str]:
    """Does not split: every line is one sentence."""
    return [line]


def segment(text: str, split: Split) -> Segments:
    """Split at line ends, and each line with `split`; line ends and spaces become gaps."""
    spans = [span for line in _LINE.finditer(text) for span in _sentences(line, split)]
    sentences, gaps, end = [], [], 0
    for start, stop in spans:
        gaps.append(text[end:start])
        sentences.append(text[start:stop])
        end = stop
    return Segments(sentences, [*gaps, text[end:]])


def _sentences(line: re.Match[str], split: Split) -> Iterator[tuple[int, int]]:
    """Where the sentences of a line stand in the text.

    A splitter may change white space but no other character, so the sentences are found again
    by counting the others.
    """
    visible = [line.start() + i for i, char in enumerate(line[0]) if not char.isspace()]
    lengths = [sum(not char.isspace() for char in part) for part in split(line[0])]
    if sum(lengths) != len(visible):
        lengths = [len(visible)]
    at = 0
    for length in lengths:
        if length:
            yield visible[at], visible[at + length - 1] + 1
        at += length
