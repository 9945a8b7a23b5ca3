"""The line of waiting sentences: in turns between jobs, so that a book does not delay a word."""

from __future__ import annotations

from collections import deque

from specdec_plugins.serving.job import Job, Row


class FairQueue:
    """First come, first served by job; a job with many sentences gives way after each of them.

    Not safe between threads: the owner locks.
    """

    def __init__(self) -> None:
        self._lines: deque[deque[Row]] = deque()  # one a job, none of them empty
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, job: Job) -> None:
        if job.rows:
            self._lines.append(deque(job.rows))
            self._size += len(job.rows)

    def pop(self) -> Row:
        """The sentence whose turn it is. Raises IndexError where none waits."""
        line = self._lines.popleft()
        row = line.popleft()
        self._size -= 1
        if line:
            self._lines.append(line)
        return row

    def remove(self, job: Job) -> list[Row]:
        """Take out what still waits of a job, and return it."""
        taken: list[Row] = []
        for line in list(self._lines):
            if line[0].job is job:
                self._lines.remove(line)
                taken += line
        self._size -= len(taken)
        return taken
