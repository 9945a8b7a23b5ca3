"""Truncated distributions and draws from them, and random numbers that are a hash."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from specdec_plugins.decoding.contract import Stream
from specdec_plugins.decoding.sampling import HashRandom, sample, warp
from tests.decoding.toys import row_params


def slow_warp(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """One distribution in plain Python."""
    weights = [math.exp(x / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-weights[i], i))
    order = order[: top_k or len(order)]
    total, kept, mass = sum(weights[i] for i in order), [], 0.0
    for i in order:
        if mass >= top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def test_warp_by_rows_equals_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, 9, generator=generator, dtype=torch.float64) * 2
    logits[:, 1] = logits[:, 1].round()  # ties
    temperature, top_k = [1.0, 0.5, 2.0, 1.0, 1.0, 0.25], [0, 3, 0, 1, 50, 4]
    top_p = [1.0, 1.0, 0.75, 0.5, 0.125, 0.875]  # float32 knows these exactly
    params = row_params(6, temperature=temperature, top_k=top_k, top_p=top_p)
    got = warp(logits, params)
    for b in range(6):
        for i in range(3):
            want = slow_warp(logits[b, i].tolist(), temperature[b], top_k[b], top_p[b])
            assert got[b, i].tolist() == pytest.approx(want, abs=1e-12)


def test_only_rows_that_truncate_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows, sort = [], torch.Tensor.sort

    def noted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sorted_rows.append(len(tensor))
        return sort(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "sort", noted)
    logits = torch.randn(5, 2, 50, generator=torch.Generator().manual_seed(0)).double()
    rows = {"top_k": [1, 0, 1, 0, 7], "top_p": [1.0, 1.0, 0.5, 0.5, 1.0]}
    mixed = warp(logits, row_params(5, **rows))
    assert sorted_rows == [2]
    for b in range(5):
        alone = row_params(1, **{name: [values[b]] for name, values in rows.items()})
        assert torch.equal(warp(logits[b : b + 1], alone)[0], mixed[b])


def test_sample_inverts_the_sums() -> None:
    weights = torch.tensor([[0.0, 2.0, 0.0, 1.0, 1.0, 0.0]]).repeat(7, 1)
    uniform = torch.tensor([0.0, 0.499, 0.5, 0.749, 0.75, 0.999, 1 - 2**-53], dtype=torch.float64)
    assert sample(weights, uniform).tolist() == [1, 1, 3, 3, 4, 4, 4]


def test_sample_never_draws_what_weighs_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(4000, 7, generator=generator)
    weights[:, -2:] = 0
    weights[:, 0] = 0
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64).repeat(2000)
    drawn = sample(weights, edges)
    assert set(drawn.tolist()) == {1, 4}


def test_junk_rows_still_get_a_token_id() -> None:
    junk = torch.tensor([[0.0, 0.0], [torch.nan, torch.nan]])
    drawn = sample(junk, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert ((drawn >= 0) & (drawn < 2)).all()


SEEDS = torch.arange(200)
ONE = torch.ones(200, dtype=torch.int64)


def draw(stream: Stream = Stream.ACCEPT, n: int = 100) -> torch.Tensor:
    return HashRandom(SEEDS).uniform(ONE, n, stream)


def test_numbers_are_uniform() -> None:
    u = draw()
    assert u.dtype is torch.float64
    assert ((u >= 0) & (u < 1)).all()
    counts = torch.histc(u.float(), bins=20, min=0, max=1)
    expected = u.numel() / 20
    assert float(((counts - expected) ** 2 / expected).sum()) < 45  # 19 degrees: p = 0.0007
    assert len(set(u.flatten().tolist())) == u.numel()


def test_seeds_positions_and_streams_are_uncorrelated() -> None:
    u = draw() - 0.5
    others = [draw(Stream.NEXT), draw(Stream.PROPOSE), draw().roll(1, 0), draw().roll(1, 1)]
    for other in others:
        correlation = float((u * (other - 0.5)).mean() * 12)
        assert abs(correlation) < 4 / u.numel() ** 0.5


def test_a_row_draws_the_same_whatever_its_batch_and_where_its_block_begins() -> None:
    u = draw()
    rows = torch.tensor([7, 3, 150])
    first = torch.tensor([4, 1, 90])
    got = HashRandom(SEEDS[rows]).uniform(first, 5, Stream.ACCEPT)
    for i, (row, start) in enumerate(zip(rows.tolist(), first.tolist(), strict=True)):
        assert got[i].tolist() == u[row, start - 1 : start + 4].tolist()


def test_known_numbers() -> None:
    """A recorded value: seeds given by users must mean the same in the next version."""
    got = HashRandom(torch.tensor([0, 42])).uniform(torch.tensor([1, 7]), 1, Stream.NEXT)
    want = [[0.14623465613318143], [0.06296480417580896]]
    assert got.tolist() == want
