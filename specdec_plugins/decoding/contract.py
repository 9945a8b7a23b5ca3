"""The types of the decoding core, and the contract of each part.

One round of decoding is a pipeline over a batch of rows, each at its own length:

    propose -> score -> judge -> extend -> commit

A *drafter* (distribution q) proposes up to K tokens a row, the *verifier* (distribution p) scores
all of them in one pass, an *acceptance rule* decides how many to keep and which token of the
verifier's own follows, and `extend` appends them to the committed prefix. `commit` then tells
verifier, drafter and schedule what was kept.

Verifier, drafter and schedule hold state: one entry for each row of *one* session. `fresh` returns
an instance with empty state over the same weights, so that many sessions can run at once.

Letters in shape comments: B rows, S source positions, K drafted tokens, T target positions,
V vocabulary, D model width. Batch first everywhere. Indices are int64, masks bool.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.requests import RowParams


class Guarantee(Enum):
    """What a rule promises about the output, compared with the verifier decoding alone."""

    GREEDY = "token-for-token the verifier's greedy output"
    DISTRIBUTION = "samples distributed exactly as the verifier's"
    NONE = "may differ from the verifier; quality is measured, not proved"


class Stream(Enum):
    """Independent streams of random numbers for one row at one position."""

    PROPOSE = 0
    ACCEPT = 1
    NEXT = 2


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a meaning. `start` opens the decoder's input; for fairseq it equals `eos`."""

    start: int
    pad: int
    eos: int
    unk: int


@dataclass(frozen=True)
class SourceBatch:
    """Rows that join a running batch: their sources, and the target prefix each must begin with."""

    tokens: Tensor  # [B, S] int64, right-padded; each row ends in eos
    lengths: Tensor  # [B] int64, eos included
    forced: Tensor  # [B, P] int64, right-padded; column 0 is the start token
    forced_lengths: Tensor  # [B] int64, start token included, so at least 1

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass
class Prefix:
    """Committed tokens only: a drafted token enters once it is accepted."""

    tokens: Tensor  # [B, T] int64, preallocated; column 0 is the start token; junk past `lengths`
    lengths: Tensor  # [B] int64, start token included
    active: Tensor  # [B] bool; a finished row may stay until the batch is compacted
    width: int  # host-side upper bound of `lengths`, readable without synchronisation

    def last(self) -> Tensor:
        """The last committed token of each row: [B] int64."""
        return self.tokens.gather(1, self.lengths[:, None] - 1)[:, 0]


class RowRandom(Protocol):
    """Random numbers keyed by row, position and stream.

    They do not depend on neighbouring rows. A position that was drawn for and then rejected may be
    drawn for again: the number at position i never decides about a position before i, so the
    decisions that were kept stay independent of later ones.
    """

    def uniform(self, first: Tensor, n: int, stream: Stream) -> Tensor:
        """[B, n] float64 in [0, 1); first: [B] int64, the target position of column 0."""


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes. Entries past `lengths` are junk and must be ignored."""

    tokens: Tensor  # [B, K] int64
    lengths: Tensor  # [B] int64, 0..K; 0 = no proposal, an ordinary autoregressive step
    probs: Tensor | None = None  # [B, K, V] float32, the proposal distribution q; None = one-hot
    confidences: Tensor | None = None  # [B, K], probability of each best token, if known

    @property
    def mask(self) -> Tensor:
        """[B, K] bool: which entries are proposals."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @staticmethod
    def empty(num_rows: int, device: torch.device) -> Draft:
        """No proposal for any row."""
        tokens = torch.zeros(num_rows, 0, dtype=torch.int64, device=device)
        return Draft(tokens, lengths=tokens.new_zeros(num_rows))


@dataclass(frozen=True)
class DraftRequest:
    """What a round asks of a drafter."""

    prefix: Prefix
    budget: Tensor  # [B] int64, maximum tokens of each row
    width: int  # max(budget) or more; K of the draft, which is less where a drafter stops early
    params: RowParams
    random: RowRandom


@dataclass(frozen=True)
class Scores:
    """The verifier's scores: `logits[b, i]` is for the token after prefix[b] + draft[b, :i].

    Rows i > draft.lengths[b] are junk.
    """

    logits: Tensor  # [B, K+1, V]
    hidden: Tensor | None = None  # [B, K+1, D] last decoder states, if a drafter asked for them


