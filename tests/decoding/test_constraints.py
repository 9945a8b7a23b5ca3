from __future__ import annotations

import torch

from specdec_plugins.decoding.constraints import strike
from tests.decoding.toys import SPECIAL


def struck(min_len: list[int], first: list[int], ban_pad: bool) -> torch.Tensor:
    logits = torch.zeros(len(first), 4, 6)
    same = strike(logits, torch.tensor(first), torch.tensor(min_len), SPECIAL, ban_pad)
    assert same is logits
    return logits.isinf()


def test_eos_is_banned_until_min_len_tokens_stand() -> None:
    # Row 0: two tokens stand (first = 3), four wanted: columns 0 and 1 may not end.
    got = struck([4, 0, 1], [3, 1, 1], ban_pad=False)
    assert got[..., SPECIAL.eos].int().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    got[..., SPECIAL.eos] = False
    assert not got.any()


def test_padding_is_banned_everywhere() -> None:
    got = struck([0, 0], [1, 5], ban_pad=True)
    assert got[..., SPECIAL.pad].all()
    assert int(got.sum()) == 8
