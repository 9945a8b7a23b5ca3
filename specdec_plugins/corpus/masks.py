"""Puts symbols in place of spans that a model is to copy, so that it learns where they belong.

    Open {file} now.  Öffnen Sie {file}.    ->    Open \\ue000 now.  Öffnen Sie \\ue000.

Pairs whose sides have the same spans get them in every case. Text has few such pairs, so others
are made: a word that both sides share becomes a symbol or gets one on either side, as if between
tags, or both sides get one at the same end.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger, option
from specdec_plugins.corpus.reading import BadLines, Pair, ParallelFile, read_pairs
from specdec_plugins.formats.output import check_output, written_whole
from specdec_plugins.formats.text import PROTECTED
from specdec_plugins.text.spans import spans_of

# A word that is likely the same in every language: it has a digit or a capital letter.
_SHARED = re.compile(r"(?<!\w)(?=\w*[\dA-Z])\w[\w.-]*\w(?!\w)")
_END = re.compile(r"[.!?…]?$")


def masked_pair(source: str, target: str, share: float) -> Pair | None:
    """The pair with symbols; None if it is to stay as it is.

    share: of the pairs that have no span, those that get symbols; they are chosen by hash.
    """
    draw = Random(blake2b(f"{source}\t{target}".encode(), digest_size=8).digest())
    symbols = deque(PROTECTED)
    symbols.rotate(draw.randrange(len(symbols)))  # a model is to learn all of them
    found = [[slice(*span) for span in spans_of(side)] for side in (source, target)]
    if any(found):
        return _with_spans(source, target, found[0], found[1], symbols)
    return _made(source, target, draw, symbols) if draw.random() < share else None


def _with_spans(
    source: str, target: str, left: Sequence[slice], right: Sequence[slice], symbols: deque[str]
) -> Pair | None:
    counts = Counter(source[span] for span in left)
    if counts != Counter(target[span] for span in right) or len(left) > len(symbols):
        return None
    taken, chosen = list(symbols)[: len(left)], defaultdict[str, deque[str]](deque)
    for span, symbol in zip(left, taken, strict=True):
        chosen[source[span]].append(symbol)
    theirs = [chosen[target[span]].popleft() for span in right]
    return _replaced(source, left, taken), _replaced(target, right, theirs)


def _replaced(text: str, spans: Sequence[slice], symbols: Sequence[str]) -> str:
    for span, symbol in reversed([*zip(spans, symbols, strict=True)]):
        text = text[: span.start] + symbol + text[span.stop :]
    return text


def _made(source: str, target: str, draw: Random, symbols: deque[str]) -> Pair:
    words = [Counter(_SHARED.findall(side)) for side in (source, target)]
    shared = sorted(word for word in words[0] if words[0][word] == words[1][word] == 1)
    one, other = symbols[0], symbols[1]
    if not shared or draw.random() < 0.25:
        form = draw.choice(
            ("{0} {1}{2}", "{0}: {1}{2}", "{1} {0}{2}", "{1} ({0}){2}", "{1}: {0}{2}")
        )
        pair = []
        for side in (source, target):
            end = _END.search(side)
            assert end is not None
            pair.append(form.format(one, side[: end.start()], end[0]))
        return pair[0], pair[1]
    draw.shuffle(shared)
    changes = [{shared[0]: one}, {shared[0]: one + shared[0] + other}]
    if len(shared) > 1:
        changes.append({shared[0]: one, shared[1]: other})
    change = draw.choice(changes)
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(word)}(?!\w)" for word in change))
    left, right = (pattern.sub(lambda match: change[match[0]], side) for side in (source, target))
    return left, right


def main(args: MaskOptions) -> None:
    check_output(args.output, "--output", inputs=args.corpus.paths)
    numbers = Counter[bool]()
    with written_whole(args.output) as part, part.open("w", encoding="utf-8") as file:
        for source, target in read_pairs(args.corpus, BadLines()):
            made = masked_pair(source, target, args.share)
            numbers[made is not None] += 1
            file.write("\t".join(made or (source, target)) + "\n")
    logger.info(
        "wrote %s: %d of %d pairs have symbols", args.output, numbers[True], numbers.total()
    )


@dataclass(kw_only=True)
class MaskOptions:
    """Put symbols in place of spans that a model is to copy."""

    # fmt: off
    corpus: ParallelFile = option(MISSING, "TSV file, or SOURCE_FILE,TARGET_FILE", positional=True,
        read=ParallelFile.parse)
    output: Path = option(MISSING, "TSV file to write")
    share: float = option(0.06, "share of the other pairs that get symbols", least=0, below=1)
    # fmt: on


COMMAND = cli.CommandLine("specdec prepare masks", main, MaskOptions)
