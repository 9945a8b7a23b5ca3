"""Quotation marks, dashes and ellipses, which Moses reads as those of a typewriter."""

from __future__ import annotations

import re
from itertools import chain, cycle, repeat

# Quotation marks of languages other than English, as Unicode's CLDR has them.
_QUOTES = {
    language: marks
    for marks, languages in {
        ("„", "“"): "bg cs de et is lt mk sk sl",
        ("„", "”"): "hr hu pl ro",
        ("«", "»"): "be ca el es it lv nb no ru uk",
        ("«\u00a0", "\u00a0»"): "fr",
        ("”", "”"): "fi sv",
    }.items()
    for language in languages.split()
}
_QUOTE = re.compile("[“”„«»]")
_DASH = re.compile(r"\s[-–—]\s|—")  # between words
_TYPED = re.compile(r"(?<=\S) - (?=\S)")
_TIGHT, _TYPED_TIGHT = re.compile(r"(?<=\w)–(?=\w)"), re.compile(r"(?<=\w)-(?=\w)")
_RANGE, _TYPED_RANGE = re.compile(r"(?<=\d)–(?=\d)"), re.compile(r"(?<=\d)-(?=\d)")


def typeset_like(source: str, line: str, language: str) -> str:
    """A detokenised line with marks as typographic as those of its source.

    All but dashes between words are decided from left to right, so that the beginning of a text
    remains as it is when more of it is known. language: of the line, two letters.
    """
    if source.isascii():
        return line
    if '"' not in source and _QUOTE.search(source):
        marks = cycle(_QUOTES.get(language, ("“", "”")))
        line = re.sub('"', lambda _: next(marks), line)
    if "’" in source and not {"'", "‘"} & {*source}:
        line = line.replace("'", "’")
    if "…" in source and "..." not in source:
        line = line.replace("...", "…")
    dashes = [dash.strip() for dash in _DASH.findall(source)]
    if {*dashes} - {"-"}:
        rest = dashes[0] if len({*dashes}) == 1 else "-"
        signs = chain(dashes, repeat(rest))
        line = _TYPED.sub(lambda _: f" {next(signs)} ", line)
    num_ranges = len(_RANGE.findall(source))
    num_words = len(_TIGHT.findall(source)) - num_ranges
    if num_ranges and not _TYPED_RANGE.search(source):
        line = _TYPED_RANGE.sub("–", line, count=num_ranges)
    # A hyphen within a word may be the translation's own.
    has_hyphens = _TYPED_TIGHT.search(source) or len(_TYPED_TIGHT.findall(line)) > num_words
    return line if has_hyphens else _TYPED_TIGHT.sub("–", line)
