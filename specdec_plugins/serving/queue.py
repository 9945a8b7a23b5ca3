"""Sentences on their way to the batch: who asked for them, and the line in which they wait."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specdec_plugins.decoding.types import Request, RowEvent

_numbers = itertools.count()


@dataclass(frozen=True)
class RowUpdate:
    """What happened to one sentence: a round, or its end by an error."""

    row: int  # index of the sentence in its submission
    event: RowEvent | None  # None = nothing was decoded: `error` says why
    at: float  # the worker's clock, seconds
    joined_at: float  # when the sentence joined the batch
    batch_size: int = 0  # rows that decoded in this round
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.event is None or self.event.result is not None


Deliver = Callable[[Sequence[RowUpdate]], None]


class Submission:
    """Sentences that one caller asked for together."""

    def __init__(
        self, requests: Sequence[Request], deliver: Deliver, request_id: str = "-"
    ) -> None:
        """deliver: called on the worker's thread with what a round did to this submission's rows.

        request_id: what the log calls it.
        """
        self.number = next(_numbers)
        self.deliver = deliver
        self.request_id = request_id
        self.submitted_at = 0.0  # the worker's clock, seconds
        self.rows = [
            BatchRow(self, index, replace(request, id=f"{self.number}.{index}"))
            for index, request in enumerate(requests)
        ]


@dataclass(eq=False)
class BatchRow:
    """One sentence of a submission, which only the worker's thread touches once it is queued."""

    submission: Submission
    index: int
    request: Request
    joined_at: float = 0.0  # when it joined the batch first; 0 = not yet
    emitted: list[int] = field(default_factory=list)

    def remaining(self) -> Request:
        """What is still to decode: the request, with everything emitted so far forced.

        A row that has to start again in a new batch goes on where it was, so nothing that a
        stream has sent already is sent twice. Random numbers belong to positions, so it draws
        what it would have drawn.
        """
        return replace(self.request, forced_ids=[*self.request.forced_ids, *self.emitted])


def tell(updates: Sequence[RowUpdate], rows: Sequence[BatchRow]) -> None:
    """Hand each submission what happened to its rows; one update for each of `rows`."""
    by_submission: dict[Submission, list[RowUpdate]] = {}
    for update, row in zip(updates, rows, strict=True):
        by_submission.setdefault(row.submission, []).append(update)
    for submission, news in by_submission.items():
        submission.deliver(news)


class FairQueue:
    """First come, first served; a submission of many sentences gives way after each of them.

    Not safe between threads: the owner locks.
    """

    def __init__(self) -> None:
        self._lines: deque[deque[BatchRow]] = deque()  # one a submission, none of them empty
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, submission: Submission) -> None:
        if submission.rows:
            self._lines.append(deque(submission.rows))
            self._size += len(submission.rows)

    def pop(self) -> BatchRow:
        """The sentence whose turn it is. Raises IndexError where none waits."""
        line = self._lines.popleft()
        row = line.popleft()
        self._size -= 1
        if line:
            self._lines.append(line)
        return row

    def remove(self, submission: Submission) -> list[BatchRow]:
        """Take out what still waits of a submission, and return it."""
        taken: list[BatchRow] = []
        for line in list(self._lines):
            if line[0].submission is submission:
                self._lines.remove(line)
                taken += line
        self._size -= len(taken)
        return taken
