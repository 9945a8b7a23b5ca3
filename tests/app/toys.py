"""A scripted verifier and drafters: every source has a right answer of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Limits
from specdec_plugins.decoding.alone import DrafterDecoder, Unverified
from specdec_plugins.decoding.contract import (
    Draft,
    DraftRequest,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
)
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.formats.dictionaries import Dictionary

WORDS = [chr(ord("a") + i) for i in range(20)]
DICTIONARY = Dictionary(WORDS)
EOS, PAD = DICTIONARY.eos, DICTIONARY.pad
JUNK = 10**9  # no token id
Answer = Callable[[list[int]], list[int]]


def reverse_twice(source_ids: list[int]) -> list[int]:
    """The right answer: the words backwards, each twice, and eos."""
    words = [i for i in source_ids if i != EOS]
    return [i for word in reversed(words) for i in (word, word)] + [EOS]


def translated(line: str) -> str:
    """The right answer to a line of words."""
    return " ".join(word for w in reversed(line.split()) for word in (w, w))


@dataclass
class Rows:
    """The right answer of every row that is present."""

    answer: Answer = reverse_twice
    answers: list[list[int]] = field(default_factory=list)

    max_positions: ClassVar[int | None] = None

    def fresh(self, *_: Any) -> Self:
        """One without rows."""
        return replace(self, answers=[])

    def admit(self, source: SourceBatch) -> None:
        for row, length in zip(source.tokens.tolist(), source.lengths.tolist(), strict=True):
            self.answers.append(self.answer(row[:length]))

    def commit(self, prefix: Prefix, last: Round) -> None:
        pass

    def select(self, rows: Tensor) -> None:
        self.answers = [self.answers[i] for i in rows.tolist()]

    def expected(self, prefix: Prefix, width: int) -> Tensor:
        """Tokens [B, width] int64 of the right answers behind each row's prefix."""
        begins = [length - 1 for length in prefix.lengths.tolist()]
        padded = [[*answer, *[EOS] * 999] for answer in self.answers]
        rows = [row[at : at + width] for row, at in zip(padded, begins, strict=True)]
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), width)


@dataclass
class ScriptedVerifier(Rows):
    """Says the right answer's token of each position, whatever stands before it."""

    vocab_size: int = len(DICTIONARY)
    special: SpecialTokens = DICTIONARY.special
    device: torch.device = torch.device("cpu")
    source_vocab_size: int = len(DICTIONARY)
    max_source_positions: int = 100
    max_target_positions: int = 100
    rows_seen: list[int] = field(default_factory=list)

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        num_rows, num_drafted = draft.tokens.shape
        assert num_rows == len(self.answers)
        self.rows_seen.append(num_rows)
        logits = torch.full((num_rows, num_drafted + 1, self.vocab_size), -9.0)
        right = self.expected(prefix, num_drafted + 1)[..., None]
        return Scores(logits.scatter(2, right, 0.0))

    def score_at(self, tokens: Tensor, positions: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        logits = torch.full((*tokens.shape, self.vocab_size), -9.0)
        for row, answer in enumerate(self.answers):
            for column, position in enumerate(positions[row].tolist()):
                logits[row, column, answer[min(position, len(answer) - 1)]] = 0.0
        return logits


@dataclass
class ScriptedDrafter(Rows):
    """Drafts the right answer; junk stands behind the budget."""

    max_block_size: int | None = 8

    def propose(self, asked: DraftRequest) -> Draft:
        past = torch.arange(asked.width) >= asked.budget[:, None]
        right = self.expected(asked.prefix, asked.width)
        return Draft(right.masked_fill(past, JUNK), asked.budget)


def codec(remove_bpe: str | None = "@@ ") -> Codec:
    return Codec(DICTIONARY, DICTIONARY, None, remove_bpe)


def drafter_alone(batch: int) -> DrafterDecoder:
    size = len(DICTIONARY)
    target = Unverified(size, DICTIONARY.special, torch.device("cpu"), source_vocab_size=size)
    return DrafterDecoder(ScriptedDrafter(), target, EngineConfig(batch))


def engine(strategy: str, batch: int, **config: Any) -> SpeculativeDecoder:
    """With the drafter for specdec, one token at a time for AR."""
    drafter = ScriptedDrafter() if strategy == "specdec" else None
    method = Method(drafter, TopBeta(), Constant(Constant.Config()))
    return SpeculativeDecoder(ScriptedVerifier(), method, EngineConfig(batch, **config))


def translator(
    strategy: str = "specdec", batch: int = 3, source: int = 30, **changes: object
) -> SpeculativeTranslator:
    """A translator over the scripted parts."""
    settings = Settings(
        "data",
        verifier="v",
        drafter_checkpoint="d",
        strategy=strategy,
        batch=batch,
        **changes,  # type: ignore[arg-type]
    )
    decoder = drafter_alone(batch) if strategy == "drafter" else engine(strategy, batch)
    return SpeculativeTranslator(settings, codec(), decoder, Limits(source, 90, 4))