@dataclass(frozen=True)
class Case:
    """What a round asks of an acceptance rule."""

    draft: Draft
    scores: Scores
    params: RowParams
    random: RowRandom
    first: Tensor  # [B] int64, the target position of draft column 0 (`prefix.lengths`)


@dataclass(frozen=True)
class Verdict:
    """How many drafted tokens are kept, and the verifier's own token after them."""

    num_accepted: Tensor  # [B] int64, 0..draft.lengths
    next_tokens: Tensor  # [B] int64, correction after a rejection, bonus after full acceptance


@dataclass(frozen=True)
class Round:
    """One round's pipeline, as passed to `commit`."""

    draft: Draft
    scores: Scores
    verdict: Verdict


class Stateful(Protocol):
    """Per-row state, as kept by verifier, drafter and schedule; by default there is none."""

    def admit(self, source: SourceBatch) -> None:
        """Append new rows after the present ones."""
        return

    def commit(self, prefix: Prefix, last: Round) -> None:
        """`prefix` now holds what was kept of round `last`; discard the rest."""
        return

    def select(self, rows: Tensor) -> None:
        """Keep the rows [B'] int64, in that order; an empty tensor resets any state."""
        return

    def narrow(self, longest: int, is_padded: bool) -> None:
        """No source has more than `longest` tokens now, which the host knows without waiting.

        is_padded: some are shorter, or hold padding themselves.
        """
        return


class Target(Protocol):
    """Vocabulary, special tokens, device and length limit of the target side."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special(self) -> SpecialTokens: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def max_target_positions(self) -> int:
        """The longest decoder input, start token included."""


class Verifier(Target, Stateful, Protocol):
    """The model whose output is reproduced."""

    @property
    def source_vocab_size(self) -> int:
        """Types of the source side."""

    @property
    def max_source_positions(self) -> int:
        """The longest source, eos included."""

    def fresh(self) -> Verifier:
        """A new instance without rows, over the same weights."""

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """One cached pass over each row's last committed token and its draft."""


class Drafter(Stateful, Protocol):
    """Proposes tokens. Errors are corrected by the rule; only speed matters."""

    def fresh(self, target: Target) -> Drafter:
        """A new instance without rows, over the same weights, that reads this verifier's state."""

    @property
    def max_block_size(self) -> int | None:
        """The longest block that it can draft; None = no limit."""

    @property
    def max_positions(self) -> int | None:
        """The longest prefix plus draft, without the start token; None = no limit."""

    def propose(self, asked: DraftRequest) -> Draft:
        """Draft a block for each row.

        If `probs` are given, the tokens were drawn from them. If not, a rule that samples takes q
        as one-hot, so the draft must be deterministic.
        """


class DraftSchedule(Stateful):
    """Decides how many tokens to draft next. Base of the schedules, each built from its Config."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def fresh(self) -> Self:
        """A new instance without rows that has learnt nothing."""
        return type(self)(self._config)

    # The budget depends on what else is decoded. The engine then asks only for rows whose text does
    # not depend on drafts; others, which sample or have a tolerance, always draft their block.
    follows_load: ClassVar[bool] = False

    @abstractmethod
    def next_budget(self, params: RowParams) -> Tensor | None:
        """[B] int64, 0 = a plain autoregressive step; None = 0 for all rows, at no cost.

        The engine caps it at the room that is left.
        """


class AcceptanceRule(Protocol):
    """Decides what is kept. Stateless."""

    @property
    def samples(self) -> bool:
        """True if it draws from p, so that temperature, top-k and top-p apply."""

    def guarantee(self, beta: int) -> Guarantee:
        """The guarantee for a request with this beta."""

    def judge(self, case: Case) -> Verdict:
        """How much of each row's draft is kept, and what follows it."""


RULES: Registry[AcceptanceRule] = Registry("acceptance rule")
SCHEDULES: Registry[DraftSchedule] = Registry(
    "draft schedule",
    {"adaptive": "few_rows, which drafts in small batches alone, is faster; choose it"},
)
