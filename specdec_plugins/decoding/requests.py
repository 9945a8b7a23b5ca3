"""What a caller passes in, and what comes back: parameters, requests, results, events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from specdec_plugins.errors import require

SEEDS = 2**63  # exclusive bound of seeds and of all other integers of a request
INTEGERS = ("block_size", "max_len", "min_len", "beta", "top_k", "seed")
FLOATS = ("tau", "temperature", "top_p")
COLUMNS = (*INTEGERS, *FLOATS)  # of RowParams
LEAST = 1e-6  # least temperature and top-p: far below it, float32 probabilities underflow


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
        found = (torch.tensor(part, dtype=torch.int64) for part in (best, some))
        first, second = (part.to(device, non_blocking=True) for part in found)
        return first, second

    def select(self, keep: Sequence[int], rows: Tensor) -> RowParams:
        """The rows `keep`, in that order; `rows` [B'] int64 is the same list on the device."""
        kept = {name: getattr(self, name)[rows] for name in COLUMNS}
        return RowParams(**kept, requested=tuple(self.requested[i] for i in keep))

    def append(self, other: RowParams) -> RowParams:
        """These rows followed by the other's."""
        joined = {n: torch.cat([getattr(self, n), getattr(other, n)]) for n in COLUMNS}
        return RowParams(**joined, requested=self.requested + other.requested)


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
            columns |= zip(names, values.to(device, non_blocking=True), strict=True)
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
