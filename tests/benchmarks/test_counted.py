"""What is counted of a round: each weight that is read, once."""

from __future__ import annotations

from benchmarks.counted import EAGER, GPUS, IN_A_GRAPH, SYSTEMS, TYPES, sentence, traced


def test_a_step_reads_the_decoders_weights_once_in_any_batch() -> None:
    greedy, exact = SYSTEMS[:2]
    layer = 6 * 512**2 + 2 * 512 * 2048  # keys and values of the source are made when a row joins
    weights = 2 * (6 * layer + 512 * TYPES)
    parts = traced(greedy, 1)
    alone, batch = parts[1], traced(greedy, 32)[1]
    assert len(alone) == len(batch)
    assert 1 < sum(x.num_bytes for x in alone) / weights < 1.05
    assert 31 < sum(x.products for x in batch) / sum(x.products for x in alone) <= 32.5

    drafting = traced(exact, 1)
    assert len(drafting[1]) > len(alone)
    for launch in (EAGER, IN_A_GRAPH):
        given = (1, GPUS[1], launch)
        assert sentence(exact, drafting, *given) < sentence(greedy, parts, *given)
