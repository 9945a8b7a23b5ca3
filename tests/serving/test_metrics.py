"""Counts of rounds, as Prometheus reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specdec_plugins.decoding.requests import RowEvent
from specdec_plugins.serving.metrics import SHARED_FOLDER, Metrics
from tests.programs import run


def test_rounds_are_counted_by_what_users_ask_for() -> None:
    metrics = Metrics()
    events = [
        RowEvent("a", [4, 5, 6], 2, [4, 5, 7], None),
        RowEvent("b", [4, 5], 2, [4, 5, 8], None),
        RowEvent("c", [], 0, [3], None),
        RowEvent("d", [4, 2, 6], 2, [4, 2], None),  # ended within its draft
    ]
    metrics.stepped(events, 4, 1, {"draft": 0.5, "verify": 0.25})
    metrics.answered(9, 4, seconds=0.9)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"specdec_{name}", labels)

    assert value("rounds_total") == 4
    assert value("drafted_tokens_total") == 8
    assert value("accepted_tokens_total") == 6
    assert value("tokens_total") == 9
    assert value("skipped_tokens_total") == 5
    assert value("accepted_tokens_per_round_count") == 3  # the plain step drafted nothing
    assert value("accepted_tokens_per_round_sum") == 6
    assert value("batch_size_sum") == 4
    assert value("part_seconds_total", part="draft") == 0.5
    by_position = [
        (
            value("position_drafted_tokens_total", position=p),
            value("position_accepted_tokens_total", position=p),
        )
        for p in "123"
    ]
    assert by_position == [(3, 3), (3, 3), (2, None)]
    assert value("token_seconds_sum") == pytest.approx(0.9 / 9)
    assert value("tokens_per_round_of_a_sentence_sum") == 9 / 4


SHARING = """
import os, sys
import specdec_plugins.decoding.requests  # takes long, and once is enough
first = os.fork() == 0
if not first:
    os.wait()
from specdec_plugins.serving.metrics import Metrics
metrics = Metrics()
metrics.tokens.inc(3)
metrics.requests.labels("/generate", 200).inc()
metrics.batch_size.observe(2)
metrics.queue_size.set(5 if first else 7)
if not first:
    sys.stdout.write(metrics.render().decode())
"""


def test_processes_that_share_a_folder_are_one_server(tmp_path: Path) -> None:
    figures = run(sys.executable, "-c", SHARING, **{SHARED_FOLDER: str(tmp_path)}).stdout
    assert "specdec_tokens_total 6.0" in figures
    assert 'specdec_requests_total{code="200",route="/generate"} 2.0' in figures
    assert 'specdec_batch_size_bucket{le="2.0"} 2.0' in figures
    # The other one has ended: its counts stay, what waited in it does not.
    assert "specdec_queue_size 7.0" in figures
