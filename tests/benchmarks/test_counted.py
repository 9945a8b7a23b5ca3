"""What is counted of a round: each weight that is read, once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

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


@pytest.mark.fairseq
def test_an_update_goes_once_forwards_and_twice_as_far_backwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks import hours

    small = replace(hours.BASE, width=64, ffn=256, heads=2)
    monkeypatch.setattr(hours, "BASE", small)
    monkeypatch.setattr(hours, "TYPES", 1000)
    chance = torch.Generator().manual_seed(0)
    counted, num_weights, num_bytes = hours.counted_update(hours._verifier, 50, chance)
    products = 6 * (4 * 64**2 + 2 * 64 * 256) + 6 * (8 * 64**2 + 2 * 64 * 256) + 64 * 1000
    assert products < num_weights < 1.1 * products
    wanted = 50 * 6 * products
    attention = 50 * 6 * 18 * 2 * 25 * 64
    found = sum(launch.products for launch in counted.launches)
    assert wanted < found < wanted + 1.02 * attention  # fused attention is no product
    assert num_bytes > 18 * num_weights
    drafting = hours.counted_update(hours._drafter, 50, chance)[0]
    assert sum(launch.products for launch in drafting.launches) > found  # it glances, too
