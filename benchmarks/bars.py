"""The bars that the project holds its speed to, read off a run: met, or missed by how much.

python -m benchmarks.bars benchmarks/results/NAME.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.results import Figures, Results, Setting, markdown, on_result, ratios, spread
from benchmarks.systems import BEAM, EXACT, GREEDY, RELAXED

_HEADER = ("bar", "what", "wanted", "measured", "verdict")
_BLEU_MARGIN = 0.3  # below beam search, that relaxed decoding may score
_EXTRA_MEMORY = 0.2  # of AR's peak, beside the drafter's weights
MIB = 2**20
# Speeds at batch 1: number, precision, what, the engine and role it is measured against, and how
# many times faster it should be.
_PEER, _FAIRSEQ, _OURS = (("CTranslate2", "ctranslate2"), ("fairseq", "fairseq"), ("our", "ours"))
_ON_CPU = (
    ("1", "float32", GREEDY, _PEER, 0.9),
    ("1", "int8", GREEDY, _PEER, 0.7),
    ("2", "float32", EXACT, _PEER, 1.8),
    ("2", "int8", EXACT, _PEER, 2.0),
    ("3", "float32", EXACT, _OURS, 2.0),
    ("3", "int8", EXACT, _OURS, 2.0),
    ("4", "float32", EXACT, _FAIRSEQ, 4.0),
)
_ON_GPU = (("5", "float16", EXACT, _FAIRSEQ, 25.0), ("5", "float16", EXACT, _OURS, 2.5))


class Bar(NamedTuple):
    """One line of the table."""

    number: str
    what: str
    wanted: float
    values: Sequence[float]  # ratios run by run; empty = not measured in this run
    at_most: bool = False  # the measured value may not be larger than the wanted one

    def cells(self) -> list[str]:
        wanted = f"{'at most' if self.at_most else 'at least'} {self.wanted:g}x"
        if not self.values:
            return [self.number, self.what, wanted, "", "not measured"]
        middle = statistics.median(self.values)
        met = middle <= self.wanted if self.at_most else middle >= self.wanted
        verdict = "met" if met else f"missed: {middle / self.wanted:.2f} of it"
        return [self.number, self.what, wanted, spread(self.values), verdict]


def bars(results: Results) -> list[Bar]:
    """Those of the device that the run was made on."""
    at = (results.threads, 1)
    if results.record["setting"]["device"] == "cpu":
        return list(_speeds(results, at, _ON_CPU, results.fastest))
    dtype = "float16"
    later = [(threads, batch) for threads, batch in results.settings if threads == at[0]]
    return [
        *_speeds(results, at, _ON_GPU, results.find),
        _relaxed(results, at, dtype),
        Bar("7", "our greedy step against its kernels", 1.3, [], at_most=True),
        *(_batched(results, setting, dtype) for setting in later if setting[1] > 1),
        *(_memory(results, setting, dtype) for setting in later if setting[1] <= 32),
    ]


def table(results: Results) -> str:
    """Markdown."""
    return markdown(_HEADER, [bar.cells() for bar in bars(results)])


def _speeds(
    results: Results,
    at: Setting,
    wanted: Sequence[tuple[str, str, str, tuple[str, str], float]],
    ours: Callable[..., Figures | None],
) -> Iterator[Bar]:
    for number, dtype, role, (name, engine), least in wanted:
        # A peer is as fast as its best number of threads makes it.
        find = results.find if engine == "fairseq" else ours
        values = _ratios(ours(at, "ours", role, dtype), find(at, engine, GREEDY, dtype))
        yield Bar(number, f"our {role} against {name} greedy, {dtype}", least, values)


def _relaxed(results: Results, at: Setting, dtype: str) -> Bar:
    """The fastest relaxed system that scores as beam search does."""
    what = f"our relaxed, BLEU within {_BLEU_MARGIN} of beam 5, against our greedy"
    beam = results.find(at, "fairseq", BEAM, dtype)
    greedy = results.find(at, "ours", GREEDY, dtype)
    found: list[list[float]] = []
    if beam is not None and beam["bleu"] is not None:
        found = [
            _ratios(cell, greedy)
            for cell in results.find_all(at, "ours", RELAXED, dtype)
            if cell["bleu"] is not None and cell["bleu"] >= beam["bleu"] - _BLEU_MARGIN
        ]
    return Bar("6", what, 4.0, max(filter(None, found), key=statistics.median, default=[]))


def _batched(results: Results, setting: Setting, dtype: str) -> Bar:
    exact, greedy = (results.find(setting, "ours", role, dtype) for role in (EXACT, GREEDY))
    what = f"our exact against our greedy, batch {setting[1]}"
    return Bar("8", what, 1.3 if setting[1] == 32 else 1.0, _ratios(exact, greedy))


def _memory(results: Results, setting: Setting, dtype: str) -> Bar:
    """Exact mode's peak against AR's, the drafter's weights and a fifth of AR's peak."""
    weights = results.record["pair"]["drafter_weights"] * (2 if dtype == "float16" else 4) / MIB
    exact, greedy = (results.find(setting, "ours", role, dtype) for role in (EXACT, GREEDY))
    values = []
    if exact is not None and greedy is not None:
        allowed = weights + greedy["peak_memory_mib"] * (1 + _EXTRA_MEMORY)
        values = [exact["peak_memory_mib"] / allowed]
    what = f"memory of exact against greedy's plus a fifth and the drafter, batch {setting[1]}"
    return Bar("9", what, 1.0, values, at_most=True)


def _ratios(cell: Figures | None, baseline: Figures | None) -> list[float]:
    return [] if cell is None or baseline is None else ratios(cell, baseline)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 where the argument is no result."""
    return on_result("python -m benchmarks.bars", argv, lambda results, _: print(table(results)))


if __name__ == "__main__":
    sys.exit(main())
