"""Several decodings of one test set side by side: quality, identity, acceptance, speed.

From what ``inference.py --json-path`` writes, or straight from a translator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from specdec_plugins.app.types import Translation
from specdec_plugins.errors import UserError

HEADER = (
    "decoding",
    "BLEU",
    "same as greedy",
    "accepted tokens",
    "s a sentence",
    "vs fairseq greedy",
    "vs our AR",
)


@dataclass(frozen=True)
class Decoding:
    """One way to decode the test set, and all that came of it."""

    name: str
    texts: list[str]
    tokens: list[list[str]]  # of each sentence, eos left out
    emitted: list[list[int]]  # tokens of each round, eos counted; no rounds in fairseq's search
    ended: list[bool]  # by eos, and not by the length limit
    milliseconds: list[float]

    @classmethod
    def load(cls, name: str, path: Path) -> Decoding:
        """Raises UserError where a line is not what ``inference.py --json-path`` writes."""
        loaded = cls(name, [], [], [], [], [])
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    loaded._add(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise UserError(
                        f"{path}, line {number}: expected a line of inference.py --json-path, "
                        f"found {line.strip()[:60]!r}; decode again"
                    ) from error
        return loaded

    @classmethod
    def of(cls, name: str, translations: Sequence[Translation]) -> Decoding:
        """What a translator has just produced."""
        return cls.of_records(name, [translation.to_dict() for translation in translations])

    @classmethod
    def of_records(cls, name: str, records: Iterable[Mapping[str, Any]]) -> Decoding:
        """Of translations as `Translation.to_dict` has them."""
        decoding = cls(name, [], [], [], [], [])
        for record in records:
            decoding._add(record)
        return decoding

    def _add(self, record: Mapping[str, Any]) -> None:
        self.texts.append(record["text"])
        self.tokens.append(record["tokens"])
        self.emitted.append(record["emitted"])
        self.ended.append(record["finish_reason"] == "eos")
        self.milliseconds.append(record["milliseconds"])

    @property
    def mean_accepted_tokens(self) -> float | None:
        """Tokens a round, eos not counted (Xia et al. 2023); None where there are no rounds."""
        rounds = sum(len(rows) for rows in self.emitted)
        if rounds == 0:
            return None
        ends = sum(ended for ended, rows in zip(self.ended, self.emitted, strict=True) if rows)
        return (sum(map(sum, self.emitted)) - ends) / rounds

    @property
    def seconds_per_sentence(self) -> float:
        return sum(self.milliseconds) / 1000 / len(self.milliseconds)

    def differing(self, other: Decoding) -> list[int]:
        """Which sentences, from 0, have other tokens."""
        pairs = zip(self.tokens, other.tokens, strict=True)
        return [index for index, (mine, others) in enumerate(pairs) if mine != others]


@dataclass(frozen=True)
class Comparison:
    """Decodings of the same sentences, and what they are measured against."""

    decodings: Sequence[Decoding]
    greedy: Decoding  # our own, one token at a time
    fairseq_greedy: Decoding
    references: Sequence[str]

    def __post_init__(self) -> None:
        for decoding in (*self.decodings, self.greedy, self.fairseq_greedy):
            if len(decoding.texts) != len(self.references):
                raise UserError(
                    f"{decoding.name}: {len(decoding.texts)} translations of "
                    f"{len(self.references)} sentences; decode again"
                )

    def rows(self) -> list[list[str]]:
        """Cells as text, a row for each decoding, in the columns of HEADER."""
        return [self._row(decoding) for decoding in self.decodings]

    def signature(self) -> str:
        """Of the BLEU scores."""
        metric = BLEU()
        metric.corpus_score(self.greedy.texts, [list(self.references)])
        return str(metric.get_signature())

    def _row(self, decoding: Decoding) -> list[str]:
        total = len(self.references)
        same = total - len(decoding.differing(self.greedy))
        accepted = decoding.mean_accepted_tokens
        seconds = decoding.seconds_per_sentence
        return [
            decoding.name,
            f"{BLEU().corpus_score(decoding.texts, [list(self.references)]).score:.2f}",
            f"{same}/{total} ({share(same, total)})",
            "-" if accepted is None else f"{accepted:.2f}",
            f"{seconds:.4f}",
            f"{self.fairseq_greedy.seconds_per_sentence / seconds:.2f}x",
            f"{self.greedy.seconds_per_sentence / seconds:.2f}x",
        ]


def share(part: int, whole: int) -> str:
    """A percentage that reads 100 % for all of them only."""
    tenths = part * 1000 // whole if whole else 0
    return f"{tenths / 10:g} %"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns: names to the left, figures to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "| " + " | ".join([cells[0].ljust(widths[0]), *padded[1:]]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(map(line, (header, rule, *rows)))
