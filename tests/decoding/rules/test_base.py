from __future__ import annotations

import torch

from specdec_plugins.decoding.networks.cpu.ops import at, leading_true


def test_leading_true_counts_to_the_first_false() -> None:
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert leading_true(mask).tolist() == [2, 0, 4, 0]
    assert leading_true(torch.zeros(3, 0, dtype=torch.bool)).tolist() == [0, 0, 0]


def test_at_reads_one_entry_a_row() -> None:
    values = torch.arange(24).view(2, 3, 4)
    index = torch.tensor([2, 0])
    assert at(values, index).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert at(values[..., 1], index).tolist() == [9, 13]
