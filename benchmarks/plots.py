"""Pictures of all comparisons: of a run, of systems in this process, of a reproduction.

python -m benchmarks.plots benchmarks/results/NAME.json draws those of a run.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.results import Figures, Results, on_result, ratios
from benchmarks.systems import EXACT, GREEDY, RELAXED, SCRIPTED, System
from specdec_plugins.errors import UserError

Rows = Sequence[dict[str, Any]]  # of a comparison's or a reproduction's record
Draw = Callable[[Any, Any], bool]  # a subject on matplotlib's axes; False = nothing to show

_NUM_BINS = 6  # of source lengths
# A colour says which row, as far as colours go; line and marker say in which precision.
_NUM_COLOURS, _LINES, _MARKERS = 10, ("-", "--", ":", "-."), "os^v"
_COMPARED = (("fairseq", GREEDY), ("ctranslate2", GREEDY), ("ours", GREEDY), ("ours", EXACT))

# Readable for the colour-blind (Okabe and Ito 2008), each with its own hatch besides.
_BY_GUARANTEE = {
    "greedy": ("#0072B2", ""),
    "distribution": ("#E69F00", "//"),
    "none": ("#999999", ".."),
}
_ABOVE = (0.5, 1.0)  # the axes, where no bar and no label is
_PARTS = (("drafter", "#D55E00"), ("verifier", "#0072B2"), ("rest", "#CCCCCC"))


def pyplot() -> ModuleType:
    """matplotlib.pyplot, drawing to files only. Raises UserError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "A picture needs matplotlib; install it with the extra 'compare', or add --no-picture."
        ) from error
    # fairseq turns on everybody's log, and fonts are many.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # The same figures give the same file.
    plt.rcParams["svg.hashsalt"] = "specdec"
    return plt


def draw(results: Results, output: str) -> list[Path]:
    """Write `OUTPUT.<plot>.png` for every plot that the run has figures for."""
    beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    return _draw(PLOTS, results, f"{output}.{{}}.png", (9.0, 4.4), beside)


def draw_reproduction(rows: Rows, output: str) -> list[Path]:
    """Write `OUTPUT.<plot>.svg` for every plot."""
    return _draw(REPRODUCTION_PLOTS, rows, f"{output}.{{}}.svg", (7.2, 4.4), {})


def _draw(
    plots: Mapping[str, Draw],
    subject: Any,
    path: str,
    size: tuple[float, float],
    legend: Mapping[str, Any],
) -> list[Path]:
    """path: with {} for the name of the plot."""
    plt = pyplot()
    written = []
    for name, plot in plots.items():
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        if plot(subject, axes):
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small", **legend)
            written.append(Path(path.format(name)))
            undated = {"Date": None} if path.endswith(".svg") else {}
            figure.savefig(written[-1], dpi=120, metadata=undated)
        plt.close(figure)
    return written


def draw_comparison(rows: Rows, path: Path) -> None:
    """Write a PNG: each system's speed to the left, the parts of its time to the right."""
    plt = pyplot()
    figure, (speed, time) = plt.subplots(
        1, 2, sharey=True, figsize=(12, 1.2 + 0.34 * len(rows)), layout="constrained"
    )
    places = range(len(rows))
    _draw_speed(speed, rows)
    _draw_parts(time, rows)
    speed.set_yticks(places, [row["name"] for row in rows])
    speed.invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_speed(axes: Any, rows: Rows) -> None:
    seen: set[str] = set()
    for place, row in enumerate(rows):
        middle = statistics.median(row["speed"])
        color, hatch = _BY_GUARANTEE[row["guarantee"]]
        label = None if row["guarantee"] in seen else row["guarantee"]
        seen.add(row["guarantee"])
        whiskers = [[middle - min(row["speed"])], [max(row["speed"]) - middle]]
        axes.barh(place, middle, xerr=whiskers, color=color, hatch=hatch, label=label)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("speed, times greedy decoding with the same verifier")
    axes.legend(title="guarantee", loc="lower center", bbox_to_anchor=_ABOVE, ncols=3)


