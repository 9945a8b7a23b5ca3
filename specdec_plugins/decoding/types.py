"""The few types that the decoding core speaks, and what each part promises.

One round of decoding is a pipeline over a batch of rows, each at its own length:

    propose -> score -> judge -> extend -> commit

A *drafter* (law q) proposes up to K tokens a row, the *verifier* (law p) scores all of them in one
pass, an *acceptance rule* says how many to keep and which token of the verifier's own follows, and
`extend` appends them to the committed prefix. `commit` then tells everyone what was kept.

Letters in shape comments: B rows, S source positions, K drafted tokens, T target positions,
V vocabulary, D model width. Batch first everywhere. Indices are int64, masks bool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.transformer import Encoder
from specdec_plugins.errors import require

SEEDS = 2**63  # seeds are below it, as all integers of a request are
INTEGERS = ("block_size", "max_len", "min_len", "beta", "top_k", "seed")
LEAST = 1e-6  # temperature, and top-p: far below these, float32 laws are no laws any more


class Guarantee(Enum):
    """What a rule promises about the output, against the verifier decoding alone."""

    GREEDY = "token-for-token the verifier's greedy output"
    DISTRIBUTION = "samples distributed exactly as the verifier's"
    NONE = "may differ from the verifier; quality is measured, not proved"


class Stream(Enum):
    """Independent series of random numbers that one row may draw at one position."""

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
    """Committed tokens only; a drafted token never appears here unaccepted."""

    tokens: Tensor  # [B, T] int64, preallocated; column 0 is the start token; junk past `lengths`
    lengths: Tensor  # [B] int64, start token included
    active: Tensor  # [B] bool; a finished row may stay until the batch is compacted
    width: int  # host-side bound of `lengths`, so that nobody has to ask the device

    def last(self) -> Tensor:
        """The last committed token of each row: [B] int64."""
        return self.tokens.gather(1, self.lengths[:, None] - 1)[:, 0]


_Rows = TypeVar("_Rows", bound="RowParams")


@dataclass(frozen=True)
class RowParams:
    """What each row's request asked for. Every field is [B]."""

    block_size: Tensor  # int64, tokens drafted a round at most; 0 = plain autoregressive steps
    max_len: Tensor  # int64, tokens after the start token at most, forced ones and eos included
    min_len: Tensor  # int64, eos is banned until so many tokens stand after the start token
    beta: Tensor  # int64 >= 1, an accepted token is among the verifier's beta best
    tau: Tensor  # float32 >= 0, and its logit at most tau below the best one
    temperature: Tensor  # float32 > 0, read by sampling rules only
    top_k: Tensor  # int64, 0 = all
    top_p: Tensor  # float32 in (0, 1], 1 = all
    seed: Tensor  # int64

    def greedy_mask(self, samples: bool) -> Tensor:
        """[B] bool: whose output is the verifier's greedy one, whatever is drafted.

        samples: the rule draws from p, so that only top_k = 1 leaves nothing to chance.
        """
        is_greedy = self.beta == 1
        return is_greedy & (self.top_k == 1) if samples else is_greedy

    # What follows waits for the device, once for each composition of the batch and not each round.

    @cached_property
    def truncation(self) -> tuple[Tensor, Tensor]:
        """Rows whose only token is the best, and others that exclude some: each [B'] int64."""
        is_best = self.top_k == 1
        excludes = (self.top_k > 1) | (self.top_p < 1)
        kinds = (excludes.long() + 2 * is_best).tolist()
        best, some = (
            [row for row, kind in enumerate(kinds) if kind in of] for of in ((2, 3), (1,))
        )
        device = self.top_k.device
        return torch.tensor(best, device=device).long(), torch.tensor(some, device=device).long()

    @cached_property
    def all_greedy(self) -> bool:
        """Every row is in the `greedy_mask` of a rule that does not sample."""
        return bool(self.greedy_mask(samples=False).all())

    @cached_property
    def all_greedy_if_sampled(self) -> bool:
        """Every row is in the `greedy_mask` of a rule that samples."""
        return bool(self.greedy_mask(samples=True).all())

    @cached_property
    def widest_block(self) -> int:
        """The largest block that any row can use: its block size, or its max_len if less."""
        widest = torch.minimum(self.block_size, self.max_len)
        return int(widest.max()) if len(widest) else 0

    def select(self: _Rows, rows: Tensor) -> _Rows:
        """The rows [B'] int64, in that order."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def append(self: _Rows, other: _Rows) -> _Rows:
        """These rows followed by the other's."""
        joined = {
            f.name: torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)
        }
        return replace(self, **joined)


