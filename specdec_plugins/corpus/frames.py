"""Makes sentence pairs of a dictionary's entries, so that rare words come with gender and case.

    ENGLISH <tab> GERMAN <tab> KIND        KIND: noun:m, noun:f, noun:n, noun:pl, verb, phrase, word
    heating      Heizung     noun:f   ->   He asked about the heating.   Er fragte nach der Heizung.

A long list of single words would teach a model to stop early. So an entry is written in a short
frame that shows its article, in a case chosen by the hash of the entry, and only the first German
word of an English one is taken: the list is sorted by frequency.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.reading import BadLines, read_lines
from specdec_plugins.errors import require
from specdec_plugins.formats.output import check_output, written_whole

# Articles by gender: definite nominative, accusative, dative, then the endings of "ein".
_ARTICLES = {
    "m": ("der", "den", "dem", "", "en"),
    "f": ("die", "die", "der", "e", "e"),
    "n": ("das", "das", "dem", "", ""),
    "pl": ("die", "die", "den", "e", "e"),
}
# {0} is the noun; {nom} to {dat} its definite article, {a} and {an} the endings of "ein".
_ANY_NUMBER = (
    ("the {0}", "{nom} {0}"),
    ("We talked about the {0}.", "Wir sprachen über {acc} {0}."),
    ("He asked about the {0}.", "Er fragte nach {dat} {0}."),
    ("with the {0}", "mit {dat} {0}"),
    ("for the {0}", "für {acc} {0}"),
    ("I can see the {0}.", "Ich kann {acc} {0} sehen."),
    ("my {0}", "mein{a} {0}"),
    ("There is more than the {0}.", "Es gibt mehr als {acc} {0}."),
    ("without our {0}", "ohne unser{an} {0}"),
)
_SINGULAR = (
    ("Where is the {0}?", "Wo ist {nom} {0}?"),
    ("The {0} is not there.", "{Nom} {0} ist nicht da."),
    ("This is a {0}.", "Das ist ein{a} {0}."),
    ("We need a {0}.", "Wir brauchen ein{an} {0}."),
    ("There is no {0} here.", "Hier gibt es kein{an} {0}."),
)
_PLURAL = (
    ("Where are the {0}?", "Wo sind {nom} {0}?"),
    ("The {0} are not there.", "{Nom} {0} sind nicht da."),
    ("These are {0}.", "Das sind {0}."),
    ("We need {0}.", "Wir brauchen {0}."),
    ("There are no {0} here.", "Hier gibt es keine {0}."),
)
_VERB = (
    ("to {0}", "{0}"),
    ("I want to {0}.", "Ich will {0}."),
    ("We have to {0}.", "Wir müssen {0}."),
    ("Can you {0}?", "Können Sie {0}?"),
    ("He does not want to {0}.", "Er möchte nicht {0}."),
)
# Masculine nouns that take -n or -en outside the nominative, and nouns declined as adjectives.
_WEAK = re.compile(r"(e|ent|ant|ist|oge|at|et|graf|herr|mensch|nachbar|held|bauer)$", re.IGNORECASE)
_PLAIN = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+)*")


def framed(english: str, german: str, kind: str, number: int) -> tuple[str, str] | None:
    """The pair of one entry in a frame; None if it has none, or its inflection is not known.

    number: any number; it chooses the frame.
    """
    if not (_PLAIN.fullmatch(english) and _PLAIN.fullmatch(german)):
        return None
    if kind == "verb" or (kind == "word" and english.startswith("to ")):
        if not english.startswith("to ") or " " in german or not german.endswith("n"):
            return None
        left, right = _VERB[number % len(_VERB)]
        return left.format(english[3:]), right.format(german)
    gender = kind.removeprefix("noun:")
    if gender not in _ARTICLES or " " in german or not german[0].isupper():
        return None
    frames = _ANY_NUMBER + (_PLURAL if gender == "pl" else _SINGULAR)
    left, right = frames[number % len(frames)]
    if gender == "m" and _WEAK.search(german):
        left, right = frames[0]
    if gender == "pl" and "{dat}" in right and german[-1] not in "ns":
        german += "n"
    nom, acc, dat, a, an = _ARTICLES[gender]
    article = "an" if english[0] in "aeiouAEIOU" else "a"
    left = left.replace(" a {0}", f" {article} {{0}}")
    names = {"nom": nom, "acc": acc, "dat": dat, "a": a, "an": an, "Nom": nom.capitalize()}
    return left.format(english), right.format(german, **names)


def pairs(path: Path, max_words: int) -> Iterator[tuple[str, str]]:
    """The framed pairs of a dictionary, the first German word of each English one only.

    Raises UserError for a line that has other than three columns.
    """
    before = None
    for number, line in enumerate(read_lines(path, BadLines()), start=1):
        cells = (line or "").split("\t")
        require(
            len(cells) == 3,
            f"{path}, line {number}: expected 3 columns separated by tabs (English, German, "
            f"kind), found {len(cells)}; correct the line.",
        )
        english, german, kind = cells
        if english == before or len(english.split()) > max_words + kind.startswith("verb"):
            continue
        before = english
        digest = hashlib.blake2b(f"{english}\t{german}".encode(), digest_size=8).digest()
        if made := framed(english, german, kind, int.from_bytes(digest, "big")):
            yield made


def main(args: argparse.Namespace) -> None:
    check_output(args.output, "--output", inputs=(args.dictionary,))
    number = 0
    with written_whole(args.output) as part, part.open("w", encoding="utf-8") as file:
        for left, right in pairs(args.dictionary, args.max_words):
            file.write(f"{left}\t{right}\n")
            number += 1
    logger.info("wrote %s: %d pairs", args.output, number)


COMMAND = cli.CommandLine(
    "frames",
    "Make short English-German sentence pairs of a dictionary of three columns.",
    main,
    [
        ("dictionary", cli.REQUIRED, Path, "TSV file: English, German, kind (plain, .gz or .xz)"),
        ("--output", cli.REQUIRED, Path, "TSV file to write"),
        ("--max-words", 2, cli.at_least(1), "longest English side"),
    ],
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
