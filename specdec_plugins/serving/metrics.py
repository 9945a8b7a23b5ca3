"""Counters and histograms for Prometheus; docs/serving.md explains every name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from specdec_plugins.decoding.types import RowEvent

# Where this names a folder, prometheus-client keeps all values in files there, and the processes
# that share it are one server.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_SUM: Final = "livesum"  # of gauges: over the processes that live

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32)
_MEANS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10, 15, 20, 25)


class Metrics:
    """One server's figures, in a registry of their own. Safe between threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests()
        self._batch()
        self._speculation()

    def _requests(self) -> None:
        to = self.registry
        self.requests = Counter(
            "specdec_requests", "Requests by route and status code.", ["route", "code"], registry=to
        )
        self.failures = Counter(
            "specdec_request_failures",
            "Requests without a translation, by kind of error.",
            ["kind"],
            registry=to,
        )
        self.request_seconds = Histogram(
            "specdec_request_seconds",
            "From a request's first byte until its answer was sent.",
            ["route"],
            buckets=_SECONDS,
            registry=to,
        )
        self.active = self._gauge("specdec_requests_active", "Requests under way.")

    def _batch(self) -> None:
        to = self.registry
        self.queue_size = self._gauge("specdec_queue_size", "Sentences that wait.")
        self.queue_seconds = Histogram(
            "specdec_queue_seconds",
            "From when a sentence was accepted until it joined the batch.",
            buckets=(0.0, *_SECONDS),
            registry=to,
        )
        self.batch_rows = self._gauge("specdec_batch_rows", "Sentences that decode now.")
        self.batch_size = Histogram(
            "specdec_batch_size", "Sentences in a round of the batch.", buckets=_ROWS, registry=to
        )
        self.part_seconds = Counter(
            "specdec_part_seconds",
            "Time of the engine by part: encode, draft (drafter), verify (verifier), rest.",
            ["part"],
            registry=to,
        )
        self.tokens = Counter(
            "specdec_tokens", "Target tokens decoded, ends of sentences included.", registry=to
        )
        self.sentences = Counter("specdec_sentences", "Sentences answered.", registry=to)
        self.token_seconds = Histogram(
            "specdec_token_seconds",
            "Decoding time of a sentence over its tokens, waiting left out.",
            buckets=_TOKEN_SECONDS,
            registry=to,
        )

    def _speculation(self) -> None:
        to = self.registry
        self.rounds = Counter("specdec_rounds", "Rounds, counted by sentence.", registry=to)
        self.drafted = Counter("specdec_drafted_tokens", "Tokens proposed.", registry=to)
        self.accepted = Counter(
            "specdec_accepted_tokens", "Proposed tokens that were kept.", registry=to
        )
        self.skipped = Counter(
            "specdec_skipped_tokens",
            "Tokens that needed no pass of the verifier of their own: tokens less rounds.",
            registry=to,
        )
        self.accepted_round = Histogram(
            "specdec_accepted_tokens_per_round",
            "Accepted tokens of one round, of rounds that drafted.",
            buckets=_LENGTHS,
            registry=to,
        )
        self.emitted_request = Histogram(
            "specdec_tokens_per_round_of_a_sentence",
            "Mean tokens a round of one sentence, the verifier's own counted.",
            buckets=_MEANS,
            registry=to,
        )
        self.position_drafted = Counter(
            "specdec_position_drafted_tokens",
            "Rounds that drafted this position of the block, from 1.",
            ["position"],
            registry=to,
        )
        self.position_accepted = Counter(
            "specdec_position_accepted_tokens",
            "Rounds that kept this position of the block, from 1.",
            ["position"],
            registry=to,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry, multiprocess_mode=_SUM)

    def render(self) -> bytes:
        """The text that Prometheus reads; of all processes that share their figures."""
        folder = os.environ.get(SHARED_FOLDER)
        return generate_latest(_shared(folder) if folder else self.registry)

    def queued(self, num_waiting: int) -> None:
        self.queue_size.set(num_waiting)

    def joined(self, seconds_waited: float) -> None:
        self.queue_seconds.observe(seconds_waited)

    def stepped(self, events: Sequence[RowEvent], num_rows: int, seconds: dict[str, float]) -> None:
        self.batch_rows.set(num_rows)
        self.batch_size.observe(num_rows)
        for part, value in seconds.items():
            self.part_seconds.labels(part).inc(value)
        for event in events:
            self._round(event)

    def rested(self) -> None:
        self.batch_rows.set(0)

    def _round(self, event: RowEvent) -> None:
        num_drafted = len(event.draft_ids)
        self.rounds.inc()
        self.tokens.inc(len(event.emitted_ids))
        self.skipped.inc(len(event.emitted_ids) - 1)
        if not num_drafted:
            return
        self.drafted.inc(num_drafted)
        self.accepted.inc(event.num_accepted)
        self.accepted_round.observe(event.num_accepted)
        for position in range(1, num_drafted + 1):
            self.position_drafted.labels(position).inc()
            if position <= event.num_accepted:
                self.position_accepted.labels(position).inc()

    def sentence(self, rounds: Sequence[RowEvent], decode_seconds: float) -> None:
        """A sentence that was answered."""
        num_tokens = sum(len(event.emitted_ids) for event in rounds)
        self.sentences.inc()
        self.emitted_request.observe(num_tokens / len(rounds))
        self.token_seconds.observe(decode_seconds / num_tokens)


def _shared(folder: str) -> CollectorRegistry:
    """The sums over the processes that keep their figures in this folder."""
    for path in Path(folder).glob(f"gauge_{_SUM}_*.db"):
        # Its counts stay; what it had under way is gone with it.
        number = int(path.stem.rpartition("_")[2])
        if not Path(f"/proc/{number}").exists():
            mark_process_dead(number, folder)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)
    return registry
