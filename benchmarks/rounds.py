"""One round on a GPU, measured: python -m benchmarks.rounds FOLDER TEXT writes a table.

For greedy, exact and relaxed decoding, each with and without CUDA graphs: how long a round takes,
how long the device computes in it, and how many kernels it launches, by torch's profiler.
`counted.py` computes what a round must take.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.pair import Pair, read_test_set
from benchmarks.reports import Columns, number, table
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import Request
from specdec_plugins.errors import Parser, run_command

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "AR"},
    "exact": {},
    "beta 3, tau 1": {"beta": 3, "tau": 1.0},
}
LONGEST = 64  # tokens; no text ends before
ROUNDS = 3  # that are measured in a text, after its first
WARM, TIMED = 5, 8  # texts; the first record and warm up


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

    def rounds(profiler: AbstractContextManager[Any]) -> list[float]:
        """Seconds of the rounds in the middle of a text."""
        seconds = []
        with decoder.session(requests) as session:
            session.step()
            with profiler:
                for _ in range(ROUNDS):
                    start = time.perf_counter()
                    session.step()
                    seconds.append(time.perf_counter() - start)
        return seconds

    for _ in range(WARM):
        rounds(nullcontext())
    seconds = [one for _ in range(TIMED) for one in rounds(nullcontext())]
    profiler = torch.profiler.profile()
    rounds(profiler)
    events = [one for one in profiler.key_averages() if one.device_type.name == "CUDA"]
    computing = sum(one.self_device_time_total for one in events) / 1000 / ROUNDS
    return Cost(
        1000 * statistics.median(seconds), computing, sum(one.count for one in events) / ROUNDS
    )


def main() -> None:
    """Write the table to standard output."""
    parser = Parser("python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("pair", type=Path, help="verifier and drafter", metavar="FOLDER")
    parser.add_argument("text", help="parallel text: a TSV, or SOURCE,TARGET", metavar="TEXT")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="default: 1 32")
    parser.add_argument("--dtype", default="float16", help="default: float16")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    args = parser.parse_args()
    pair = Pair.of(args.pair, None, None)
    sources = [one.ids for one in read_test_set(args.text, pair, max(args.rows)).sentences]
    own: dict[str, Any] = {"dtype": args.dtype, "device": args.device}
    found: list[tuple[str, int, Cost]] = []
    recording = (False, True) if args.device != "cpu" else (False,)
    for (name, given), rows, graphs in product(WAYS.items(), args.rows, recording):
        own |= {"cuda_graphs": graphs, "batch": rows}
        settings = replace(pair.token_settings(), **own, **given)
        title = f"{name}, graphs" if graphs else name
        found.append((title, rows, cost(settings, sources[:rows])))
    sys.stdout.write(table(COLUMNS, found) + "\n")


if __name__ == "__main__":
    sys.exit(run_command("python -m benchmarks.rounds", main, False, "stopped."))
