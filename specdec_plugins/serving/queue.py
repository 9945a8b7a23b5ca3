"""Sentences on their way to the batch and back, and who asked for them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specdec_plugins.decoding.types import Request, RowEvent

_numbers = itertools.count()


@dataclass(frozen=True)
class RowRound:
    """What one round did to one sentence, and when."""

    event: RowEvent
    seconds: float  # since the sentence was put in line
    queue_seconds: float  # of these, until it joined the batch
    batch_size: int  # rows that decoded in this round


class Submission(ABC):
    """Sentences that one caller asked for together."""

    def __init__(self, requests: Sequence[Request], request_id: str = "-") -> None:
        """request_id: what the log calls it."""
        number = next(_numbers)
        self.request_id = request_id
        self.submitted_at = 0.0  # the worker's clock, seconds
        self.rows = [
            BatchRow(self, index, replace(request, id=f"{number}.{index}"))
            for index, request in enumerate(requests)
        ]
        self.waiting = deque(self.rows)

    @abstractmethod
    def deliver(self, row: int, news: RowRound | Exception) -> None:
        """Called on the worker's thread with each round of a row, or the error that ends it."""


@dataclass(eq=False)
class BatchRow:
    """One sentence of a submission; it is the worker's until its last round was delivered."""

    submission: Submission
    index: int
    request: Request
    joined_at: float = 0.0  # when it joined the batch first; 0 = not yet
    rounds: list[RowRound] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """Emitted so far, the end of the sentence included."""
        return [token_id for one in self.rounds for token_id in one.event.emitted_ids]

    @property
    def decode_seconds(self) -> float:
        """From when it joined the batch until its last round."""
        return self.rounds[-1].seconds - self.rounds[-1].queue_seconds

    def remaining(self) -> Request:
        """What is still to decode: the request, with everything emitted so far forced.

        A row that has to start again in a new batch goes on where it was, so nothing that a
        stream has sent already is sent twice. Random numbers belong to positions, so it draws
        what it would have drawn.
        """
        return replace(self.request, forced_ids=[*self.request.forced_ids, *self.token_ids])

    def add(self, event: RowEvent, now: float, batch_size: int) -> None:
        """A round that ended now."""
        since = self.submission.submitted_at
        self.rounds.append(RowRound(event, now - since, self.joined_at - since, batch_size))
        self.tell(self.rounds[-1])

    def tell(self, news: RowRound | Exception) -> None:
        self.submission.deliver(self.index, news)
