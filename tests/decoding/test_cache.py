from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.networks import StackConfig
from specdec_plugins.decoding.networks.cache import KVCache

STACK = StackConfig(num_layers=2, dim=6, ffn_dim=4, num_heads=2, vocab_size=5, max_positions=99)
POISON = 1e30


def new_cache(num_rows: int) -> KVCache:
    return KVCache(STACK, num_rows, torch.device("cpu"), torch.float64)


def write(cache: KVCache, num_new: int, generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """Random entries behind every row: the layers' views, and what was written."""
    window = cache.window(num_new, width=int(cache.lengths.max()))
    new = torch.randn(2, len(cache), num_new, 2, 2, 3, generator=generator).double()
    return [window.write(layer, new[layer]) for layer in range(2)], new


def poison(cache: KVCache) -> None:
    """Overwrite everything behind the lengths."""
    stale = torch.arange(cache.capacity) >= cache.lengths[:, None]
    cache.storage[:, stale] = POISON


@pytest.mark.parametrize("seed", range(4))
def test_keeps_what_a_list_of_rows_would_keep(seed: int) -> None:
    """Any order of writing, cropping, selecting and joining; stale entries are poisoned."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    cache = new_cache(2)
    rows = [torch.zeros(2, 0, 2, 2, 3).double() for _ in range(2)]  # [L, T, 2, H, d] each
    for _ in range(30):
        action = rng.choice(["write", "write", "write", "select", "join"])
        if action == "write" and rows:
            num_new = rng.randint(1, 5)
            views, new = write(cache, num_new, generator)
            old = [row.shape[1] for row in rows]
            rows = [torch.cat([row, new[:, b]], 1) for b, row in enumerate(rows)]
            for b, row in enumerate(rows):
                for layer in range(2):
                    assert torch.equal(views[layer][b, : row.shape[1]], row[layer])
            kept = [length + rng.randint(0, num_new) for length in old]
            rows = [row[:, :length] for row, length in zip(rows, kept, strict=True)]
            cache.crop(torch.tensor(kept))
        elif action == "select":
            order = rng.sample(range(len(rows)), rng.randint(0, len(rows)))
            rows = [rows[i] for i in order]
            cache.select(torch.tensor(order).long())
        elif action == "join" and len(rows) < 6:
            other = new_cache(rng.randint(1, 2))
            _, new = write(other, rng.randint(1, 12), generator)
            other.crop(torch.full((len(other),), new.shape[2]))
            cache.append(other)
            rows += [new[:, b] for b in range(len(other))]
        poison(cache)
        assert cache.lengths.tolist() == [row.shape[1] for row in rows]
        for b, row in enumerate(rows):
            assert torch.equal(cache.storage[:, b, : row.shape[1]], row)


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
        views, _ = write(cache, rng.choice([1, 1, 12]), generator)
        assert not any(view.isnan().any() for view in views)
        cache.crop(torch.tensor([rng.randint(0, 9) for _ in range(3)]))
        cache.storage[:, 2, : views[0].shape[1]] = torch.nan  # the last row overflows
        cache.select(torch.tensor([1, 0] if rng.random() < 0.5 else [0]))
        while len(cache) < 3:
            joining = new_cache(1)
            write(joining, rng.randint(1, 3), generator)
            joining.crop(torch.tensor([1]))
            cache.append(joining)
