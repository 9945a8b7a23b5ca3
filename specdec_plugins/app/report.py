"""What a run says about itself: a summary for people, a JSON line for programs."""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import EMPTY, Limits, Translation
from specdec_plugins.decoding.interfaces import Guarantee
from specdec_plugins.decoding.stats import DecodeStats

MIB = 2**20


def json_line(translation: Translation) -> str:
    """One JSON object, without a line end."""
    return json.dumps(translation.to_dict(), ensure_ascii=False)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least that share of values does not exceed."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def peak_memory(device: torch.device) -> int:
    """Bytes at most: of tensors on a GPU, else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


@dataclass
class Tally:
    """Counts of what was written."""

    sentences: int = 0
    empty: int = 0
    tokens: int = 0  # target tokens, forced ones included and eos not
    cut: int = 0  # sentences that reached the length limit
    latencies: list[float] = field(default_factory=list)  # seconds, of sentences that were decoded

    def add(self, translations: Sequence[Translation]) -> None:
        for translation in translations:
            self.sentences += 1
            self.empty += translation.finish_reason == EMPTY
            self.cut += translation.finish_reason == "length"
            self.tokens += len(translation.tokens)
            if translation.rounds:
                self.latencies.append(translation.seconds)


def summary(
    tally: Tally, stats: DecodeStats, settings: Settings, limits: Limits, seconds: float
) -> str:
    """A few lines about a run. seconds: wall-clock, of reading, decoding and writing."""
    lines = [_counts(tally), _speed(tally, seconds), _method(settings, limits)]
    if settings.strategy != "fairseq":
        lines += [_greedy(settings, limits)]
        lines += _acceptance(stats)
    total = sum(stats.seconds.values())
    if total:
        parts = sorted(stats.seconds.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {value / total:.0%}" for name, value in parts)
        lines.append(f"time: {shares}")
    return "\\n".join(lines)


def _counts(tally: Tally) -> str:
    notes = [f"{tally.empty} empty"] if tally.empty else []
    notes += [f"{tally.cut} cut at the length limit"] if tally.cut else []
    return f"{tally.sentences} sentences{f' ({chr(44).join(notes)})' if notes else ''}"


def _speed(tally: Tally, seconds: float) -> str:
    each = seconds / tally.sentences if tally.sentences else 0.0
    p50, p95 = percentile(tally.latencies, 0.5), percentile(tally.latencies, 0.95)
    rate = tally.tokens / seconds if seconds else 0.0
    return (
        f"{tally.tokens} tokens in {seconds:.2f} s: {rate:.1f} tokens/s, "
        f"{each:.4f} s a sentence; latency p50 {p50:.4f} s, p95 {p95:.4f} s"
    )


def _method(settings: Settings, limits: Limits) -> str:
    parts = [f"strategy {settings.strategy}, batch {settings.batch}, {settings.dtype}"]
    if settings.strategy == "fairseq":
        parts.append(f"beam {settings.beam}")
    if settings.drafts:
        parts.append(f"drafter {settings.drafter}, blocks of {limits.block_size}")
    return ", ".join(parts)


def _greedy(settings: Settings, limits: Limits) -> str:
    raise NotImplementedError


def _acceptance(stats: DecodeStats) -> list[str]:
    raise NotImplementedError
