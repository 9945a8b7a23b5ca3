"""Every row over the same sentences, interleaved and repeated.

Each row has a process of its own on the same cores; all are loaded, and one at a time works. The
batches are cut into turns; every row takes a turn before the next begins, in an order that
rotates, so that a noisy machine disturbs all of them alike.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

from benchmarks.engines.base import Job
from benchmarks.pair import Sentence
from benchmarks.rows import Row
from benchmarks.worker import Batches, Process, Turn, Worker
from specdec_plugins.decoding.stats import DecodeStats

NUM_WARM_UP = 5  # batches, not counted


@dataclass(frozen=True)
class Plan:
    """How often, with how many threads, in which batches."""

    threads: Sequence[int] = (2,)
    batches: Sequence[int] = (1,)  # sentences decoded together
    repeats: int = 3
    turn: int = 25  # sentences, at least, between two rows' turns
    in_batches: frozenset[str] | None = None  # names of rows measured above batch 1; None = all

    def takes(self, row: Row, batch: int) -> bool:
        """True if the row is measured at that batch."""
        if batch == 1:
            return True
        return not row.only_single and (self.in_batches is None or row.name in self.in_batches)


@dataclass
class Cell:
    """One row at one number of threads and one batch."""

    row: Row
    threads: int
    batch: int
    seconds: list[list[float]] = field(default_factory=list)  # [repeat][batch], in batch order
    tokens: dict[int, list[str]] = field(default_factory=dict)  # by sentence, the last repetition's
    num_unstable: int = 0  # sentences that came out differently from one repetition to the next
    stats: DecodeStats | None = None  # of all repetitions
    parts: dict[str, float] = field(default_factory=dict)  # seconds
    peak_memory: int = 0  # bytes


def cut(sentences: Sequence[Sentence], batch: int, seed: int = 0) -> Batches:
    """Batches of sentences of like length, in an order that mixes short and long ones."""
    ordered = sorted(sentences, key=lambda sentence: -len(sentence.ids))
    batches = [ordered[i : i + batch] for i in range(0, len(ordered), batch)]
    random.Random(seed).shuffle(batches)
    return batches


def measure(
    jobs: Sequence[Job],
    plan: Plan,
    sentences: Sequence[Sentence],
    start: Callable[[Job], Worker] = Process,
) -> list[Cell]:
    """All cells. Raises UserError where an engine refuses its row."""
    cells = []
    with _workers(jobs, start) as workers:
        for threads in plan.threads:
            title = f"loading, threads {threads}"
            for worker in tqdm(workers, desc=title, unit="row", file=sys.stderr):
                worker.call("load", threads)
            for batch in plan.batches:
                taking = [worker for worker in workers if plan.takes(worker.row, batch)]
                cells += _measure(taking, threads, batch, plan, sentences)
    return cells


@contextmanager
def _workers(jobs: Sequence[Job], start: Callable[[Job], Worker]) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        for job in jobs:
            workers.append(start(job))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def _measure(
    workers: Sequence[Worker],
    threads: int,
    batch: int,
    plan: Plan,
    sentences: Sequence[Sentence],
) -> list[Cell]:
    batches = cut(sentences, batch)
    size = max(1, plan.turn // batch)
    turns = [batches[i : i + size] for i in range(0, len(batches), size)]
    cells = [Cell(worker.row, threads, batch) for worker in workers]
    for worker in workers:
        worker.call("reset_peak")
        worker.call("run", batches[:NUM_WARM_UP])
    title = f"threads {threads}, batch {batch}"
    total = plan.repeats * len(workers) * len(sentences)
    with tqdm(total=total, desc=title, unit="sentence", file=sys.stderr) as bar:
        for repeat in range(plan.repeats):
            for cell in cells:
                cell.seconds.append([])
            for number, part in enumerate(turns):
                for index in range(len(workers)):
                    # The order rotates, so that nobody always runs in another's wake.
                    at = (index + number + repeat) % len(workers)
                    _note(cells[at], part, workers[at].call("run", part))
                    bar.update(sum(map(len, part)))
    for worker, cell in zip(workers, cells, strict=True):
        cell.peak_memory = worker.call("peak")
        cell.parts = cell.stats.seconds if cell.stats is not None else {}
        if not cell.parts:  # where measuring them would have slowed it down
            cell.parts = worker.call("parts", turns[0])
    return cells


def _note(cell: Cell, batches: Batches, turn: Turn) -> None:
    """Add one turn to its cell."""
    cell.seconds[-1] += turn.seconds
    for batch, output in zip(batches, turn.outputs, strict=True):
        for sentence, tokens in zip(batch, output.tokens, strict=True):
            before = cell.tokens.get(sentence.number, tokens)
            cell.num_unstable += before != tokens
            cell.tokens[sentence.number] = tokens
        if output.stats is not None:
            cell.stats = output.stats if cell.stats is None else cell.stats + output.stats
