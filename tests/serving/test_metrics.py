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
        RowEvent("d", [4, 2, 6], 2, [4, 2], None),  # ended within its draft
    ]
    metrics.stepped(events, 4, {"draft": 0.5, "verify": 0.25})
    metrics.sentence(events, 0.9)

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
    assert value("token_seconds_sum") == 0.9 / 9
    assert value("tokens_per_round_of_a_sentence_sum") == 9 / 4
