from __future__ import annotations

import torch

from specdec_plugins.decoding.batch import collate
from specdec_plugins.decoding.greedy import greedy
from specdec_plugins.decoding.types import DecodeParams
from tests.decoding.toys import CPU, SPECIAL, TableVerifier, law, oracle, requests


def test_greedy_is_one_argmax_after_the_other() -> None:
    table = law()
    for max_len in (1, 7, 40):
        jobs = requests(
            9, lambda i: i % 4, max_len=lambda i, n=max_len: n + i % 3, min_len=lambda i: i % 5
        )
        source = collate(jobs, SPECIAL.pad, SPECIAL.start, CPU)
        params = DecodeParams.stack([job.params for job in jobs], CPU)
        assert greedy(TableVerifier(table), source, params) == [oracle(table, j) for j in jobs]


def test_greedy_with_padding_banned() -> None:
    table = law(seed=5)
    table[..., SPECIAL.pad] += 3
    jobs = requests(6, max_len=20)
    source = collate(jobs, SPECIAL.pad, SPECIAL.start, CPU)
    params = DecodeParams.stack([job.params for job in jobs], CPU)
    assert any(SPECIAL.pad in row for row in greedy(TableVerifier(table), source, params))
    banned = table.clone()
    banned[..., SPECIAL.pad] = -torch.inf
    got = greedy(TableVerifier(table), source, params, ban_pad=True)
    assert got == [oracle(banned, job) for job in jobs]
