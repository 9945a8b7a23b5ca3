"""fairseq's files of sentences, read and written without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugins.formats.indexed import Sentences, SentenceWriter
from tests.refusals import refused

SENTENCES = [[5, 6, 7, 2], [], [2], [9, 65_400, 2]]


@pytest.mark.fairseq
@pytest.mark.parametrize("num_types", [60_000, 70_000])
def test_the_files_are_those_of_fairseq(num_types: int, tmp_path: Path) -> None:
    from fairseq.data import indexed_dataset

    with SentenceWriter(tmp_path / "ours", num_types) as writer:
        for ids in SENTENCES:
            writer.add(ids)
    builder = indexed_dataset.make_builder(f"{tmp_path}/its.bin", "mmap", vocab_size=num_types)
    for ids in SENTENCES:
        builder.add_item(torch.tensor(ids))
    builder.finalize(f"{tmp_path}/its.idx")
    for kind in ("bin", "idx"):
        assert (tmp_path / f"ours.{kind}").read_bytes() == (tmp_path / f"its.{kind}").read_bytes()
    read = Sentences(tmp_path / "its")
    assert [ids.tolist() for ids in read] == SENTENCES
    assert read.sizes.tolist() == [4, 0, 1, 3]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    refused("train.idx: cannot be read", Sentences, tmp_path / "train")
    with SentenceWriter(tmp_path / "train", 9) as writer:
        writer.add([4, 2])
    index, ids = ((tmp_path / f"train.{kind}") for kind in ("idx", "bin"))
    ids.write_bytes(ids.read_bytes()[:-1])
    refused("train.idx: damaged, or not in fairseq's mmap format", Sentences, tmp_path / "train")
    index.write_bytes(b"TNTIDX\x00\x00" + index.read_bytes())
    refused("not in fairseq's mmap format; binarise", Sentences, tmp_path / "train")
    index.write_bytes(index.read_bytes()[:5])
    refused("not in fairseq's mmap format; binarise", Sentences, tmp_path / "train")
