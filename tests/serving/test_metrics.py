"""Counts of rounds, as Prometheus reads them."""

from __future__ import annotations

from specdec_plugins.decoding.request import RowEvent
from specdec_plugins.serving.metrics import Metrics


def test_rounds_are_counted_by_what_users_ask_for() -> None:
    metrics = Metrics()
    events = [
        RowEvent("a", [4, 5, 6], 2, [4, 5, 7], None),
        RowEvent("b", [4, 5], 2, [4, 5, 8], None),
        RowEvent("c", [], 0, [3], None),
    ]
    metrics.stepped(events, 3, {"draft": 0.5, "verify": 0.25})
    metrics.sentence(events, 0.7)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"specdec_{name}", labels)

    assert value("rounds_total") == 3
    assert value("drafted_tokens_total") == 5
    assert value("accepted_tokens_total") == 4
    assert value("tokens_total") == 7
    assert value("skipped_tokens_total") == 4
    assert value("accepted_tokens_per_round_count") == 2  # the plain step drafted nothing
    assert value("accepted_tokens_per_round_sum") == 4
    assert value("batch_size_sum") == 3
    assert value("part_seconds_total", part="draft") == 0.5
    by_position = [
        (
            value("position_drafted_tokens_total", position=p),
            value("position_accepted_tokens_total", position=p),
        )
        for p in "123"
    ]
    assert by_position == [(2, 2), (2, 2), (1, None)]
    assert value("token_seconds_sum") == 0.7 / 7
    assert value("tokens_per_round_of_a_sentence_sum") == 7 / 3
