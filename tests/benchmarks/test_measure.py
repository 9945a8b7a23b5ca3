"""Interleaving and bookkeeping, with engines that only write down what they were asked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from benchmarks import worker
from benchmarks.engines import Output, Workload
from benchmarks.measure import NUM_WARM_UP, Cell, cut, interleave, measure
from benchmarks.pair import Pair, Sentence
from benchmarks.systems import Options, System
from benchmarks.worker import Worker
from specdec_plugins.app.settings import Settings
from specdec_plugins.decoding.stats import DecodeStats
from tests.bundles import ROOT

SENTENCES = [Sentence(n, ["w"] * (n % 7), [5] * (n % 7) + [2]) for n in range(1, 22)]
SYSTEMS = [System("ours", role, "float32") for role in ("greedy", "exact", "relaxed")]
WORKLOAD = Workload(Pair(Settings("data", verifier="v", drafter_checkpoint="d")), SENTENCES)


def test_the_order_rotates() -> None:
    order: list[str] = []

    def note(name: str, part: str) -> None:
        order.append(name + part)

    interleave([partial(note, name) for name in "Ads"], ["1", "4"], repeats=2)
    assert order == ["A1", "d1", "s1", "d4", "s4", "A4", "d1", "s1", "A1", "s4", "A4", "d4"]


@dataclass
class Recorder:
    """A process whose every sentence takes a second."""

    system: System
    log: list[tuple[str, list[int]]]  # whose turn, with which sentences
    calls: list[str] = field(default_factory=list)

    def call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        if name != "run":
            return {"peak": 1000, "parts": {"verify": 3.0}}.get(name)
        (batches,) = arguments
        self.log.append((self.system.role, [s.number for batch in batches for s in batch]))
        # After loading, resetting the peak and warming up: the first repetition.
        differs = self.system.role == "relaxed" and len(self.calls) < 5
        tokens = ["unlike" if differs else "same"]
        stats = None if self.system.role == "greedy" else DecodeStats(rounds=1, emitted=2)
        return [Output([tokens for _ in batch], stats, float(len(batch))) for batch in batches]

    def close(self) -> None:
        self.calls.append("close")


def run(**options: Any) -> tuple[list[Cell], list[Recorder], list[tuple[str, list[int]]]]:
    log: list[tuple[str, list[int]]] = []
    workers: list[Recorder] = []

    def start(system: System, workload: Workload) -> Any:
        workers.append(Recorder(system, log))
        return workers[-1]

    asked = Options("out", "p", "t", **options)
    return measure(SYSTEMS, WORKLOAD, asked, start), workers, log


def test_systems_take_turns_over_the_same_batches_and_nobody_always_follows_the_same() -> None:
    _, _, log = run(repeats=2, turn=5)
    log = log[len(SYSTEMS) :]  # warm-up
    turns = [log[i : i + len(SYSTEMS)] for i in range(0, len(log), len(SYSTEMS))]
    assert all({role for role, _ in turn} == {one.role for one in SYSTEMS} for turn in turns)
    assert all(len({tuple(numbers) for _, numbers in turn}) == 1 for turn in turns)
    assert {turn[0][0] for turn in turns} == {one.role for one in SYSTEMS}


def test_every_sentence_is_decoded_once_a_repetition() -> None:
    cells, _, log = run(repeats=2, turn=5, batches=(1, 4))
    assert [(cell.system.role, cell.batch) for cell in cells] == [
        (one.role, batch) for batch in (1, 4) for one in SYSTEMS
    ]
    for cell in cells:
        assert [sum(o.seconds for o in outputs) for outputs in cell.runs] == [len(SENTENCES)] * 2
        assert set(cell.tokens) == {s.number for s in SENTENCES}
        assert cell.peak_memory == 1000
    counted = Counter(number for role, numbers in log if role == "exact" for number in numbers)
    # Four times, and the first few once more for each warm-up.
    assert set(counted.values()) <= {4, 5, 6}
    warm_up = sum(len(batch) for n in (1, 4) for batch in cut(SENTENCES, n)[:NUM_WARM_UP])
    assert sum(counted.values()) == 4 * len(SENTENCES) + warm_up


def test_counts_are_added_up_and_unstable_outputs_noticed() -> None:
    greedy, exact, relaxed = run(repeats=3, turn=100)[0]
    assert greedy.stats is None
    assert exact.stats is not None
    assert exact.stats.rounds == 3 * len(SENTENCES)
    assert (greedy.num_unstable, exact.num_unstable) == (0, 0)
    assert relaxed.num_unstable == len(SENTENCES)
    assert greedy.parts == {"verify": 3.0}


def test_systems_stay_out_of_batches_that_are_not_theirs() -> None:
    cells, workers, _ = run(batches=(1, 8), batch_rows=("ours exact",))
    assert [(c.system.role, c.batch) for c in cells if c.batch == 8] == [("exact", 8)]
    assert all(worker.calls[-1] == "close" for worker in workers)


def test_a_system_may_take_fewer_threads_and_never_more(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(worker, "load", lambda system, workload, threads: taken.append(threads))
    monkeypatch.setattr(worker.os, "sched_setaffinity", lambda *_: None)
    for options in ({}, {"threads": 1}):
        its = Worker(System("ctranslate2", "greedy", "int8", options), WORKLOAD)
        for threads in (1, 2):
            its.load(threads)
    assert taken == [1, 2, 1, 1]


_MEASURING = """
import os
from benchmarks.worker import Process
from tests.benchmarks.test_measure import SYSTEMS, WORKLOAD
process = Process(SYSTEMS[0], WORKLOAD)
print(process._pool.submit(os.getpid).result(), flush=True)
input()
"""


def test_an_engine_ends_with_a_benchmark_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        engine = int(process.stdout.readline())
        assert is_there(engine)
        process.kill()
    end = time.monotonic() + 10
    while is_there(engine):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
