"""A run as pictures: PNG files beside its JSON.

python -m benchmarks.plots benchmarks/results/NAME.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Figures, Results, ratios
from benchmarks.rows import EXACT, GREEDY, RELAXED, SCRIPTED, Row
from specdec_plugins.errors import UserError, refuse

Draw = Callable[[Results, Any], bool]  # on matplotlib's axes; False = there is nothing to show

_NAME = "python -m benchmarks.plots"
_NUM_BINS = 6  # of source lengths
# A colour says which row, as far as colours go; line and marker say in which precision.
_NUM_COLOURS, _LINES, _MARKERS = 10, ("-", "--", ":", "-."), "os^v"
_COMPARED = (("fairseq", GREEDY), ("ctranslate2", GREEDY), ("ours", GREEDY), ("ours", EXACT))


def draw(results: Results, output: str) -> list[Path]:
    """Write `OUTPUT.<plot>.png` for every plot that the run has figures for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for name, plot in PLOTS.items():
        figure, axes = pyplot.subplots(figsize=(9.0, 4.4), layout="constrained")
        if plot(results, axes):
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
            path = Path(f"{output}.{name}.png")
            figure.savefig(path, dpi=120)
            written.append(path)
        pyplot.close(figure)
    return written


def _latency_by_length(results: Results, axes: Any) -> bool:
    cells = _compared(results, batch=1)
    for cell in cells:
        lengths, times = zip(*_binned(cell["by_length"]), strict=True)
        axes.plot(lengths, times, label=_label(cell), **_style(results, cell))
    axes.set(
        title=f"Latency, batch 1, threads {results.threads}",
        xlabel="source tokens",
        ylabel="milliseconds a sentence",
        ylim=(0, None),
    )
    return bool(cells)


def _binned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Mean length and median milliseconds of bins that hold equally many sentences."""
    ordered = sorted(points)
    size = max(1, -(-len(ordered) // _NUM_BINS))
    bins = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return [
        (statistics.mean(n for n, _ in part), 1000 * statistics.median(s for _, s in part))
        for part in bins
    ]


def _speed_by_batch(results: Results, axes: Any) -> bool:
    lines: dict[str, list[tuple[int, float]]] = {}
    styles: dict[str, dict[str, Any]] = {}
    for threads, batch in results.settings:
        if threads == results.threads:
            for cell in _compared(results, batch):
                speed = statistics.median(cell["tokens_a_second"])
                lines.setdefault(_label(cell), []).append((batch, speed))
                styles[_label(cell)] = _style(results, cell)
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), label=label, **styles[label])
    axes.set_xscale("log", base=2)
    batches = sorted({batch for points in lines.values() for batch, _ in points})
    axes.set_xticks(batches, labels=batches)
    axes.set(
        title=f"Speed, threads {results.threads}",
        xlabel="sentences a batch",
        ylabel="tokens a second",
        ylim=(0, None),
    )
    return any(len(points) > 1 for points in lines.values())


def _acceptance_by_position(results: Results, axes: Any) -> bool:
    cells = [c for c in _at(results, batch=1) if c["acceptance_by_position"]]
    for cell in cells:
        shares = cell["acceptance_by_position"]
        axes.plot(range(1, len(shares) + 1), shares, label=_label(cell), **_style(results, cell))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(
        title="Acceptance, batch 1",
        xlabel="position in the draft",
        ylabel="share of rounds that kept it",
        ylim=(0, 1),
    )
    return bool(cells)


def _speed_against_bleu(results: Results, axes: Any) -> bool:
    baseline = results.find((results.threads, 1), "fairseq", GREEDY, "float32")
    cells = [
        cell
        for cell in _at(results, batch=1)
        if cell["bleu"] is not None and cell["row"]["role"] != SCRIPTED
    ]
    if baseline is None or not cells:
        return False
    lines: dict[str, list[tuple[float, float]]] = {}
    styles: dict[str, dict[str, Any]] = {}
    for cell in cells:
        point = (statistics.median(ratios(cell, baseline)), cell["bleu"])
        row = cell["row"]
        joined = row["engine"] == "ours" and row["role"] in (EXACT, RELAXED)
        label = f"ours exact to relaxed, {row['dtype']}" if joined else _label(cell)
        lines.setdefault(label, []).append(point)
        styles.setdefault(label, _style(results, cell))
        if joined and (options := _options(row)):
            _annotate(axes, ", ".join(f"{k} {v:g}" for k, v in options.items()), point)
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), label=label, **styles[label])
    axes.margins(0.1, 0.2)  # for the words of the outer points
    axes.set(
        title=f"Speed and quality, batch 1, threads {results.threads}",
        xlabel="speed against fairseq greedy, float32",
        ylabel="BLEU",
    )
    return True


PLOTS: dict[str, Draw] = {
    "latency-by-length": _latency_by_length,
    "speed-by-batch": _speed_by_batch,
    "acceptance-by-position": _acceptance_by_position,
    "speed-against-bleu": _speed_against_bleu,
}


def _compared(results: Results, batch: int) -> list[Figures]:
    """The rows that a plot with one line a row has room for."""
    rows = [(cell, cell["row"]) for cell in _at(results, batch)]
    return [c for c, row in rows if (row["engine"], row["role"]) in _COMPARED and not _options(row)]


def _at(results: Results, batch: int) -> list[Figures]:
    """A batch's rows; of those that differ in their threads alone, the fastest."""
    best: dict[str, Figures] = {}
    for cell in results.at(results.threads, batch):
        known = best.setdefault(_label(cell), cell)
        if statistics.median(cell["seconds"]) < statistics.median(known["seconds"]):
            best[_label(cell)] = cell
    return list(best.values())


def _options(row: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the row another way to decode."""
    return {name: value for name, value in row["options"].items() if name != "threads"}


def _name(row: Mapping[str, Any]) -> str:
    return Row(row["engine"], row["role"], row["dtype"], _options(row)).name


def _annotate(axes: Any, text: str, point: tuple[float, float]) -> None:
    """Aslant, so that points beside each other keep their words apart."""
    place: dict[str, Any] = {"xytext": (1, 5), "textcoords": "offset points", "rotation": 50}
    axes.annotate(text, point, fontsize="x-small", ha="left", va="bottom", **place)


def _style(results: Results, cell: Figures) -> dict[str, Any]:
    """The same for a row in every plot, and alike for its precisions."""
    rows = [other["row"] for other in results.cells]
    rows.sort(key=lambda row: (row["engine"], row["role"]) not in _COMPARED)
    names = list(dict.fromkeys(_name(row) for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    colour, dtype = names.index(_name(cell["row"])), dtypes.index(cell["row"]["dtype"])
    marker = _MARKERS[(dtype + colour // _NUM_COLOURS) % len(_MARKERS)]
    line = _LINES[dtype % len(_LINES)]
    return {"color": f"C{colour % _NUM_COLOURS}", "linestyle": line, "marker": marker}


def _label(cell: Figures) -> str:
    return f"{_name(cell['row'])}, {cell['row']['dtype']}"


def main(argv: Sequence[str] | None = None) -> int:
    paths = sys.argv[1:] if argv is None else argv
    if len(paths) != 1:
        return refuse(_NAME, "expected one argument, RESULT.json")
    try:
        for path in draw(Results.read(Path(paths[0])), paths[0].removesuffix(".json")):
            print(path)
    except UserError as error:
        return refuse(_NAME, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
