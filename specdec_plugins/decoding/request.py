"""What goes into a session and what comes out: plain host-side records."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from specdec_plugins.decoding.config import DecodeParams, require


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
