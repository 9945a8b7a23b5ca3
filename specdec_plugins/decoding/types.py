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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from specdec_plugins.decoding.registry import Registry
from specdec_plugins.errors import require

SEEDS = 2**63  # exclusive bound of seeds and of all other integers of a request
INTEGERS = ("block_size", "max_len", "min_len", "beta", "top_k", "seed")
FLOATS = ("tau", "temperature", "top_p")
COLUMNS = (*INTEGERS, *FLOATS)  # of RowParams
LEAST = 1e-6  # least temperature and top-p: far below it, float32 probabilities underflow


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


@dataclass(frozen=True)
class RowParams:
    """Parameters of each row's request, on the device; every tensor is [B]."""

    block_size: Tensor  # int64, tokens drafted a round at most; 0 = plain autoregressive steps
    max_len: Tensor  # int64, tokens after the start token at most, forced ones and eos included
    min_len: Tensor  # int64, eos is banned until this many tokens follow the start token
    beta: Tensor  # int64 >= 1, an accepted token is among the verifier's beta best
    tau: Tensor  # float32 >= 0, and its logit is at most tau below the best one
    temperature: Tensor  # float32 > 0, read by sampling rules only
    top_k: Tensor  # int64, 0 = all
    top_p: Tensor  # float32 in (0, 1], 1 = all
    seed: Tensor  # int64
    requested: tuple[DecodeParams, ...]  # the same on the host, without synchronisation

    def greedy_mask(self, samples: bool) -> Tensor:
        """[B] bool: rows whose output is the verifier's greedy output, whatever is drafted.

        samples: the rule draws from p, so only rows with top_k = 1 are deterministic.
        """
        return (self.beta == 1) & (self.top_k == 1) if samples else self.beta == 1

    def all_greedy(self, samples: bool) -> bool:
        return all(p.beta == 1 and (p.top_k == 1 or not samples) for p in self.requested)

    @cached_property
    def truncation(self) -> tuple[Tensor, Tensor]:
        """Rows that keep only the best token, and other rows that truncate: [B'] int64 each."""
        rows = list(enumerate(self.requested))
        best = [row for row, p in rows if p.top_k == 1]
        some = [row for row, p in rows if p.top_k > 1 or (p.top_k == 0 and p.top_p < 1)]
        device = self.top_k.device
        return torch.tensor(best, device=device).long(), torch.tensor(some, device=device).long()

    def select(self, keep: Sequence[int], rows: Tensor) -> RowParams:
        """The rows `keep`, in that order; `rows` [B'] int64 is the same list on the device."""
        kept = {name: getattr(self, name)[rows] for name in COLUMNS}
        return RowParams(**kept, requested=tuple(self.requested[i] for i in keep))

    def append(self, other: RowParams) -> RowParams:
        """These rows followed by the other's."""
        joined = {n: torch.cat([getattr(self, n), getattr(other, n)]) for n in COLUMNS}
        return RowParams(**joined, requested=self.requested + other.requested)


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


FINISHING = ("fairseq", "first", "likely", "never")


@dataclass(frozen=True)
class BeamParams:
    """A beam search: how many hypotheses are kept, how they are ranked, and when it is over.

    It is over when `size` hypotheses have ended: as fairseq does, or, as transformers does with
    `early_stopping` True, with the best ones that ended by then ("first"). With False ("likely")
    and "never" a better one must be out of reach, too, at the present and at the greatest length.
    """

    size: int = 5  # hypotheses that go on at every step
    num_best: int = 1  # hypotheses in the result, `size` at most
    length_penalty: float = 1.0  # a score is the log-probability divided by length ** this
    unknown_penalty: float = 0.0  # subtracted from the log-probability of <unk>
    finishing: str = "fairseq"  # one of FINISHING

    def __post_init__(self) -> None:
        require(1 <= self.size < 1000, f"beam must be 1 to 999, not {self.size}.")
        told = f"n_best must be 1 to the beam's size of {self.size}, not {self.num_best}."
        require(1 <= self.num_best <= self.size, told)
        known = ", ".join(FINISHING)
        require(self.finishing in FINISHING, f"{self.finishing!r} is not one of {known}.")


