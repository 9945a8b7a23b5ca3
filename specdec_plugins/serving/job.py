"""Sentences on their way through the batch, as the worker and its callers see them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specdec_plugins.decoding.types import Request, RowEvent

_numbers = itertools.count()


@dataclass(frozen=True)
class RowUpdate:
    """What happened to one sentence: a round, or its end by an error."""

    row: int  # index of the sentence in its job
    event: RowEvent | None  # None = nothing was decoded: `error` says why
    at: float  # the worker's clock, seconds
    joined_at: float  # when the sentence joined the batch
    batch_size: int = 0  # rows that decoded in this round
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.event is None or self.event.result is not None


Deliver = Callable[[Sequence[RowUpdate]], None]


class Job:
    """Sentences that one caller asked for together."""

    def __init__(
        self, requests: Sequence[Request], deliver: Deliver, request_id: str = "-"
    ) -> None:
        """deliver: called on the worker's thread with what a round did to this job's rows.

        request_id: what the log calls it.
        """
        self.number = next(_numbers)
        self.deliver = deliver
        self.request_id = request_id
        self.submitted_at = 0.0  # the worker's clock, seconds
        self.rows = [
            Row(self, index, replace(request, id=f"{self.number}.{index}"))
            for index, request in enumerate(requests)
        ]


@dataclass(eq=False)
class Row:
    """One sentence of a job. After the job was submitted only the worker's thread touches it."""

    job: Job
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


def tell(updates: Sequence[RowUpdate], rows: Sequence[Row]) -> None:
    """Hand each job what happened to its rows; one update for each of `rows`."""
    by_job: dict[Job, list[RowUpdate]] = {}
    for update, row in zip(updates, rows, strict=True):
        by_job.setdefault(row.job, []).append(update)
    for job, news in by_job.items():
        job.deliver(news)
