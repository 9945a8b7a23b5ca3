"""Counters and histograms for Prometheus; the site of the documentation lists them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from specdec_plugins.decoding.requests import RowEvent

# If this names a folder, prometheus-client keeps all values in files there, and the processes that
# share it count as one server.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_SUM: Final = "livesum"  # gauges are summed over live processes

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32)
_MEANS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 15, 20, 25)


class Metrics:
    """One server's metrics, in their own registry. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        mine: Any = {"namespace": "specdec", "registry": self.registry}
        self._counter: Callable[..., Counter] = partial(Counter, **mine)
        self._gauge: Callable[..., Gauge] = partial(Gauge, **mine, multiprocess_mode=_SUM)
        self._histogram: Callable[..., Histogram] = partial(Histogram, **mine)
        self._add_requests()
        self._add_speculation()

    def _add_requests(self) -> None:
        self.requests = self._counter(
            "requests", "Requests by route and code; 499: the client hung up.", ("route", "code")
        )
        text = "Requests without a translation, by kind of error; cancelled: the client hung up."
        self.failures = self._counter("request_failures", text, ("kind",))
        text = "Seconds from a request's first byte until its answer was sent."
        self.request_seconds = self._histogram(
            "request_seconds", text, ("route",), buckets=_SECONDS
        )
        self.active = self._gauge("requests_active", "Requests in progress.")
        self.queue_size = self._gauge("queue_size", "Sentences waiting in the queue.")
        text = "Seconds from when a sentence was accepted until it joined the batch."
        self.queue_seconds = self._histogram("queue_seconds", text, buckets=(0.0, *_SECONDS))
        self.batch_rows = self._gauge("batch_rows", "Sentences decoding now.")
        text = "Sentences decoded together in a round."
        self.batch_size = self._histogram("batch_size", text, buckets=_ROWS)
        text = "Engine seconds by part: encode, draft (drafter), verify (verifier), rest."
        self.part_seconds = self._counter("part_seconds", text, ("part",))
        self.tokens = self._counter("tokens", "Target tokens decoded, ends of sentences included.")
        self.sentences = self._counter("sentences", "Sentences answered.")
        text = "Sentences cut at their length limit (truncated) or copied (unreadable)."
        self.incomplete = self._counter("incomplete_sentences", text, ("kind",))
        text = "Decoding seconds of a sentence divided by its tokens, without time in the queue."
        self.token_seconds = self._histogram("token_seconds", text, buckets=_TOKEN_SECONDS)

    def _add_speculation(self) -> None:
        self.rounds = self._counter("rounds", "Rounds, counted by sentence, plain steps included.")
        self.drafted = self._counter("drafted_tokens", "Tokens proposed.")
        self.accepted = self._counter("accepted_tokens", "Proposed tokens that were kept.")
        text = "Tokens without a verifier pass of their own: tokens minus rounds."
        self.skipped = self._counter("skipped_tokens", text)
        text = "Accepted tokens per round, over rounds that drafted."
        self.accepted_round = self._histogram("accepted_tokens_per_round", text, buckets=_LENGTHS)
        text = "Mean tokens per round of a sentence, the verifier's own included."
        self.mean_tokens = self._histogram("tokens_per_round_of_a_sentence", text, buckets=_MEANS)
        text = "Rounds that drafted a position of the block, by position from 1."
        self.position_drafted = self._counter("position_drafted_tokens", text, ("position",))
        text = "Rounds that kept a position of the block, by position from 1."
        self.position_accepted = self._counter("position_accepted_tokens", text, ("position",))

    def render(self) -> bytes:
        """The text that Prometheus reads, for all processes that share their metrics."""
        folder = os.environ.get(SHARED_FOLDER)
        return generate_latest(_shared(folder) if folder else self.registry)

    def stepped(
        self, events: Sequence[RowEvent], num_rows: int, num_rounds: int, seconds: dict[str, float]
    ) -> None:
        """Record some rounds of `num_rows` rows; seconds: by part, of these rounds."""
        self.batch_rows.set(num_rows)
        for _ in range(num_rounds):
            self.batch_size.observe(num_rows)
        for part, value in seconds.items():
            self.part_seconds.labels(part).inc(value)
        good = [event for event in events if event.emitted_ids]  # not what could not be decoded
        num_tokens = sum(len(event.emitted_ids) for event in good)
        self.rounds.inc(len(good))
        self.tokens.inc(num_tokens)
        self.skipped.inc(num_tokens - len(good))
        drafts = [(len(e.draft_ids), e.num_accepted) for e in good if e.draft_ids]
        if drafts:
            self._drafted(drafts)

    def _drafted(self, rounds: Sequence[tuple[int, int]]) -> None:
        """rounds: how many tokens each drafted, and how many of them were kept."""
        self.drafted.inc(sum(drafted for drafted, _ in rounds))
        self.accepted.inc(sum(accepted for _, accepted in rounds))
        for _, accepted in rounds:
            self.accepted_round.observe(accepted)
        for counter, side in ((self.position_drafted, 0), (self.position_accepted, 1)):
            most = max(counts[side] for counts in rounds)
            for position in range(1, most + 1):
                num = sum(counts[side] >= position for counts in rounds)
                counter.labels(position).inc(num)

    def answered(self, num_tokens: int, num_rounds: int, seconds: float) -> None:
        """Record a sentence whose translation was sent; seconds: of its decoding."""
        self.sentences.inc()
        self.mean_tokens.observe(num_tokens / num_rounds)
        self.token_seconds.observe(seconds / num_tokens)


def _shared(folder: str) -> CollectorRegistry:
    """The sums over the processes that keep their metrics in this folder."""
    for path in Path(folder).glob(f"gauge_{_SUM}_*.db"):
        # A dead process's counts stay; its gauges go.
        number = int(path.stem.rpartition("_")[2])
        if not Path(f"/proc/{number}").exists():
            mark_process_dead(number, folder)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)
    return registry
