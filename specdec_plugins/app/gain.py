"""What a drafter brings: accepted tokens, and speed against decoding without it."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_plugins.app.translator import SpeculativeTranslator

TIMED = 40  # maximum lines that `measure` times
_ROWS = 64  # sentences that it translates at once


def measure(
    bundle: Path, drafter: Path, lines: Sequence[str], device: str | None
) -> dict[str, float]:
    """A drafter's accepted tokens, and its speed and share of equal texts against greedy decoding.

    Accepted tokens are over all lines. Speed and equal texts are over the first `TIMED`, one at a
    time, alternating between both decoders, so that other load affects both alike.
    """
    common: dict[str, Any] = {"data": str(bundle), "scores": False, "device": device}
    load = SpeculativeTranslator.from_pretrained
    plain = load(**common, strategy="AR")
    common |= {"drafter": "block", "drafter_checkpoint": str(drafter), "batch": _ROWS}
    whole = load(**common, drafter_options={"confidence": 0})  # blocks that nothing shortens
    whole.translate(lines)
    fast = load(**common)
    speedup, same = _alternately(plain, fast, lines[:TIMED])
    return {
        "accepted": round(whole.stats.mean_accepted_tokens, 3),
        "speedup": round(speedup, 3),
        "same": round(same, 3),
    }


def _alternately(
    plain: SpeculativeTranslator, fast: SpeculativeTranslator, lines: Sequence[str], rows: int = 1
) -> tuple[float, float]:
    """Speed of the one against the other, `rows` lines at a time, and the share of equal texts."""
    seconds, same = {id(plain): 0.0, id(fast): 0.0}, 0
    for translator in (plain, fast):
        translator.translate(lines[:rows])
    for start in range(0, len(lines), rows):
        texts = []
        for translator in (plain, fast):
            began = time.perf_counter()
            made = translator.translate(lines[start : start + rows])
            seconds[id(translator)] += time.perf_counter() - began
            texts.append([str(text) for text in made])
        same += sum(map(operator.eq, *texts))
    return seconds[id(plain)] / max(1e-9, seconds[id(fast)]), same / len(lines)


def most_rows(bundle: Path, drafter: Path, lines: Sequence[str], device: str | None) -> int:
    """The largest power of two of rows, 1 at least, in which drafting is faster than not."""
    for rows in (2, 4, 8, 16, 32):
        common: dict[str, Any] = {"data": str(bundle), "scores": False, "device": device}
        common["batch"] = rows
        plain = SpeculativeTranslator.from_pretrained(**common, strategy="AR")
        own: dict[str, Any] = {"drafter": "block", "drafter_checkpoint": str(drafter)}
        fast = SpeculativeTranslator.from_pretrained(**common, **own)
        if _alternately(plain, fast, lines[: 4 * rows], rows)[0] <= 1:
            return rows // 2
    return 32


def pays(measured: Mapping[str, float]) -> bool:
    """Whether decoding with the drafter is faster than without."""
    return measured["speedup"] > 1