class RowRandom(Protocol):
    """Random numbers keyed by row, position and stream.

    They do not depend on the batch that a row happens to be in, nor on how many positions its
    neighbours draw. A position that was drawn for and then rejected may be drawn for again: the
    number at position i is never used in a decision about a position before i, so the kept
    decisions stay independent of the later ones.
    """

    def uniform(self, first: Tensor, n: int, stream: Stream) -> Tensor:
        """Uniform numbers in [0, 1).

        first: [B] int64, the target position of column 0. Returns [B, n] float64.
        """
        ...


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes. Entries past `lengths` are junk and must not matter."""

    tokens: Tensor  # [B, K] int64
    lengths: Tensor  # [B] int64, 0..K; 0 = no proposal, an ordinary autoregressive step
    probs: Tensor | None = None  # [B, K, V] float32, the proposal law q; None = one-hot

    @property
    def mask(self) -> Tensor:
        """[B, K] bool: which entries are proposals."""
        columns = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return columns < self.lengths[:, None]

    @staticmethod
    def empty(num_rows: int, device: torch.device) -> Draft:
        """No proposal for anyone."""
        return Draft(
            tokens=torch.zeros(num_rows, 0, dtype=torch.int64, device=device),
            lengths=torch.zeros(num_rows, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True)
class Scores:
    """The verifier's view: `logits[b, i]` is about the token after prefix[b] + draft[b, :i].

    Rows i > draft.lengths[b] are junk.
    """

    logits: Tensor  # [B, K+1, V]
    hidden: Tensor | None = None  # [B, K+1, D] last decoder state, where a drafter asked for it


@dataclass(frozen=True)
class Verdict:
    """How many drafted tokens are kept, and the verifier's own token after them."""

    num_accepted: Tensor  # [B] int64, 0..draft.lengths
    next_tokens: Tensor  # [B] int64, correction after a rejection, bonus after full acceptance


@dataclass(frozen=True)
class Round:
    """One round's pipeline, for those who learn from it at commit."""

    draft: Draft
    scores: Scores
    verdict: Verdict
    seconds: float | None = None  # drafting and verifying took, where time is measured


class Stateful(Protocol):
    """State that lives in rows: verifier, drafter and schedule alike."""

    def admit(self, source: SourceBatch) -> None:
        """New rows join behind the present ones."""
        ...

    def commit(self, prefix: Prefix, last: Round) -> None:
        """`prefix` now holds what was kept of `last`; forget the rest."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep the rows [B'] int64, in that order; [0] empties the state."""
        ...


class Verifier(Stateful, Protocol):
    """The model whose output is being reproduced."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special(self) -> SpecialTokens: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def max_target_positions(self) -> int:
        """The longest decoder input, start token included."""
        ...

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """One cached pass over each row's last committed token and its draft."""
        ...


class Drafter(Stateful, Protocol):
    """Proposes tokens; may be wrong, may not be slow."""

    @property
    def max_block_size(self) -> int | None:
        """The longest block it can draft (it was trained for), or None for any."""
        ...

    def propose(
        self, prefix: Prefix, budget: Tensor, width: int, params: RowParams, random: RowRandom
    ) -> Draft:
        """Draft at most `budget` [B] int64 tokens a row.

        `width` >= max(budget) is K of the result; a drafter that stops early may return fewer.
        Where `probs` are given, they are the law that the tokens were drawn from; where they are
        not, a rule that samples takes the draft for a certain one, so it must not be random.
        """
        ...


class DraftSchedule(Stateful, Protocol):
    """How many tokens to ask for next."""

    @property
    def follows_clock(self) -> bool:
        """True if measured time decides, so that two runs may draft differently."""
        ...

    def next_budget(self, params: RowParams) -> Tensor | None:
        """[B] int64, 0 = a plain autoregressive step; None = that for all, and nothing computed.

        The engine caps it at what fits.
        """
        ...


class AcceptanceRule(Protocol):
    """Decides what is kept. Stateless."""

    @property
    def samples(self) -> bool:
        """True if it draws from p, so that temperature, top-k and top-p mean something."""
        ...

    def guarantee(self, beta: int) -> Guarantee:
        """What holds for a request with this beta."""
        ...

    def judge(
        self, draft: Draft, scores: Scores, params: RowParams, random: RowRandom, first: Tensor
    ) -> Verdict:
        """`first` [B] int64 is the target position of draft column 0 (`prefix.lengths`)."""
        ...


@runtime_checkable
class SupportsEncoderOutput(Protocol):
    """A verifier whose encoding of the source a drafter may read instead of encoding again."""

    @property
    def encoder_dim(self) -> int:
        """Width D of the encoder's states."""
        ...

    def encoder_output(self) -> tuple[Tensor, Tensor]:
        """States [B, S, D] and padding [B, S] bool (True = padding) of the present rows."""
        ...

    def encodes_like(self, encoder: Encoder) -> bool:
        """True if that encoder's output would be the same."""
        ...


@runtime_checkable
class ReadsEncoderOutput(Protocol):
    """A model whose decoder can read what another one's encoder has made of the source."""

    @property
    def encoder_dim(self) -> int:
        """Width D of the states that its decoder reads."""
        ...

    def admit_encoded(self, source: SourceBatch, states: Tensor, padding_mask: Tensor) -> None:
        """`admit` without encoding: states [B, S, D] and padding [B, S] bool of the new rows."""
        ...


