"""The bars that the project holds its speed to, read off a run: met, or missed by how much.

python -m benchmarks.bars benchmarks/results/NAME.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.results import Figures, Results, Setting, markdown, on_result, ratios, spread
from benchmarks.systems import BEAM, EXACT, GREEDY, RELAXED

_HEADER = ("bar", "what", "wanted", "measured", "verdict")
_BLEU_MARGIN = 0.3  # below beam search, that relaxed decoding may score
_EXTRA_MEMORY = 0.2  # of AR's peak, beside the drafter's weights
MIB = 2**20


@dataclass(frozen=True)
class Bar:
    """One line of the table."""

    number: str
    what: str
    wanted: float
    values: Sequence[float]  # ratios run by run; empty = not measured in this run
    at_most: bool = False  # the measured value may not be larger than the wanted one

    def cells(self) -> list[str]:
        sign = "at most" if self.at_most else "at least"
        wanted = f"{sign} {self.wanted:g}x"
        if not self.values:
            return [self.number, self.what, wanted, "", "not measured"]
        middle = statistics.median(self.values)
        met = middle <= self.wanted if self.at_most else middle >= self.wanted
        verdict = "met" if met else f"missed: {middle / self.wanted:.2f} of it"
        return [self.number, self.what, wanted, spread(self.values), verdict]


def bars(results: Results) -> list[Bar]:
    """Those of the device that the run was made on."""
    device = results.record["setting"]["device"]
    return list(_on_gpu(results) if device == "cuda" else _on_cpu(results))


def table(results: Results) -> str:
    """Markdown."""
    return markdown(_HEADER, [bar.cells() for bar in bars(results)])


def _on_cpu(results: Results) -> Iterator[Bar]:
    at = (results.threads, 1)
    dtypes = ("float32", "int8")
    peer = {dtype: results.fastest(at, "ctranslate2", GREEDY, dtype) for dtype in dtypes}
    for number, role, wanted in (("1", GREEDY, (0.9, 0.7)), ("2", EXACT, (1.8, 2.0))):
        for (dtype, other), bar in zip(peer.items(), wanted, strict=True):
            what = f"our {role} against CTranslate2 greedy, {dtype}"
            yield Bar(number, what, bar, _ratios(results.fastest(at, "ours", role, dtype), other))
    for dtype in peer:
        exact, greedy = (results.fastest(at, "ours", r, dtype) for r in (EXACT, GREEDY))
        yield Bar("3", f"our exact against our greedy, {dtype}", 2.0, _ratios(exact, greedy))
    exact = results.fastest(at, "ours", EXACT, "float32")
    fairseq = results.find(at, "fairseq", GREEDY, "float32")
    yield Bar("4", "our exact against fairseq greedy, float32", 4.0, _ratios(exact, fairseq))


def _on_gpu(results: Results) -> Iterator[Bar]:
    dtype = "float16"
    at = (results.threads, 1)
    exact, greedy = (results.find(at, "ours", role, dtype) for role in (EXACT, GREEDY))
    fairseq = results.find(at, "fairseq", GREEDY, dtype)
    yield Bar("5", "our exact against fairseq greedy, float16", 25.0, _ratios(exact, fairseq))
    yield Bar("5", "our exact against our greedy, float16", 2.5, _ratios(exact, greedy))
    yield _relaxed(results, at, dtype)
    yield Bar("7", "our greedy step against its kernels", 1.3, [], at_most=True)
    for setting in results.settings:
        batch = setting[1]
        if setting[0] == results.threads and batch > 1:
            values = _ratios(
                *(results.find(setting, "ours", role, dtype) for role in (EXACT, GREEDY))
            )
            wanted = 1.3 if batch == 32 else 1.0
            yield Bar("8", f"our exact against our greedy, batch {batch}", wanted, values)
    yield from _memory(results, dtype)


def _relaxed(results: Results, at: Setting, dtype: str) -> Bar:
    """The fastest relaxed system that scores as beam search does."""
    what = f"our relaxed, BLEU within {_BLEU_MARGIN} of beam 5, against our greedy"
    beam = results.find(at, "fairseq", BEAM, dtype)
    greedy = results.find(at, "ours", GREEDY, dtype)
    best = None if beam is None else beam["bleu"]
    least = None if best is None else best - _BLEU_MARGIN
    found: list[list[float]] = []
    for cell in results.find_all(at, "ours", RELAXED, dtype):
        if least is not None and cell["bleu"] is not None and cell["bleu"] >= least:
            found.append(_ratios(cell, greedy))
    return Bar("6", what, 4.0, max(filter(None, found), key=statistics.median, default=[]))


def _memory(results: Results, dtype: str) -> Iterator[Bar]:
    """Exact mode's peak against AR's, the drafter's weights and a fifth of AR's peak."""
    weights = results.record["pair"]["drafter_weights"] * (2 if dtype == "float16" else 4) / MIB
    for setting in results.settings:
        if setting[0] != results.threads or setting[1] > 32:
            continue
        exact, greedy = (results.find(setting, "ours", r, dtype) for r in (EXACT, GREEDY))
        values = []
        if exact is not None and greedy is not None:
            plain = greedy["peak_memory_mib"]
            values = [exact["peak_memory_mib"] / (weights + plain * (1 + _EXTRA_MEMORY))]
        what = f"memory of exact against greedy's plus a fifth and the drafter, batch {setting[1]}"
        yield Bar("9", what, 1.0, values, at_most=True)


def _ratios(cell: Figures | None, baseline: Figures | None) -> list[float]:
    return [] if cell is None or baseline is None else ratios(cell, baseline)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 where the argument is no result."""
    return on_result("python -m benchmarks.bars", argv, lambda results, _: print(table(results)))


if __name__ == "__main__":
    sys.exit(main())
