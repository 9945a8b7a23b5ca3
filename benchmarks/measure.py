"""One loop for every comparison: systems take turns over the same sentences, and repeat.

`interleave` is that loop, for whatever translates. `measure` runs it over engines, each in a
process of its own on the same cores: all are loaded, and one at a time works.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tqdm import tqdm

from benchmarks.engines import Job
from benchmarks.pair import Sentence
from benchmarks.systems import System
from benchmarks.worker import Batches, Process, Timed, Worker
from specdec_plugins.app.options import option
from specdec_plugins.corpus.cli import at_least
from specdec_plugins.corpus.resume import Log
from specdec_plugins.decoding.stats import DecodeStats

Part = TypeVar("Part")
Result = TypeVar("Result")

_how = partial(option, group="how")
NUM_WARM_UP = 5  # batches, not counted


def interleave(
    systems: Sequence[Callable[[Part], Result]],
    parts: Sequence[Part],
    repeats: int = 1,
    log: Log | None = None,
    on_done: Callable[[Part], object] = lambda part: None,
) -> list[list[list[Result]]]:
    """Each part by every system before the next part, as [system][repeat][part].

    The order rotates, so that a noisy machine disturbs all alike and nobody always runs in
    another's wake. log: results that it holds are taken as they are, and all others go there.
    on_done is called after each part of each system.
    """
    made: list[list[list[Result]]] = [[[] for _ in range(repeats)] for _ in systems]
    logged = iter([] if log is None else list(log.entries))
    for repeat in range(repeats):
        for number, part in enumerate(parts):
            results: list[Any] | None = next(logged, None)
            if results is None:
                results = [None] * len(systems)
                for index in range(len(systems)):
                    at = (index + number + repeat) % len(systems)
                    results[at] = systems[at](part)
                    on_done(part)
                if log is not None:
                    log.add(results)
            else:
                for _ in systems:
                    on_done(part)
            for of_system, result in zip(made, results, strict=True):
                of_system[repeat].append(result)
    return made


@dataclass(frozen=True)
class Plan:
    """How often, with how many threads, in which batches."""

    threads: Sequence[int] = _how((2,), "default: 2", "N", nargs="+", type=at_least(1))
    batches: Sequence[int] = _how((1,), "default: 1", "N", nargs="+", type=at_least(1))
    repeats: int = _how(3, "repetitions", type=at_least(1))
    turn: int = _how(25, "sentences that a row decodes before the next one does", type=at_least(1))
    batch_rows: Sequence[str] = option(
        ("*",),
        "of these, those measured at batches above 1 (default: all that can)",
        "PATTERN",
        group="rows",
        nargs="+",
    )

    def takes(self, system: System, batch: int) -> bool:
        """True if the system is measured at that batch."""
        return batch == 1 or (system.is_like(self.batch_rows) and not system.only_single)


@dataclass
class Cell:
    """One system at one number of threads and one batch."""

    system: System
    threads: int
    batch: int
    seconds: list[list[float]] = field(default_factory=list)  # [repeat][batch], in batch order
    tokens: dict[int, list[str]] = field(default_factory=dict)  # by sentence, the last repetition's
    num_unstable: int = 0  # sentences that came out differently from one repetition to the next
    stats: DecodeStats | None = None  # of all repetitions
    parts: dict[str, float] = field(default_factory=dict)  # seconds
    peak_memory: int = 0  # bytes

    def add(self, batches: Batches, timed: Timed) -> None:
        """What came of some batches of the present repetition."""
        self.seconds[-1] += timed.seconds
        for batch, output in zip(batches, timed.outputs, strict=True):
            for sentence, tokens in zip(batch, output.tokens, strict=True):
                before = self.tokens.get(sentence.number, tokens)
                self.num_unstable += before != tokens
                self.tokens[sentence.number] = tokens
            if output.stats is not None:
                self.stats = output.stats if self.stats is None else self.stats + output.stats


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
    """All cells. Raises UserError where an engine refuses its system."""
    cells = []
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(start(job))) for job in jobs]
        for threads in plan.threads:
            title = f"loading, threads {threads}"
            for worker in tqdm(workers, desc=title, unit="system", file=sys.stderr):
                worker.call("load", threads)
            for batch in plan.batches:
                taking = [worker for worker in workers if plan.takes(worker.system, batch)]
                cells += _measure(taking, threads, batch, plan, sentences)
    return cells


def _measure(
    workers: Sequence[Worker],
    threads: int,
    batch: int,
    plan: Plan,
    sentences: Sequence[Sentence],
) -> list[Cell]:
    batches = cut(sentences, batch)
    size = max(1, plan.turn // batch)
    parts = [batches[i : i + size] for i in range(0, len(batches), size)]
    for worker in workers:
        worker.call("reset_peak")
        worker.call("run", batches[:NUM_WARM_UP])
    systems = [lambda part, worker=worker: worker.call("run", part) for worker in workers]
    total = plan.repeats * len(workers) * len(sentences)
    title = f"threads {threads}, batch {batch}"
    with tqdm(total=total, desc=title, unit="sentence", file=sys.stderr) as bar:
        made = interleave(
            systems, parts, plan.repeats, on_done=lambda part: bar.update(sum(map(len, part)))
        )
    cells = []
    for worker, repeats in zip(workers, made, strict=True):
        cell = Cell(worker.system, threads, batch)
        for repeat in repeats:
            cell.seconds.append([])
            for part, timed in zip(parts, repeat, strict=True):
                cell.add(part, timed)
        cell.peak_memory = worker.call("peak")
        cell.parts = cell.stats.seconds if cell.stats is not None else {}
        if not cell.parts:  # where measuring them would have slowed it down
            cell.parts = worker.call("parts", parts[0])
        cells.append(cell)
    return cells
