from __future__ import annotations

import torch

from specdec_plugins.decoding.batch import Batch, collate
from specdec_plugins.decoding.types import Stream
from tests.decoding.toys import CPU, SPECIAL, requests

JOBS = requests(5, lambda i: i % 3, max_len=lambda i: 6 + i, seed=lambda i: i)


def opened(indices: list[int]) -> Batch:
    jobs = [JOBS[i] for i in indices]
    return Batch.open(jobs, collate(jobs, SPECIAL.pad, SPECIAL.start, CPU))


def committed(batch: Batch) -> list[list[int]]:
    rows = zip(batch.prefix.tokens.tolist(), batch.prefix.lengths.tolist(), strict=True)
    return [row[:length] for row, length in rows]


def test_collate_pads_on_the_right() -> None:
    source = collate(JOBS[:4], SPECIAL.pad, SPECIAL.start, CPU)
    for i, job in enumerate(JOBS[:4]):
        ids = job.source_ids
        width = source.tokens.shape[1]
        assert source.tokens[i].tolist() == ids + [SPECIAL.pad] * (width - len(ids))
        assert int(source.lengths[i]) == len(ids)
        forced = [SPECIAL.start, *job.forced_ids]
        assert source.forced[i, : len(forced)].tolist() == forced
        assert int(source.forced_lengths[i]) == len(forced)
    assert len(source) == 4


def test_rows_stay_together_through_append_and_select() -> None:
    batch = Batch.empty(CPU).append(opened([0, 1])).append(opened([2, 3, 4]))
    keep = [4, 0, 2]
    batch = batch.select(keep, torch.tensor(keep))
    assert [row.request.id for row in batch.rows] == ["r4", "r0", "r2"]
    assert committed(batch) == [[SPECIAL.start, *JOBS[i].forced_ids] for i in keep]
    assert batch.params.max_len.tolist() == [10, 6, 8]
    assert batch.prefix.tokens.shape[1] >= 11
    assert batch.prefix.width == 3
    numbers = batch.random.uniform(batch.prefix.lengths * 0, 1, Stream.NEXT)
    fresh = opened(keep).random.uniform(batch.prefix.lengths * 0, 1, Stream.NEXT)
    assert numbers.tolist() == fresh.tolist()


def test_width_is_that_of_the_longest_row_present() -> None:
    batch = opened([0, 2])
    assert batch.prefix.width == 3
    assert batch.select([0], torch.tensor([0])).prefix.width == 1


def test_a_forced_prefix_is_not_shared_with_its_source() -> None:
    source = collate(JOBS[:2], SPECIAL.pad, SPECIAL.start, CPU)
    batch = Batch.open(JOBS[:2], source)
    batch.prefix.lengths += 1
    batch.rows[0].token_ids.append(5)
    assert source.forced_lengths.tolist() == [1, 2]
    assert JOBS[0].forced_ids == []