@dataclass(frozen=True)
class DecodeParams:
    """Parameters of one request."""

    block_size: int = 25  # tokens drafted a round at most; 0 = plain autoregressive decoding
    max_len: int = 200  # tokens after the start token at most, forced prefix and eos included
    min_len: int = 0  # eos is banned before this many tokens; fairseq's own search uses 1
    beta: int = 1  # accept among the verifier's beta best tokens; 1 = exactly its greedy output
    tau: float = 0.0  # nats that an accepted logit may lie below the best; boundary included
    temperature: float = 1.0  # LEAST or more; sampling rules only
    top_k: int = 0  # sample from the k best; 0 = all
    top_p: float = 1.0  # sample from the smallest set with this mass; 1 = all
    seed: int = 0  # of this row's random numbers
    beam: BeamParams | None = None  # for `BeamDecoder`
    no_repeat_ngram_size: int = 0  # see `Constraints`, like these two; 0 = the model's
    repetition_penalty: float = 1.0  # 1 = the model's
    banned: tuple[int, ...] = ()  # tokens that are never emitted, besides the model's
    with_scores: bool = False  # report the log-probabilities of the emitted tokens
    ends_loops: bool = False  # a text that repeats itself ends: see `loop_end`; not in a search

    def __post_init__(self) -> None:
        for name in INTEGERS:
            require(getattr(self, name) < SEEDS, f"{name} must be below 2^63.")
        least = {"block_size": 0, "max_len": 1, "min_len": 0, "beta": 1, "tau": 0, "top_k": 0}
        for name, bound in least.items():
            value, named = getattr(self, name), name.replace("block_", "block ")
            require(value >= bound, f"{named} must be {bound} or more, not {value}.")
        told = f"temperature must be {LEAST:g} or more, not {self.temperature}; for the best token"
        require(self.temperature >= LEAST, f"{told} alone, ask for top_k 1.")
        require(LEAST <= self.top_p <= 1, f"top_p must be {LEAST:g} to 1, not {self.top_p}.")

    @staticmethod
    def stack(params: Sequence[DecodeParams], device: torch.device) -> RowParams:
        """One row for each request."""
        columns: dict[str, Tensor] = {}
        for names, dtype in ((INTEGERS, torch.int64), (FLOATS, torch.float32)):
            values = torch.tensor([[getattr(p, n) for p in params] for n in names], dtype=dtype)
            columns |= zip(names, values.to(device), strict=True)
        return RowParams(**columns, requested=tuple(params))


class FinishReason(Enum):
    EOS = "eos"  # the row ended its sentence
    LENGTH = "length"  # it reached its max_len and was cut
    REPETITION = "repetition"  # it repeated itself and was cut
    CANCELLED = "cancelled"
    ERROR = "error"  # the verifier's logits were NaN or infinite; no text


@dataclass(frozen=True)
class Request:
    """One sentence to decode."""

    id: str
    source_ids: list[int]  # ends in eos
    params: DecodeParams = field(default_factory=DecodeParams)
    forced_ids: list[int] = field(default_factory=list)  # target prefix to begin with, no eos
    required_ids: Sequence[Sequence[int]] = ()  # phrases to contain, in any order; needs a beam
    joining_ids: Collection[int] = frozenset()  # tokens that no phrase begins after: see `Phrases`

    def __post_init__(self) -> None:
        require(len(self.source_ids) > 0, f"Request {self.id!r} has an empty source.")
        is_searched = self.params.beam is not None and all(self.required_ids)
        told = f"Request {self.id!r}: phrases to contain need a beam, and a token each."
        require(is_searched or not self.required_ids, told)
        told = f"Request {self.id!r}: its target prefix of {len(self.forced_ids)} tokens leaves "
        told += f"nothing to decode within max_len {self.params.max_len}."
        require(len(self.forced_ids) < self.params.max_len, told)


@dataclass(frozen=True)
class Hypothesis:
    """A translation that a beam search has found."""

    token_ids: list[int]  # forced prefix and eos included
    score: float  # what hypotheses are ranked by: see `BeamParams`
    token_scores: list[float]  # log-probability of each token, less the penalty of <unk>


@dataclass
class RowResult:
    """The state of a sentence in the batch and, once it is finished, its result."""

    request: Request
    token_ids: list[int] = field(default_factory=list)  # forced prefix and eos included
    token_scores: list[float] = field(default_factory=list)  # of the emitted tokens, if asked for
    rounds: int = 0
    drafted_per_round: list[int] = field(default_factory=list)
    accepted_per_round: list[int] = field(default_factory=list)
    emitted_per_round: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None  # None = it is still decoding
    hypotheses: list[Hypothesis] = field(default_factory=list)  # of a beam search, best first
    length: int = 1  # committed tokens, start token included; mirrors the device
    budget: int = 0  # tokens that the next round drafts
    joined_at: float = field(default=0.0, compare=False)  # by the session's clock
    seconds: float = field(default=0.0, compare=False)  # from then until it was finished

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def observe(self, event: RowEvent) -> None:
        """Add one round of this row."""
        self.token_ids += event.emitted_ids
        self.token_scores += event.token_scores
        self.rounds += 1
        self.drafted_per_round.append(len(event.draft_ids))
        self.accepted_per_round.append(event.num_accepted)
        self.emitted_per_round.append(len(event.emitted_ids))


@dataclass(frozen=True)
class RowEvent:
    """What one round did to one row."""

    id: str
    draft_ids: list[int]  # proposed
    num_accepted: int  # drafted tokens kept, after the cuts at eos and max_len
    emitted_ids: list[int]  # appended: kept draft tokens, then the verifier's own; eos included
    result: RowResult | None = None  # the finished row, on its last event only
    token_scores: list[float] = field(default_factory=list)  # log-probabilities, if asked for
