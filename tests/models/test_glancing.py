"""Glancing: how many are revealed, where, and what is scored afterwards."""

from __future__ import annotations

import math

import pytest
import torch

from specdec_plugins.models.block_drafter import Glance, context_share, glance

pytestmark = pytest.mark.fairseq

MASK = 3


def _settings(context_p: float, seed: int = 0) -> Glance:
    return Glance(context_p, torch.Generator().manual_seed(seed))


def _case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that differ in every number; right_mask is junk outside the scored positions."""
    random = torch.Generator().manual_seed(seed)
    target = torch.randint(4, 90, (6, 14), generator=random)
    scored = torch.zeros(6, 14, dtype=torch.bool)
    for row, (start, stop) in enumerate([(0, 14), (3, 11), (5, 6), (2, 2), (1, 9), (7, 14)]):
        scored[row, start:stop] = True
    right = torch.rand(6, 14, generator=random) < 0.4
    return target.masked_fill(scored, MASK), target, scored, right


@pytest.mark.parametrize("context_p", [0.0, 0.3, 0.5, 1.0])
def test_number_revealed_agrees_with_a_loop(context_p: float) -> None:
    tokens, target, scored, right = _case()
    glanced = glance(tokens, target, scored, right, _settings(context_p))
    for row in range(len(tokens)):
        masked = [i for i in range(14) if scored[row, i]]
        wrong = [i for i in masked if not right[row, i]]
        expected = math.floor(round(context_p * len(wrong), 6))
        revealed = [i for i in masked if not glanced.scored_mask[row, i]]
        assert len(revealed) == expected
        for i in range(14):
            shown = target[row, i] if i in revealed else tokens[row, i]
            assert glanced.input_tokens[row, i] == shown
    assert not (glanced.scored_mask & ~scored).any()


def test_right_and_wrong_positions_are_revealed_alike() -> None:
    scored = torch.ones(1, 10, dtype=torch.bool)
    right = torch.arange(10)[None] < 5
    target = torch.arange(10, 20)[None]
    tokens, counts = torch.full_like(target, MASK), torch.zeros(10)
    settings = _settings(0.8)
    for _ in range(2000):  # 5 wrong: 4 of 10 positions a time, 800 each
        counts += ~glance(tokens, target, scored, right, settings).scored_mask[0]
    assert counts.sum() == 8000
    # A position's count has a standard deviation of 22; five of them.
    assert (counts - 800).abs().max() < 110


def test_products_that_should_be_whole_are_not_rounded_down() -> None:
    share = context_share(update=9, start_p=0.5, minus_p=0.2, total_up=10)
    assert share * 25 < 8  # 0.32 * 25, just below in floating point
    scored = torch.ones(1, 25, dtype=torch.bool)
    target = torch.arange(10, 35)[None]
    right = torch.zeros_like(scored)
    glanced = glance(torch.full_like(target, MASK), target, scored, right, _settings(share))
    assert glanced.scored_mask.sum() == 25 - 8


def test_the_generator_decides() -> None:
    case = _case()
    first, again, other = (glance(*case, _settings(0.5, seed)) for seed in (1, 1, 2))
    assert torch.equal(first.input_tokens, again.input_tokens)
    assert not torch.equal(first.input_tokens, other.input_tokens)


@pytest.mark.parametrize(("update", "expected"), [(0, 0.5), (50, 0.4), (100, 0.3), (100_000, 0.3)])
def test_the_share_falls_and_then_stays(update: int, expected: float) -> None:
    share = context_share(update, start_p=0.5, minus_p=0.2, total_up=100)
    assert share == pytest.approx(expected)