def _draw_parts(axes: Any, rows: Rows) -> None:
    left = [0.0] * len(rows)
    middles = [
        [1000 * statistics.median(v) for v in (r["draft"], r["verify"], r["total"])] for r in rows
    ]
    widths = {
        "drafter": [draft for draft, _, _ in middles],
        "verifier": [verify for _, verify, _ in middles],
        "rest": [max(total - draft - verify, 0.0) for draft, verify, total in middles],
    }
    for part, color in _PARTS:
        axes.barh(range(len(rows)), widths[part], left=left, color=color, label=part)
        left = [a + b for a, b in zip(left, widths[part], strict=True)]
    axes.set_xlabel("ms a sentence")
    axes.legend(title="time", loc="lower center", bbox_to_anchor=_ABOVE, ncols=3)


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
    """The systems that a plot with one line each has room for."""
    rows = [(cell, cell["row"]) for cell in _at(results, batch)]
    return [c for c, row in rows if (row["engine"], row["role"]) in _COMPARED and not _options(row)]


def _at(results: Results, batch: int) -> list[Figures]:
    """A batch's systems; of those that differ in their threads alone, the fastest."""
    best: dict[str, Figures] = {}
    for cell in results.at(results.threads, batch):
        known = best.setdefault(_label(cell), cell)
        if statistics.median(cell["seconds"]) < statistics.median(known["seconds"]):
            best[_label(cell)] = cell
    return list(best.values())


def _options(row: Mapping[str, Any]) -> dict[str, Any]:
    """What makes it another system."""
    return {name: value for name, value in row["options"].items() if name != "threads"}


def _name(row: Mapping[str, Any]) -> str:
    return System(row["engine"], row["role"], row["dtype"], _options(row)).name


def _annotate(axes: Any, text: str, point: tuple[float, float]) -> None:
    """Aslant, so that points beside each other keep their words apart."""
    place: dict[str, Any] = {"xytext": (1, 5), "textcoords": "offset points", "rotation": 50}
    axes.annotate(text, point, fontsize="x-small", ha="left", va="bottom", **place)


def _style(results: Results, cell: Figures) -> dict[str, Any]:
    """The same for a system in every plot, and alike for its precisions."""
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


def _accepted_by_block_size(rows: Rows, axes: Any) -> bool:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows[2:]:
        point = row["point"]
        label = "exact" if point["beta"] == 1 else f"beta {point['beta']}, tau {point['tau']:g}"
        lines.setdefault(label, []).append((point["block_size"], row["accepted_tokens"]))
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    top = max((accepted for points in lines.values() for _, accepted in points), default=1.0)
    # Room above, or lines that all are level would lie on the frame.
    axes.set(xlabel="block size k", ylabel="accepted tokens a round", ylim=(0, 1.1 * top))
    return True


def _quality_by_speed(rows: Rows, axes: Any) -> bool:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        point = row["point"]
        kind = row["name"] if point is None else f"beta {point['beta']}"
        groups.setdefault("exact" if kind == "beta 1" else kind, []).append(row)
    for label, group in groups.items():
        speeds = [row["speed_against_greedy"] for row in group]
        axes.scatter(speeds, [row["scores"]["BLEU"] for row in group], label=label)
    axes.set(xlabel="speed against greedy decoding", ylabel="BLEU")
    return True


def chosen_rows(rows: Rows) -> Rows:
    """Beam search, greedy decoding, and of each beta the longest block with the largest tau."""
    chosen: dict[int, dict[str, Any]] = {}
    for row in rows[2:]:
        beta = row["point"]["beta"]
        chosen[beta] = max(chosen.get(beta, row), row, key=_reach)
    return [*rows[:2], *chosen.values()]


def _reach(row: dict[str, Any]) -> tuple[int, float]:
    return row["point"]["block_size"], row["point"]["tau"]


def _speed_by_length(rows: Rows, axes: Any) -> bool:
    for row in chosen_rows(rows):
        parts = row["by_length"]
        spans = [f"{p['from']}-{p['to']}" if p["to"] else f"{p['from']}+" for p in parts]
        speeds = [part["speed_against_greedy"] for part in parts]
        axes.plot(spans, speeds, marker="o", label=row["name"])
    axes.set(xlabel="words of the source", ylabel="speed against greedy decoding", ylim=(0, None))
    return True


REPRODUCTION_PLOTS: dict[str, Draw] = {
    "accepted": _accepted_by_block_size,
    "quality": _quality_by_speed,
    "length": _speed_by_length,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 where the argument is no result."""

    def redraw(results: Results, path: str) -> None:
        print(*draw(results, path.removesuffix(".json")), sep="\n")

    return on_result("python -m benchmarks.plots", argv, redraw)


if __name__ == "__main__":
    sys.exit(main())
