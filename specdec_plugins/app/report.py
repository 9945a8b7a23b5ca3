"""Reports about a run: its summary, and lines that are not translated whole."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy
import torch

from specdec_plugins.app.planning import Translated
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.types import EMPTY, UNREADABLE, Limits, Translation
from specdec_plugins.decoding.contract import Guarantee
from specdec_plugins.decoding.networks import best_set
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.formats.bundle import PRETRAINED


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank: the smallest value that at least that share of values does not exceed.

    values: a list, or a counter of values.
    """
    counts = sorted(Counter(values).items())
    reached = numpy.cumsum([count for _, count in counts])
    return counts[numpy.searchsorted(reached, share * reached[-1])][0] if counts else 0.0


def peak_memory(device: torch.device) -> int:
    """Peak bytes: of tensors on a GPU, else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


@dataclass
class Tally:
    reasons: Counter[str] = field(default_factory=Counter)  # sentences by finish reason
    tokens: int = 0  # target tokens, forced ones included and eos not
    # Seconds of sentences that were decoded, in three digits, so that millions take no memory.
    latencies: Counter[float] = field(default_factory=Counter)

    def add(self, translations: Sequence[Translation]) -> None:
        self.reasons.update(t.finish_reason for t in translations)
        self.tokens += sum(len(t.tokens) for t in translations)
        self.latencies.update(float(f"{t.seconds:.2e}") for t in translations if t.seconds)

    @property
    def sentences(self) -> int:
        return self.reasons.total()


_WARNINGS = 10  # of each kind, one a line; further lines are only counted
_CUT = "cut at the length limit, so the end is missing"
_LOOPS = "cut as it repeats itself, so the end is missing"
_COPIED = "copied, in whole or in part, as the model cannot read all of it"
_EMPTY = "left empty, as the model's scores are not numbers; try --dtype float32"


@dataclass
class Flaws:
    """Lines that are not translated whole: warns of the first, and counts all."""

    say: Callable[[str], object]
    lines: dict[str, list[int]] = field(default_factory=dict)  # the first numbers of each kind
    counts: Counter[str] = field(default_factory=Counter)  # by kind

    def add(self, number: int, where: str, done: Translated | Translation) -> None:
        """A line, by its number and as messages call it."""
        for kind, is_so in (
            (_EMPTY, done.has_failed),
            (_COPIED, bool(done.fault)),
            (_CUT, done.is_cut and not done.repeats),
            (_LOOPS, done.repeats),
        ):
            self.counts[kind] += is_so
            if is_so and self.counts[kind] <= _WARNINGS:
                self.lines.setdefault(kind, []).append(number)
                why = f"{done.fault} It " if kind is _COPIED else ""
                self.say(f"{where}: {why}is {kind}.")

    def sum_up(self) -> None:
        """Say which lines had flaws, if any."""
        for kind, numbers in self.lines.items():
            count = self.counts[kind]
            more = f" and {count - len(numbers)} more" if count > len(numbers) else ""
            self.say(f"line{'s' * (count > 1)} {', '.join(map(str, numbers))}{more}: {kind}.")


def summary(
    tally: Tally, stats: DecodeStats, settings: Settings, limits: Limits, seconds: float
) -> str:
    """A few lines about a run. seconds: wall-clock, of reading, decoding and writing."""
    lines = [_counts(tally), _speed(tally, seconds), _decoding(settings, limits)]
    lines += [_greedy(settings, limits), _rounds(stats)]
    if settings.strategy == "specdec" and stats.drafted:
        by_position = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
        lines.append(f"acceptance {stats.acceptance_rate:.3f}; by position: {by_position}")
    if total := sum(stats.seconds.values()):
        parts = sorted(stats.seconds.items(), key=lambda item: -item[1])  # the longest first
        lines.append(f"time: {', '.join(f'{name} {part / total:.0%}' for name, part in parts)}")
    return "\n".join(lines)


def _counts(tally: Tally) -> str:
    told = {EMPTY: "empty", "length": "cut at the length limit", "error": "failed"}
    told |= {UNREADABLE: "copied", "repetition": "cut as they repeat themselves"}
    counts = tally.reasons
    notes = [f"{counts[reason]} {words}" for reason, words in told.items() if counts[reason]]
    return many(tally.sentences, "sentence") + (f" ({', '.join(notes)})" if notes else "")


def many(number: int, what: str) -> str:
    """A number of them, in words."""
    return f"{number} {what}{'s' * (number != 1)}"


def _speed(tally: Tally, seconds: float) -> str:
    each = seconds / tally.sentences if tally.sentences else 0.0
    p50, p95 = percentile(tally.latencies, 0.5), percentile(tally.latencies, 0.95)
    rate = tally.tokens / seconds if seconds else 0.0
    return (
        f"{many(tally.tokens, 'token')} in {seconds:.2f} s: {rate:.1f} tokens/s, "
        f"{each:.4f} s a sentence; latency p50 {p50:.4f} s, p95 {p95:.4f} s"
    )


def _decoding(settings: Settings, limits: Limits) -> str:
    parts = [f"strategy {settings.strategy}, batch {settings.batch}, {settings.dtype}"]
    if settings.exit_layer is not None:
        parts.append(f"decoder cut after layer {settings.exit_layer}")
    if settings.drafts:
        parts.append(f"drafter {settings.drafter}, blocks of {limits.block_size}")
    if settings.drafts and (dtype := settings.drafting_dtype) != settings.dtype:
        parts.append(f"drafting in {dtype}")
    kernels = kernels_in_use(settings)
    return ", ".join([*parts, kernels] if kernels else parts)


def kernels_in_use(settings: Settings) -> str | None:
    """Which kernels compute products, if there is a choice: on a CPU, in float32 and 8 bits."""
    if not settings.on_cpu or settings.dtype not in ("float32", "int8"):
        return None
    used = best_set() if settings.kernels == "native" else None
    return f"native kernels ({used})" if used else "torch's kernels"


def _greedy(settings: Settings, limits: Limits) -> str:
    """What greedy means here; bans and limits differ between decoders."""
    factor, limit = settings.max_lens
    length = f"{factor:g} * source + {limit}" if factor else f"{limit}"
    if not settings.is_bounded:
        length += " or 3 * source"
    if settings.strategy in ("drafter", "early-exit"):
        return f"unverified; at most {length} tokens"
    asked = settings.decode_params(1).beam
    rule = f"rule {settings.rule_name}{_tolerance(settings)}"
    promise, free = {
        Guarantee.GREEDY: ("exactly the verifier's greedy output; greedy means", "plain argmax"),
        Guarantee.DISTRIBUTION: (_sampling(settings), "no bans"),
        Guarantee.NONE: (
            "may differ from the verifier's greedy output; greedy means",
            "plain argmax",
        ),
    }[settings.acceptance.guarantee(settings.beta)]
    if asked is not None:
        rule = f"beam of {asked.size}, {asked.finishing} finishing"
        promise = f"scores are divided by length ** {asked.length_penalty:g};"
    bans = [f"no end before {settings.minimum} tokens"] if settings.minimum else []
    bans += ["no <pad>"] if settings.ban_pad else []
    bans += ["no token that its generation config bans"] if settings.tokenizer == PRETRAINED else []
    return (
        f"{rule}: {promise} "
        f"{', '.join(bans) or free}, at most {length} tokens"
        f"{f' ({limits.target} positions)' if limits.target < limit else ''}"
    )


def _tolerance(settings: Settings) -> str:
    """What is accepted besides the verifier's own choice, in brackets; or nothing."""
    if settings.beta == 1:
        return ""
    if settings.tau == 0:
        return f" (beta {settings.beta}, but tau 0 accepts only ties; try --tau 1)"
    return f" (beta {settings.beta}, tau {settings.tau:g})"


def _sampling(settings: Settings) -> str:
    return (
        f"samples of exactly the verifier's distribution (temperature {settings.temperature:g}, "
        f"top-k {settings.top_k}, top-p {settings.top_p:g}, seed {settings.seed}) with"
    )


def _rounds(stats: DecodeStats) -> str:
    per_row = stats.rounds / stats.rows if stats.rows else 0.0
    return (
        f"mean accepted tokens {stats.mean_accepted_tokens:.4f} (tokens a round, the last of "
        "each round counted and the end of sentence not; "
        f"{stats.mean_emitted_tokens:.4f} with it); {many(stats.rounds, 'round')}, {per_row:.2f} a "
        "sentence"
    )
