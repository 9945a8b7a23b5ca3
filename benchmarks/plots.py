"""Plots of all comparisons: of a run, of systems in this process, of a reproduction."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.reports import Record
from benchmarks.results import Results, speed_ups
from benchmarks.systems import EXACT, GREEDY, RELAXED, SCRIPTED, System
from specdec_plugins.errors import UserError

Rows = Sequence[Record]  # of a comparison's or a reproduction's record
Draw = Callable[[Any, Any], None]  # a subject on matplotlib's axes; nothing without data
Style = Mapping[str, Any]  # of a line, under matplotlib's names
Point = tuple[str, Any, float]  # label of its line, x, y

_NUM_BINS = 6  # of source lengths
# The colour encodes the row, as far as colours suffice; line and marker encode the precision.
_NUM_COLOURS, _LINES, _MARKERS = 10, ("-", "--", ":", "-."), "os^v"
_COMPARED = (("fairseq", GREEDY), ("ctranslate2", GREEDY), ("ours", GREEDY), ("ours", EXACT))


def pyplot() -> ModuleType:
    """matplotlib.pyplot, drawing to files only. Raises UserError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "A picture needs matplotlib; install it with the extra 'compare'."
        ) from error
    # fairseq turns on all logging, and matplotlib logs many fonts.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # The same data give the same file.
    plt.rcParams["svg.hashsalt"] = "specdec"
    return plt


def draw(results: Results, output: str) -> list[Path]:
    """Write `OUTPUT.<plot>.png` for every plot that the run has data for."""
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
        plot(subject, axes)
        if axes.has_data():
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small", **legend)
            written.append(Path(path.format(name)))
            undated = {"Date": None} if path.endswith(".svg") else {}
            figure.savefig(written[-1], dpi=120, metadata=undated)
        plt.close(figure)
    return written


def _plot(
    axes: Any, points: Iterable[Point], styles: Mapping[str, Style] = {}, **usual: Any
) -> None:
    """Join points of one label by a line. usual: the style of labels that have none."""
    lines: dict[str, list[tuple[Any, float]]] = {}
    for label, x, y in points:
        lines.setdefault(label, []).append((x, y))
    for label, places in lines.items():
        style = styles.get(label, {"marker": "o", **usual})
        axes.plot(*zip(*places, strict=True), label=label, **style)


def _latency_by_length(results: Results, axes: Any) -> None:
    points = [
        (_label(cell), length, time)
        for cell in _compared(results, batch=1)
        for length, time in _binned(cell["by_length"])
    ]
    _plot(axes, points, _styles(results))
    axes.set(title=f"Latency, batch 1, threads {results.threads}", xlabel="source tokens")
    axes.set(ylabel="milliseconds a sentence", ylim=(0, None))


