"""Where a text's sentences begin and end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from specdec_plugins.errors import imported
from specdec_plugins.formats.pretrained.languages import plain

Split = Callable[[str], Sequence[str]]
_SHOWN = 20  # characters at either end of a long word by which a line is split
_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


def whole_lines(language: str | None) -> Split:
    """No splitting, for models that read whole texts, such as summarisers."""
    return lambda line: [line]


def sentence_splitter(language: str | None) -> Split:
    """Splits by the rules of a language, or of English if it has none.

    Raises UserError if the package that knows them is not installed.
    """
    package = imported("sentence_splitter", "text")
    code = plain(language or "en")
    folder = Path(package.__file__).parent / "non_breaking_prefixes"
    return _splitter(code if f"{code}.txt" in os.listdir(folder) else "en")


@cache
def _splitter(code: str) -> Split:
    """The package's splitter of one of its languages, in time that grows as the text does.

    The package searches each word, in cubic time if it is a run of dots. Its rules look only at
    the ends of words and at the spaces between them, so it is shown both ends of long words.
    """
    split = imported("sentence_splitter", "text").SentenceSplitter(code).split

    def sentences(line: str) -> list[str]:
        words = [word for word in line.strip().split(" ") if word]
        if len(words) < 2:
            return words
        shown = (w if len(w) <= 2 * _SHOWN else w[:_SHOWN] + w[-_SHOWN:] for w in words)
        left = iter(words)
        return [" ".join(islice(left, one.count(" ") + 1)) for one in split(" ".join(shown))]

    return sentences


def segment(text: str, split: Split) -> list[str]:
    """The text as gap, sentence, gap, ..., sentence, gap.

    Split at line ends, and each line with `split`. Gaps are line ends and spaces, or empty;
    sentences have no white space at either end.
    """
    parts, end = list[str](), 0
    for line in _LINE.finditer(text):
        for start, stop in _sentences(line, split):
            parts += [text[end:start], text[start:stop]]
            end = stop
    return [*parts, text[end:]]


def _sentences(line: re.Match[str], split: Split) -> Iterator[tuple[int, int]]:
    """Start and end of a line's sentences in the text.

    A splitter may change white space but no other character, so counting the other characters
    finds the sentences again.
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
