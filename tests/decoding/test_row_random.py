from __future__ import annotations

import torch

from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.types import Stream

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
