"""What a run says about itself: a summary for people, a JSON line for programs."""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec_plugins.app.settings import Settings, choose_device
from specdec_plugins.app.types import EMPTY, Limits, Translation
from specdec_plugins.decoding.networks import best_set
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import Guarantee


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
            if translation.seconds:
                self.latencies.append(translation.seconds)


def summary(
    tally: Tally, stats: DecodeStats, settings: Settings, limits: Limits, seconds: float
) -> str:
    """A few lines about a run. seconds: wall-clock, of reading, decoding and writing."""
    lines = [_counts(tally), _speed(tally, seconds), _method(settings, limits)]
    if settings.strategy != "fairseq":
        lines += [_greedy(settings, limits), _rounds(stats)]
    if settings.strategy == "specdec" and stats.drafted:
        by_position = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
        lines.append(f"acceptance {stats.acceptance_rate:.3f}; by position: {by_position}")
    total = sum(stats.seconds.values())
    if total:
        parts = sorted(stats.seconds.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {value / total:.0%}" for name, value in parts)
        lines.append(f"time: {shares}")
    return "\n".join(lines)


def _counts(tally: Tally) -> str:
    notes = [f"{tally.empty} empty"] if tally.empty else []
    notes += [f"{tally.cut} cut at the length limit"] if tally.cut else []
    return f"{tally.sentences} sentences" + (f" ({', '.join(notes)})" if notes else "")


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
    if settings.exit_layer is not None:
        parts.append(f"decoder cut after layer {settings.exit_layer}")
    if settings.drafts:
        helped = settings.bigrams is not None and settings.drafter_options.get("bigram_weight") != 0
        drafter = settings.drafter + " with bigrams" * helped
        parts.append(f"drafter {drafter}, blocks of {limits.block_size}")
    if settings.drafter_dtype is not None:
        parts.append(f"drafting in {settings.drafter_dtype}")
    kernels = kernels_in_use(settings)
    return ", ".join([*parts, kernels] if kernels else parts)


def kernels_in_use(settings: Settings) -> str | None:
    """Whose products are computed, where there is a choice: on a CPU, in float32 and 8 bits."""
    on_cpu = choose_device(settings.device).type == "cpu"
    if not on_cpu or settings.strategy == "fairseq" or settings.dtype not in ("float32", "int8"):
        return None
    used = best_set(settings.quantised) if settings.kernels == "native" else None
    return f"native kernels ({used})" if used else "torch's kernels"


def _greedy(settings: Settings, limits: Limits) -> str:
    """Which greedy: bans and limits differ between decoders, so they are said."""
    limit = settings.max_len_b
    length = f"{settings.max_len_a:g} * source + {limit}" if settings.max_len_a else f"{limit}"
    if settings.strategy in ("drafter", "early-exit"):
        return f"unverified; at most {length} tokens"
    rule = settings.acceptance
    promise, free = {
        Guarantee.GREEDY: ("exactly the verifier's greedy output; greedy means", "plain argmax"),
        Guarantee.DISTRIBUTION: (_sampling(settings), "no bans"),
        Guarantee.NONE: (
            "may differ from the verifier's greedy output; greedy means",
            "plain argmax",
        ),
    }[rule.guarantee(settings.beta)]
    tolerance = f" (beta {settings.beta}, tau {settings.tau:g})" if settings.beta > 1 else ""
    if settings.beta > 1 and settings.tau == 0:
        tolerance = f" (beta {settings.beta}, but tau 0 tolerates nothing but ties; try --tau 1)"
    bans = [f"no end before {settings.minimum} tokens"] if settings.minimum else []
    bans += ["no <pad>"] if settings.ban_pad else []
    return (
        f"rule {settings.rule_name}{tolerance}: {promise} "
        f"{', '.join(bans) or free}, at most {length} tokens"
        f"{f' ({limits.target} positions)' if limits.target < limit else ''}"
    )


def _sampling(settings: Settings) -> str:
    return (
        f"samples of exactly the verifier's distribution (temperature {settings.temperature:g}, "
        f"top-k {settings.top_k}, top-p {settings.top_p:g}, seed {settings.seed}) with"
    )


def _rounds(stats: DecodeStats) -> str:
    per_row = stats.rounds / stats.rows if stats.rows else 0.0
    return (
        f"mean accepted tokens {stats.mean_accepted_tokens:.4f} (tokens a round, the last one of "
        "each counted and the end of sentence not; "
        f"{stats.mean_emitted_tokens:.4f} with it); {stats.rounds} rounds, {per_row:.2f} a sentence"
    )