@runtime_checkable
class SupportsEarlyExit(Protocol):
    """A verifier whose first layers may run ahead of `score`, which goes on where they stopped."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        ...

    def run_ahead(self, prefix: Prefix, tokens: Tensor, exit_layer: int) -> Tensor:
        """Read one token a row with the first `exit_layer` layers: [B, V] logits of what follows.

        tokens: [B] int64, token ids. The first call of a round reads `prefix.last()`, each further
        one the drafted token behind the one before; all of a round with the same `exit_layer`.
        Keys, values and states are kept, and the next `score` must be given the draft that was
        read, or all but its last column: what it has in common with these calls is not computed
        again. Rows that have stopped may be fed any token.
        """
        ...


@runtime_checkable
class SupportsHidden(Protocol):
    """A verifier that gives its last states with its scores, for heads to read."""

    @property
    def hidden_dim(self) -> int:
        """Width D of a last state, as the output projection reads it."""
        ...

    def keep_hidden(self) -> None:
        """From now on `Scores.hidden` is there."""
        ...

    def project(self, states: Tensor) -> Tensor:
        """The output projection: logits [..., V] of states [..., D]."""
        ...


@dataclass(frozen=True)
class DecodeParams:
    """What one request may ask for."""

    block_size: int = 25  # tokens drafted a round at most; 0 = plain autoregressive decoding
    max_len: int = 200  # tokens after the start token at most, forced prefix and eos included
    min_len: int = 0  # eos is banned before so many tokens; fairseq's own search has 1
    beta: int = 1  # accept among the verifier's beta best tokens; 1 = exactly its greedy output
    tau: float = 0.0  # nats below the best logit that an accepted token may be; boundary included
    temperature: float = 1.0  # LEAST or more; sampling rules only
    top_k: int = 0  # sample from the k best; 0 = all
    top_p: float = 1.0  # sample from the smallest set with this mass; 1 = all
    seed: int = 0  # of this row's random numbers

    def __post_init__(self) -> None:
        for name in INTEGERS:
            require(getattr(self, name) < SEEDS, f"{name} must be below 2^63.")
        require(self.block_size >= 0, f"block size must be 0 or more, not {self.block_size}.")
        require(self.max_len >= 1, f"max_len must be 1 or more, not {self.max_len}.")
        require(self.min_len >= 0, f"min_len must be 0 or more, not {self.min_len}.")
        require(self.beta >= 1, f"beta must be 1 or more, not {self.beta}.")
        require(self.tau >= 0, f"tau must be 0 or more, not {self.tau}.")
        require(
            self.temperature >= LEAST,
            f"temperature must be {LEAST:g} or more, not {self.temperature}; for the best token "
            "alone, ask for top_k 1.",
        )
        require(self.top_k >= 0, f"top_k must be 0 (all) or more, not {self.top_k}.")
        require(LEAST <= self.top_p <= 1, f"top_p must be {LEAST:g} to 1, not {self.top_p}.")

    @staticmethod
    def stack(params: Sequence[DecodeParams], device: torch.device) -> RowParams:
        """One row a request."""

        def column(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([getattr(p, name) for p in params], dtype=dtype, device=device)

        floats = ("tau", "temperature", "top_p")
        return RowParams(
            **{name: column(name, torch.int64) for name in INTEGERS},
            **{name: column(name, torch.float32) for name in floats},
        )


class FinishReason(Enum):
    EOS = "eos"  # the row ended its sentence
    LENGTH = "length"  # the row reached its max_len and was cut
    CANCELLED = "cancelled"  # the caller no longer wanted it


@dataclass(frozen=True)
class Request:
    """One sentence to decode."""

    id: str
    source_ids: list[int]  # ends in eos
    params: DecodeParams = field(default_factory=DecodeParams)
    forced_ids: list[int] = field(default_factory=list)  # target prefix to begin with, no eos

    def __post_init__(self) -> None:
        require(len(self.source_ids) > 0, f"Request {self.id!r} has an empty source.")
        require(
            len(self.forced_ids) < self.params.max_len,
            f"Request {self.id!r}: its target prefix of {len(self.forced_ids)} tokens leaves "
            f"nothing to decode within max_len {self.params.max_len}.",
        )


@dataclass
class RowResult:
    """A decoded sentence and how it came about."""

    id: str
    token_ids: list[int] = field(default_factory=list)  # forced prefix and eos included
    score: float | None = None  # sum of the verifier's log-probabilities of the emitted tokens
    rounds: int = 0
    drafted_per_round: list[int] = field(default_factory=list)
    accepted_per_round: list[int] = field(default_factory=list)
    emitted_per_round: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    seconds: float = 0.0  # from when it joined a batch until it was done, where somebody measured

    def observe(self, num_drafted: int, num_accepted: int, emitted_ids: list[int]) -> None:
        """Add one round of this row."""
        self.token_ids += emitted_ids
        self.rounds += 1
        self.drafted_per_round.append(num_drafted)
        self.accepted_per_round.append(num_accepted)
        self.emitted_per_round.append(len(emitted_ids))


@dataclass(frozen=True)
class RowEvent:
    """What one round did to one row."""

    id: str
    draft_ids: list[int]  # proposed
    num_accepted: int  # of these kept, after the cuts at eos and max_len
    emitted_ids: list[int]  # appended: kept draft tokens, then the verifier's own; eos included
    result: RowResult | None  # the whole row, on its last event
