"""One round on a GPU, measured: python -m benchmarks.rounds FOLDER TEST writes a table.

For greedy, exact and relaxed decoding, each with and without CUDA graphs: how long a round takes,
how long the device computes in it, and how many kernels it launches, by torch's profiler.
`counted.py` computes what a round must take.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType

from benchmarks.pair import Pair, read_test_set
from benchmarks.reports import Columns, number, table
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import Request

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "AR"},
    "exact": {},
    "beta 3, tau 1": {"beta": 3, "tau": 1.0},
}
BATCHES = (1, 32)
LONGEST = 64  # tokens; no text ends before
FIRST, TIMED, PROFILED = 16, 24, 2  # rounds: the first record; the last are of one text


class Cost(NamedTuple):
    """Of one round."""

    milliseconds: float  # median
    on_device: float  # milliseconds in which the device computes or copies
    launches: float


COLUMNS: Columns = {
    "": lambda row: row[0],
    "rows": lambda row: str(row[1]),
    "ms a round": lambda row: number(row[2].milliseconds),
    "ms on the device": lambda row: number(row[2].on_device),
    "launches": lambda row: f"{row[2].launches:.0f}",
}


def cost(settings: Settings, sources: Sequence[list[int]]) -> Cost:
    """Of rounds in the middle of these sources' translations."""
    translator = load_translator(settings)
    decoder = translator.decoder
    assert isinstance(decoder, SpeculativeDecoder)
    params = settings.decode_params(LONGEST, 0, translator.limits.block_size)
    params = replace(params, min_len=LONGEST)
    requests = [Request(str(n), ids, params) for n, ids in enumerate(sources)]

    def rounds() -> Generator[float]:
        """Seconds of each round but the first of a text."""
        while True:
            with decoder.session(requests) as session:
                session.step()
                for _ in range(3):
                    start = time.perf_counter()
                    session.step()
                    yield time.perf_counter() - start

    running = rounds()
    for _ in range(FIRST):
        next(running)
    seconds = [next(running) for _ in range(TIMED)]
    with torch.profiler.profile() as profiler:
        for _ in range(PROFILED):
            next(running)
    events = [one for one in profiler.key_averages() if one.device_type == DeviceType.CUDA]
    computing = sum(one.self_device_time_total for one in events) / 1000 / PROFILED
    launches = sum(one.count for one in events) / PROFILED
    running.close()
    return Cost(1000 * statistics.median(seconds), computing, launches)


def main(folder: str, test: str, dtype: str = "float16", device: str = "cuda") -> None:
    """Write the table to standard output."""
    pair = Pair.of(Path(folder), None, None)
    sentences = read_test_set(test, pair, max(BATCHES)).sentences
    found: list[tuple[str, int, Cost]] = []
    for (name, given), batch, graphs in product(WAYS.items(), BATCHES, (False, True)):
        given = {**given, "cuda_graphs": graphs and device == "cuda", "batch": batch}
        settings = replace(pair.token_settings(), dtype=dtype, device=device, **given)
        title = f"{name}, graphs" if graphs else name
        found.append((title, batch, cost(settings, [one.ids for one in sentences[:batch]])))
    sys.stdout.write(table(COLUMNS, found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
