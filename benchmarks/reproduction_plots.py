"""The reproduction's figures as pictures: SVG files beside its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduction import chosen_rows

Rows = Sequence[dict[str, Any]]


def draw(record: dict[str, Any], output: str) -> list[Path]:
    """Write ``OUTPUT.<plot>.svg`` for every plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # The same figures give the same file.
    pyplot.rcParams["svg.hashsalt"] = "specdec"
    written = []
    for name, plot in PLOTS.items():
        figure, axes = pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")
        plot(record["rows"], axes)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        path = Path(f"{output}.{name}.svg")
        figure.savefig(path, metadata={"Date": None})
        written.append(path)
        pyplot.close(figure)
    return written


def _accepted_by_block_size(rows: Rows, axes: Any) -> None:
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


def _quality_by_speed(rows: Rows, axes: Any) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        point = row["point"]
        kind = row["name"] if point is None else f"beta {point['beta']}"
        groups.setdefault("exact" if kind == "beta 1" else kind, []).append(row)
    for label, group in groups.items():
        speeds = [row["speed_against_greedy"] for row in group]
        axes.scatter(speeds, [row["scores"]["BLEU"] for row in group], label=label)
    axes.set(xlabel="speed against greedy decoding", ylabel="BLEU")


def _speed_by_length(rows: Rows, axes: Any) -> None:
    for row in chosen_rows(rows):
        parts = row["by_length"]
        spans = [f"{p['from']}-{p['to']}" if p["to"] else f"{p['from']}+" for p in parts]
        speeds = [part["speed_against_greedy"] for part in parts]
        axes.plot(spans, speeds, marker="o", label=row["name"])
    axes.set(xlabel="words of the source", ylabel="speed against greedy decoding", ylim=(0, None))


PLOTS: dict[str, Callable[[Rows, Any], None]] = {
    "accepted": _accepted_by_block_size,
    "quality": _quality_by_speed,
    "length": _speed_by_length,
}
