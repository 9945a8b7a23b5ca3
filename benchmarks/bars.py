"""The bars that the project holds its speed to, read off a run: met, or missed by how much.

python -m benchmarks.bars benchmarks/results/NAME.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import reports
from benchmarks.reports import Columns, Record, spread
from benchmarks.results import Results, Setting, speed_ups
from benchmarks.systems import BEAM, EXACT, GREEDY, RELAXED
from specdec_plugins.errors import require, run_command

_BLEU_MARGIN = 0.3  # below beam search, that relaxed decoding may score
_EXTRA_MEMORY = 0.2  # of AR's peak, beside the drafter's weights
MIB = 2**20
_NAMES = {"ctranslate2": "CTranslate2", "fairseq": "fairseq", "ours": "our"}
# Speeds at batch 1: number, precision, what of ours, against whose greedy decoding, and how many
# times faster it should be.
_ON_CPU = (
    ("1", "float32", GREEDY, "ctranslate2", 0.9),
    ("1", "int8", GREEDY, "ctranslate2", 0.7),
    ("2", "float32", EXACT, "ctranslate2", 1.8),
    ("2", "int8", EXACT, "ctranslate2", 2.0),
    ("3", "float32", EXACT, "ours", 2.0),
    ("3", "int8", EXACT, "ours", 2.0),
    ("4", "float32", EXACT, "fairseq", 4.0),
)
_ON_GPU = (("5", "float16", EXACT, "fairseq", 25.0), ("5", "float16", EXACT, "ours", 2.5))


class Bar(NamedTuple):
    """One line of the table."""

    number: str
    what: str
    wanted: float
    values: Sequence[float]  # ratios run by run; empty = not measured in this run
    at_most: bool = False  # the measured value may not be larger than the wanted one

    @property
    def verdict(self) -> str:
        if not self.values:
            return "not measured"
        middle = statistics.median(self.values)
        met = middle <= self.wanted if self.at_most else middle >= self.wanted
        return "met" if met else f"missed: {middle / self.wanted:.2f} of it"


COLUMNS: Columns = {
    "bar": lambda bar: bar.number,
    "what": lambda bar: bar.what,
    "wanted": lambda bar: f"{'at most' if bar.at_most else 'at least'} {bar.wanted:g}x",
    "measured": lambda bar: spread(bar.values) if bar.values else "",
    "verdict": lambda bar: bar.verdict,
}


def bars(results: Results) -> list[Bar]:
    """Those of the device that the run was made on."""
    on_cpu, at = results.record["setting"]["device"] == "cpu", (results.threads, 1)
    # On a CPU everybody is as fast as the best number of threads makes it.
    find = results.fastest if on_cpu else results.find
    found = []
    for number, dtype, role, engine, wanted in _ON_CPU if on_cpu else _ON_GPU:
        values = speed_ups(find(at, "ours", role, dtype), find(at, engine, GREEDY, dtype))
        what = f"our {role} against {_NAMES[engine]} greedy, {dtype}"
        found.append(Bar(number, what, wanted, values))
    return found if on_cpu else [*found, *_of_gpu(results, results.threads, "float16")]


def table(results: Results) -> str:
    """Markdown."""
    return reports.table(COLUMNS, bars(results))


def _of_gpu(results: Results, threads: int, dtype: str) -> Iterator[Bar]:
    batches = [batch for other, batch in results.settings if other == threads]
    exact, greedy = (
        {batch: results.find((threads, batch), "ours", role, dtype) for batch in batches}
        for role in (EXACT, GREEDY)
    )
    what = f"our relaxed, BLEU within {_BLEU_MARGIN} of beam 5, against our greedy"
    yield Bar("6", what, 4.0, _relaxed(results, (threads, 1), dtype, greedy.get(1)))
    yield Bar("7", "our greedy step against its kernels", 1.3, [], at_most=True)
    for batch in batches:
        if batch > 1:
            wanted, values = 1.3 if batch == 32 else 1.0, speed_ups(exact[batch], greedy[batch])
            yield Bar("8", f"our exact against our greedy, batch {batch}", wanted, values)
    weights = results.record["pair"]["drafter_weights"] * (2 if dtype == "float16" else 4) / MIB
    for batch in batches:
        mine, plain, values = exact[batch], greedy[batch], []
        if mine is not None and plain is not None:
            allowed = weights + plain["peak_memory_mib"] * (1 + _EXTRA_MEMORY)
            values = [mine["peak_memory_mib"] / allowed]
        if batch <= 32:
            what = f"memory of exact against greedy's plus a fifth and the drafter, batch {batch}"
            yield Bar("9", what, 1.0, values, at_most=True)


def _relaxed(results: Results, at: Setting, dtype: str, greedy: Record | None) -> list[float]:
    """How much faster the fastest relaxed system is that scores as beam search does."""
    beam = results.find(at, "fairseq", BEAM, dtype)
    if beam is None or beam["bleu"] is None:
        return []
    found = [
        speed_ups(cell, greedy)
        for cell in results.find_all(at, "ours", RELAXED, dtype)
        if cell["bleu"] is not None and cell["bleu"] >= beam["bleu"] - _BLEU_MARGIN
    ]
    return max(filter(None, found), key=statistics.median, default=[])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 where the only argument is no result."""
    paths = sys.argv[1:] if argv is None else argv

    def work() -> None:
        require(len(paths) == 1, "expected one argument, RESULT.json")
        print(table(Results.read(Path(paths[0]))))

    return run_command("python -m benchmarks.bars", work, False, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
