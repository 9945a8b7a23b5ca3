"""The room of a cache; what it keeps, tests of the verifier show."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.networks import StackConfig
from specdec_plugins.decoding.networks.cache import KVCache

STACK = StackConfig(num_layers=2, dim=6, ffn_dim=4, num_heads=2, vocab_size=5, max_positions=99)


def new_cache(num_rows: int) -> KVCache:
    return KVCache(STACK, num_rows, torch.device("cpu"), torch.float64)


def write(cache: KVCache, num_new: int, generator: torch.Generator) -> list[Tensor]:
    """Random entries behind every row; the layers' views."""
    window = cache.window(num_new, width=int(cache.lengths.max()))
    new = torch.randn(2, len(cache), num_new, 2, 2, 3, generator=generator).double()
    return [window.write(layer, new[layer]) for layer in range(2)]


def test_reads_the_live_width_and_not_the_capacity() -> None:
    cache = new_cache(1)
    cache.window(200, width=0)
    cache.crop(torch.tensor([3]))
    view = cache.window(2, width=3).write(0, torch.zeros(1, 2, 2, 2, 3).double())
    assert cache.capacity >= 200
    assert view.shape[1] == 8  # 5 positions, rounded up


def test_growth_is_geometric() -> None:
    cache, sizes = new_cache(1), set()
    for length in range(300):
        cache.window(1, width=length)
        cache.crop(torch.tensor([length + 1]))
        sizes.add(cache.capacity)
    assert len(sizes) < 10


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_clean_of_whoever_had_its_storage(seed: int) -> None:
    """A row that overflowed leaves no NaN to rows that come or move later."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    cache = new_cache(3)
    for _ in range(40):
        views = write(cache, rng.choice([1, 1, 12]), generator)
        assert not any(view.isnan().any() for view in views)
        cache.crop(torch.tensor([rng.randint(0, 9) for _ in range(3)]))
        bad, *kept = rng.sample(range(3), 3)
        cache.storage[:, bad, : views[0].shape[1]] = torch.nan  # it overflows
        cache.select(torch.tensor(kept[: rng.randint(1, 2)]))
        while len(cache) < 3:
            joining = new_cache(1)
            write(joining, rng.randint(1, 3), generator)
            joining.crop(torch.tensor([1]))
            cache.append(joining)
