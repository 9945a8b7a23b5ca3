"""One loop for every comparison: systems take turns over the same sentences, and repeat.

`interleave` is that loop, for anything that translates. `measure` runs it over engines, each in a
process of its own on the same cores: all are loaded, and one works at a time.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import methodcaller
from typing import Any, TypeVar

from tqdm import tqdm

from benchmarks.engines import Output, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import Options, System
from benchmarks.worker import Batches, Process
from specdec_plugins.corpus.resume import Log
from specdec_plugins.decoding.stats import DecodeStats

Part = TypeVar("Part")
Result = TypeVar("Result")

NUM_WARM_UP = 5  # batches, not counted


def progress_bar(*given: Any, **named: Any) -> Any:
    """A bar of tqdm, which shows few states in a log."""
    pause = 0.5 if sys.stderr.isatty() else 10
    return tqdm(*given, file=sys.stderr, mininterval=pause, **named)


def interleave(
    systems: Sequence[Callable[[Part], Result]],
    parts: Sequence[Part],
    repeats: int = 1,
    log: Log | None = None,
    count: Callable[[Any], int] = len,
    title: str | None = None,
) -> list[list[list[Result]]]:
    """Run every system on each part before the next part; returns [system][repeat][part].

    The order rotates, so that noise of the machine affects all systems alike and none always runs
    after the same one. log: its results are reused, and all others are added to it. count: units of
    a part. title: of the progress bar.
    """
    made: list[list[list[Result]]] = [[[] for _ in range(repeats)] for _ in systems]
    logged = iter([] if log is None else list(log.entries))
    total = repeats * len(systems) * sum(map(count, parts))
    with progress_bar(total=total, desc=title, unit="sentence") as bar:
        for repeat in range(repeats):
            for number, part in enumerate(parts):
                results: list[Any] | None = next(logged, None)
                if results is None:
                    results = [None] * len(systems)
                    for index in range(len(systems)):
                        at = (index + number + repeat) % len(systems)
                        results[at] = systems[at](part)
                        bar.update(count(part))
                    if log is not None:
                        log.add(results)
                else:
                    bar.update(len(systems) * count(part))
                for of_system, result in zip(made, results, strict=True):
                    of_system[repeat].append(result)
    return made


@dataclass
class Cell:
    """The results of one system at one number of threads and one batch size."""

    system: System
    threads: int
    batch: int
    batches: Batches
    runs: Sequence[Sequence[Output]]  # [repeat][batch]
    peak_memory: int = 0  # bytes
    parts: dict[str, float] = field(default_factory=dict)  # seconds

    @property
    def tokens(self) -> dict[int, list[str]]:
        """Tokens by sentence, of the last repetition."""
        return self._tokens(self.runs[-1])

    @property
    def num_unstable(self) -> int:
        """The number of changes of a sentence's output from one repetition to the next."""
        pairs = pairwise(map(self._tokens, self.runs))
        return sum(before[n] != after[n] for before, after in pairs for n in before)

    @property
    def stats(self) -> DecodeStats | None:
        """The counts of all repetitions."""
        found = [output.stats for run in self.runs for output in run if output.stats is not None]
        return sum(found, DecodeStats()) if found else None

    def _tokens(self, run: Sequence[Output]) -> dict[int, list[str]]:
        return {
            sentence.number: tokens
            for batch, output in zip(self.batches, run, strict=True)
            for sentence, tokens in zip(batch, output.tokens, strict=True)
        }


def cut(sentences: Sequence[Sentence], batch: int) -> Batches:
    """Batches of sentences of similar length, in an order that mixes short and long ones."""
    ordered = sorted(sentences, key=lambda sentence: -len(sentence.ids))
    batches = [ordered[i : i + batch] for i in range(0, len(ordered), batch)]
    random.Random(0).shuffle(batches)
    return batches


def measure(
    systems: Sequence[System],
    workload: Workload,
    options: Options,
    start: Callable[[System, Workload], Process] = Process,
) -> list[Cell]:
    """Measure all cells. Raises UserError if an engine refuses its system."""
    cells = []
    # Several at once where cores are left over, as the machine of a GPU has many and slow ones.
    at_once = max(1, (os.cpu_count() or 1) // (2 * max(options.threads)))
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(start(one, workload))) for one in systems]
        for threads in options.threads:
            title = f"loading, threads {threads}"
            with ThreadPoolExecutor(at_once) as pool:
                loading = pool.map(methodcaller("call", "load", threads), workers)
                list(progress_bar(loading, title, len(workers), unit="system"))
            for batch in options.batches:
                taking = [worker for worker in workers if options.takes(worker.system, batch)]
                cells += _measure(taking, threads, batch, options, workload.sentences)
    return cells


def _measure(
    workers: Sequence[Process],
    threads: int,
    batch: int,
    options: Options,
    sentences: Sequence[Sentence],
) -> list[Cell]:
    batches = cut(sentences, batch)
    size = max(1, options.turn // batch)
    parts = [batches[i : i + size] for i in range(0, len(batches), size)]
    for worker in workers:
        worker.call("reset_peak")
        worker.call("run", batches[:NUM_WARM_UP])
    made: list[list[list[list[Output]]]] = interleave(
        [partial(worker.call, "run") for worker in workers],
        parts,
        options.repeats,
        count=lambda part: sum(map(len, part)),
        title=f"threads {threads}, batch {batch}",
    )
    cells = []
    for worker, repeats in zip(workers, made, strict=True):
        runs = [[output for outputs in repeat for output in outputs] for repeat in repeats]
        cell = Cell(worker.system, threads, batch, batches, runs, worker.call("peak"))
        cell.parts = {} if cell.stats is None else cell.stats.seconds
        if not cell.parts:  # because measuring them would have slowed the engine down
            cell.parts = worker.call("parts", parts[0])
        cells.append(cell)
    return cells
