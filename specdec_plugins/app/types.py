"""The data types of a translator: sentences, translations, and the decoder between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from specdec_plugins.decoding.requests import FinishReason, Request, RowResult
from specdec_plugins.decoding.stats import DecodeStats

EMPTY = "empty"  # finish reason of a line without words
FORCED = "forced"  # of a line whose target prefix held the end of the sentence
UNREADABLE = "unreadable"  # of a line that the model cannot read, or a part of it: it is copied


@dataclass(frozen=True)
class Limits:
    source: int  # source tokens, eos included
    target: int  # target tokens, eos included
    block_size: int  # tokens drafted a round, 0 without a drafter


@dataclass(frozen=True)
class Sentence:
    """What to translate: a line of a file, or of a list."""

    number: int  # of its line, from 1; identifies it, and keys its random numbers
    text: str
    prefix: str | None = None  # what the translation must begin with
    where: str = "sentence"  # named in messages
    tokens: Sequence[str] | None = None  # the source as the model's tokens, in place of the text
    source_lang: str | None = None  # None = the translator's own
    target_lang: str | None = None
    end: str = ""  # a carriage return that ended the line, as it should end the translation


@dataclass(frozen=True)
class RankedText:
    """A translation that a beam search has found."""

    text: str
    tokens: list[str]  # as of `Translation`
    score: float  # by which it is ranked; of several sentences the sum
    log_prob: float  # of all tokens, ends included
    token_scores: list[float]  # the part of each of `tokens` in it


@dataclass(frozen=True)
class Score:
    """How probable the verifier finds a translation that it was asked for, in nats."""

    tokens: Sequence[tuple[str, float]]  # those that were chosen, eos included; not empty

    @property
    def total(self) -> float:
        return sum(score for _, score in self.tokens)

    @property
    def mean(self) -> float:
        return self.total / len(self.tokens)

    @property
    def least(self) -> tuple[str, float]:
        return min(self.tokens, key=itemgetter(1))


class Ended:
    """How a translation ended."""

    finish_reason: str

    @property
    def is_cut(self) -> bool:
        """True if it reached its length limit or repeated itself, and the end is missing."""
        return self.repeats or self.finish_reason == FinishReason.LENGTH.value

    @property
    def repeats(self) -> bool:
        return self.finish_reason == FinishReason.REPETITION.value

    @property
    def has_failed(self) -> bool:
        """True if the model's scores are not numbers; then there is no text."""
        return self.finish_reason == FinishReason.ERROR.value


@dataclass(frozen=True)
class Translation(Ended):
    """A sentence's translation and its decoding statistics."""

    number: int
    text: str
    tokens: list[str] = field(default_factory=list)  # forced prefix included, eos not
    score: float | None = None  # the verifier's log-probability of all tokens, eos included
    mean_score: float | None = None  # of one token, on average
    least_token: str | None = None  # the least probable one
    least_score: float | None = None  # its log-probability
    token_scores: list[float | None] = field(default_factory=list)  # of `tokens`; None = forced
    rounds: int = 0
    drafted: list[int] = field(default_factory=list)  # tokens per round
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)  # eos included
    finish_reason: str = EMPTY
    seconds: float = 0.0  # from when it joined a batch until it was done
    fault: str = ""  # why the line cannot be read
    n_best: list[RankedText] = field(default_factory=list)  # of a beam search, best first

    def __str__(self) -> str:
        return self.text

    @property
    def list_lines(self) -> list[str]:
        """The lines of an n-best list, one at least, as of Moses and Marian, which count from 0.

        The feature F0 is the log-probability.
        """
        found = self.n_best or [RankedText(self.text, [], 0.0, 0.0, [])]
        return [
            f"{self.number - 1} ||| {one.text} ||| F0= {one.log_prob:.6f} ||| {one.score:.6f}"
            for one in found
        ]

    def to_dict(self) -> dict[str, object]:
        """The fields of a JSON line."""
        fields = dict(vars(self))
        number, seconds, n_best = (fields.pop(name) for name in ("number", "seconds", "n_best"))
        del fields["fault"]
        fields["token_scores"] = [one and round(one, 4) for one in self.token_scores]
        if n_best:
            fields["n_best"] = [vars(one) for one in n_best]
        return {"id": number, **fields, "milliseconds": round(seconds * 1000, 3)}


class Decoder(Protocol):
    """Decodes requests with one `--strategy`."""

    @property
    def stats(self) -> DecodeStats:
        """Counts of everything decoded so far."""

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        """Each result as it finishes, in any order, with the seconds that it took."""
