"""The table of ways as a picture: how fast each is, and where its time goes."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.side_by_side import Figures
from specdec_plugins.errors import UserError

# Readable for the colour-blind (Okabe and Ito 2008), each with its own hatch besides.
_BY_GUARANTEE = {
    "greedy": ("#0072B2", ""),
    "distribution": ("#E69F00", "//"),
    "none": ("#999999", ".."),
}
_ABOVE = (0.5, 1.0)  # the axes, where no bar and no label is
_PARTS = (("drafter", "#D55E00"), ("verifier", "#0072B2"), ("rest", "#CCCCCC"))


def plotting() -> ModuleType:
    """matplotlib.pyplot, drawing to files only. Raises UserError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "A picture needs matplotlib; install it with the extra 'compare', or add --no-picture."
        ) from error
    # fairseq lets everybody talk, and fonts are many.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw(rows: Sequence[Figures], path: Path) -> None:
    """Write a PNG with a bar a way: to the left its speed, to the right the parts of its time."""
    plt = plotting()
    figure, (speed, time) = plt.subplots(
        1, 2, sharey=True, figsize=(12, 1.2 + 0.34 * len(rows)), layout="constrained"
    )
    places = range(len(rows))
    _draw_speed(speed, rows)
    _draw_parts(time, rows)
    speed.set_yticks(places, [row.name for row in rows])
    speed.invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_speed(axes: Any, rows: Sequence[Figures]) -> None:
    seen: set[str] = set()
    for place, row in enumerate(rows):
        middle = statistics.median(row.speed)
        color, hatch = _BY_GUARANTEE[row.guarantee]
        label = None if row.guarantee in seen else row.guarantee
        seen.add(row.guarantee)
        whiskers = [[middle - min(row.speed)], [max(row.speed) - middle]]
        axes.barh(place, middle, xerr=whiskers, color=color, hatch=hatch, label=label)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("speed, times greedy decoding with the same verifier")
    axes.legend(title="guarantee", loc="lower center", bbox_to_anchor=_ABOVE, ncols=3)


def _draw_parts(axes: Any, rows: Sequence[Figures]) -> None:
    left = [0.0] * len(rows)
    middles = [[1000 * statistics.median(v) for v in (r.draft, r.verify, r.total)] for r in rows]
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
