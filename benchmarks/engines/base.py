"""What an engine is given and what it gives back: the whole of what the harness knows of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.pair import Pair, Sentence
from benchmarks.rows import Row
from specdec_plugins.decoding.stats import DecodeStats


@dataclass(frozen=True)
class Lengths:
    """Limits that every engine keeps: those of fairseq's search."""

    min_len: int = 1  # target tokens before the end of the sentence may come
    max_len: int = 200  # target tokens at most, the end of the sentence included

    @property
    def fixed(self) -> bool:
        """True if every output has the same length, as random weights need it."""
        return self.min_len >= self.max_len - 1


@dataclass(frozen=True)
class Job:
    """What one engine is to do, whatever the threads and the batch."""

    row: Row
    pair: Pair
    lengths: Lengths
    device: str  # "cpu" or "cuda"
    work: str  # folder for converted weights
    max_batch: int  # sentences that will be decoded together at most
    sentences: Sequence[Sentence]  # all that will be asked for


@dataclass(frozen=True)
class Output:
    """What one call of `translate` gave."""

    tokens: list[list[str]]  # a list for each sentence, in their order; no end of sentence
    stats: DecodeStats | None = None  # rounds, and seconds by part; None where there are no rounds


class Engine(Protocol):
    """Something loaded that translates."""

    def translate(self, batch: Sequence[Sentence]) -> Output:
        """The best translation of each sentence, decoded together; this is what is timed."""
        ...

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        """Seconds by part of one `translate`, not timed otherwise; empty where nobody can say."""
        ...