def _binned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Mean length and median milliseconds of bins that hold equally many sentences."""
    ordered = sorted(points)
    size = max(1, -(-len(ordered) // _NUM_BINS))
    bins = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return [
        (statistics.mean(n for n, _ in part), 1000 * statistics.median(s for _, s in part))
        for part in bins
    ]


def _speed_by_batch(results: Results, axes: Any) -> None:
    batches = sorted({batch for threads, batch in results.settings if threads == results.threads})
    if len(batches) == 1:
        return
    points = [
        (_label(cell), batch, statistics.median(cell["tokens_a_second"]))
        for batch in batches
        for cell in _compared(results, batch)
    ]
    _plot(axes, points, _styles(results))
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, labels=batches)
    axes.set(title=f"Speed, threads {results.threads}", xlabel="batch size, sentences")
    axes.set(ylabel="tokens a second", ylim=(0, None))


def _acceptance_by_position(results: Results, axes: Any) -> None:
    points = [
        (_label(cell), position, share)
        for cell in _at(results, batch=1)
        for position, share in enumerate(cell["acceptance_by_position"], 1)
    ]
    _plot(axes, points, _styles(results))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title="Acceptance, batch 1", xlabel="position in the draft")
    axes.set(ylabel="share of rounds that accepted it", ylim=(0, 1))


def _speed_against_bleu(results: Results, axes: Any) -> None:
    baseline = results.fastest((results.threads, 1), "fairseq", GREEDY, "float32")
    styles, points = _styles(results), []
    for cell in _told_apart(results) if baseline else []:
        row, label = cell["row"], _label(cell)
        x, y = statistics.median(speed_ups(cell, baseline)), cell["bleu"]
        if row["engine"] == "ours" and row["role"] in (EXACT, RELAXED):
            joined = f"ours exact to relaxed, {row['dtype']}"
            styles.setdefault(joined, styles.get(f"ours {EXACT}, {row['dtype']}", styles[label]))
            label, words = joined, ", ".join(f"{k} {v:g}" for k, v in _options(row).items())
            above = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
            axes.annotate(words, (x, y), fontsize="x-small", **above)
        points.append((label, x, y))
    _plot(axes, points, styles)
    axes.margins(0.15)  # for the labels of the outer points
    axes.set(title=f"Speed and quality, batch 1, threads {results.threads}", ylabel="BLEU")
    axes.set_xlabel("speed against fairseq greedy, float32")


def _told_apart(results: Results) -> list[Record]:
    """The systems with a BLEU of their own: exact ones agree, so the fastest represents them all.

    One for each precision.
    """
    cells = [cell for cell in _at(results, batch=1) if cell["row"]["role"] != SCRIPTED]
    fastest: dict[Any, Record] = {}
    for cell in cells:
        is_exact = (cell["row"]["engine"], cell["row"]["role"]) == ("ours", EXACT)
        key = cell["row"]["dtype"] if is_exact else _label(cell)
        if statistics.median(speed_ups(cell, fastest.setdefault(key, cell))) > 1:
            fastest[key] = cell
    return [cell for cell in fastest.values() if cell["bleu"] is not None]


PLOTS: dict[str, Draw] = {
    "latency-by-length": _latency_by_length,
    "speed-by-batch": _speed_by_batch,
    "acceptance-by-position": _acceptance_by_position,
    "speed-against-bleu": _speed_against_bleu,
}


def _compared(results: Results, batch: int) -> list[Record]:
    """The systems for plots that have room for a few lines."""
    rows = [(cell, cell["row"]) for cell in _at(results, batch)]
    return [c for c, row in rows if (row["engine"], row["role"]) in _COMPARED and not _options(row)]


def _at(results: Results, batch: int) -> list[Record]:
    """The systems at a batch size; of those that differ only in threads, the fastest."""
    best: dict[str, Record] = {}
    for cell in results.at(results.threads, batch):
        known = best.setdefault(_label(cell), cell)
        if statistics.median(cell["seconds"]) < statistics.median(known["seconds"]):
            best[_label(cell)] = cell
    return list(best.values())


def _options(row: Record) -> dict[str, Any]:
    """The options that distinguish a system."""
    return {name: value for name, value in row["options"].items() if name != "threads"}


def _name(row: Record) -> str:
    return System(row["engine"], row["role"], row["dtype"], _options(row)).name


def _label(cell: Record) -> str:
    return f"{_name(cell['row'])}, {cell['row']['dtype']}"


def _styles(results: Results) -> dict[str, Style]:
    """Styles by label: the same in every plot, and similar for a system's precisions."""
    rows = [cell["row"] for cell in results.cells]
    ordered = sorted(rows, key=lambda row: (row["engine"], row["role"]) not in _COMPARED)
    names = list(dict.fromkeys(map(_name, ordered)))
    dtypes = list(dict.fromkeys(row["dtype"] for row in ordered))
    styles: dict[str, Style] = {}
    for cell in results.cells:
        colour, dtype = names.index(_name(cell["row"])), dtypes.index(cell["row"]["dtype"])
        styles[_label(cell)] = {
            "color": f"C{colour % _NUM_COLOURS}",
            "linestyle": _LINES[dtype % len(_LINES)],
            "marker": _MARKERS[(dtype + colour // _NUM_COLOURS) % len(_MARKERS)],
        }
    return styles


def _accepted_by_block_size(rows: Rows, axes: Any) -> None:
    points = []
    for row in sorted(rows[2:], key=lambda row: row["point"]["block_size"]):
        size, beta, tau = (row["point"][name] for name in ("block_size", "beta", "tau"))
        label = "exact" if beta == 1 else f"beta {beta}, tau {tau:g}"
        points.append((label, size, row["accepted_tokens"]))
    _plot(axes, points)
    # Leave room above, or level lines would coincide with the frame.
    top = 1.1 * max(accepted for _, _, accepted in points)
    axes.set(xlabel="block size k", ylabel="accepted tokens a round", ylim=(0, top))


def _quality_by_speed(rows: Rows, axes: Any) -> None:
    points = []
    for row in rows:
        label = f"beta {row['point']['beta']}" if row["point"] else row["name"]
        label = "exact" if label == "beta 1" else label
        points.append((label, row["speed_against_greedy"], row["scores"]["BLEU"]))
    _plot(axes, points, linestyle="")
    axes.set(xlabel="speed against greedy decoding", ylabel="BLEU")


def chosen_rows(rows: Rows) -> Rows:
    """Beam search, greedy decoding, and for each beta the longest block with the largest tau."""
    ordered = sorted(rows[2:], key=lambda row: (row["point"]["block_size"], row["point"]["tau"]))
    return [*rows[:2], *{row["point"]["beta"]: row for row in ordered}.values()]


def _speed_by_length(rows: Rows, axes: Any) -> None:
    parts = [(row["name"], part) for row in chosen_rows(rows) for part in row["by_length"]]
    _plot(axes, ((name, span(part), part["speed_against_greedy"]) for name, part in parts))
    axes.set(xlabel="source words", ylabel="speed against greedy decoding", ylim=(0, None))


def span(part: Record, between: str = "-", behind: str = "+") -> str:
    """A range of source words."""
    return f"{part['from']}{between}{part['to']}" if part["to"] else f"{part['from']}{behind}"


REPRODUCTION_PLOTS: dict[str, Draw] = {
    "accepted": _accepted_by_block_size,
    "quality": _quality_by_speed,
    "length": _speed_by_length,
}
