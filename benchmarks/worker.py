"""One engine in a process of its own, which shares no threads or memory with others."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines import Engine, Output, Workload, load
from benchmarks.pair import Sentence
from benchmarks.reports import field_of
from benchmarks.systems import System
from specdec_plugins.app import report
from specdec_plugins.errors import UserError, end_with_parent, located

Batches = Sequence[Sequence[Sentence]]

# Engines are forked from a process that has imported these and computed nothing: a fork of one that
# runs OpenMP or CUDA would not work, and a fresh process would import for seconds. Modules that are
# not installed are skipped.
_PRELOADED = ("benchmarks.worker", "specdec_plugins.app.loading", "fairseq.checkpoint_utils")
_SETTLED = 0.001, 0.02  # at rest: less than these CPU seconds within these seconds


class Process:
    """The parent's side of a process with one engine; calls methods of its `Worker` by name."""

    def __init__(self, system: System, workload: Workload) -> None:
        self.system = system
        context = get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._pool = ProcessPoolExecutor(1, context, _begin, (system, workload))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call and wait. Raises UserError, naming the system, if the engine could not do it."""
        with located(self.system.name):
            try:
                return self._pool.submit(_answer, name, *arguments).result()
            except BrokenExecutor:
                raise UserError(
                    "its process ended; if memory ran out, measure fewer rows at once."
                ) from None

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Worker:
    """The process's side: the methods that can be called."""

    def __init__(self, system: System, workload: Workload) -> None:
        self._system = system
        self._workload = workload
        self._engine: Engine | None = None
        on_gpu = workload.device == "cuda"
        self._idle = torch.cuda.memory_allocated() if on_gpu else _status("VmRSS") or 0
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def load(self, threads: int) -> None:
        """Load the engine with that many threads, or its system's fewer, on the first cores."""
        threads = min(threads, self._system.options.get("threads", threads))
        self._engine = None
        gc.collect()
        if self._cores and self._workload.device == "cpu":
            os.sched_setaffinity(0, self._cores[:threads])
        self._engine = load(self._system, self._workload, threads)

    def reset_peak(self) -> None:
        """Measure the peak from now, or from the start if the system cannot reset it."""
        if self._workload.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            with suppress(OSError):  # resets VmHWM, see proc(5)
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak(self) -> int:
        """Peak bytes beyond the idle process: of torch's tensors on a GPU, else of the process."""
        device = self._workload.device
        found = _status("VmHWM") if device == "cpu" else None
        return (found or report.peak_memory(torch.device(device))) - self._idle

    def run(self, batches: Batches) -> list[Output]:
        """Translate batch by batch, timed, then wait until the threads sleep."""
        assert self._engine is not None, "run before load"
        outputs = []
        for batch in batches:
            self._synchronise()
            start = time.perf_counter()
            output = self._engine.translate(batch)
            self._synchronise()
            outputs.append(replace(output, seconds=time.perf_counter() - start))
        rest()
        return outputs

    def parts(self, batches: Batches) -> dict[str, float]:
        """Seconds by part over these batches."""
        assert self._engine is not None, "parts before load"
        total: Counter[str] = Counter()
        for batch in batches:
            total.update(self._engine.parts(batch))
        rest()
        return dict(total)

    def _synchronise(self) -> None:
        if self._workload.device == "cuda":
            torch.cuda.synchronize()


def _status(name: str) -> int | None:
    """Bytes, see proc(5); None on systems without it."""
    found = field_of(Path("/proc/self/status"), name)
    return None if found is None else int(found.split()[0]) * 1024


def rest() -> None:
    """Wait until the process's threads sleep.

    Some OpenMP threads spin for 0.2 s after their work, on the core that the next engine is
    measured on.
    """
    most, pause = _SETTLED
    end = time.monotonic() + 2
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(pause)
        if time.process_time() - before < most:
            return


_worker: Worker | None = None  # of this process


def _begin(system: System, workload: Workload) -> None:
    global _worker
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    _worker = Worker(system, workload)
    end_with_parent()  # or the engine would keep its memory


def _answer(name: str, *arguments: Any) -> Any:
    return getattr(_worker, name)(*arguments)
