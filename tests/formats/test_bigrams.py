"""Bigrams come back from disk, and a file that is none of theirs is refused in one sentence."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bigrams import read_bigrams, write_bigrams

VOCAB = 9


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    write_bigrams(counted(), tmp_path / "bigrams.safetensors")
    return tmp_path / "bigrams.safetensors"


def counted() -> Bigrams:
    return Bigrams.count([[4, 5, 2], [4, 5, 6, 2]], VOCAB, 2)


def test_they_come_back(stored: Path) -> None:
    found, expected = read_bigrams(stored, VOCAB), counted()
    for name in (f.name for f in fields(Bigrams)):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_what_is_none_is_refused(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="counts 9 symbols and the target dictionary has 8"):
        read_bigrams(stored, VOCAB - 1)
    with pytest.raises(UserError, match=r"nowhere: cannot be read as bigrams .*count-bigrams\.sh"):
        read_bigrams(tmp_path / "nowhere", VOCAB)
    (tmp_path / "text").write_text("w1 w2\n")
    with pytest.raises(UserError, match="text: cannot be read as bigrams"):
        read_bigrams(tmp_path / "text", VOCAB)
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights")
    with pytest.raises(UserError, match="weights: holds weight and no bigrams"):
        read_bigrams(tmp_path / "weights", VOCAB)
    with pytest.raises(UserError, match="cannot be written"):
        write_bigrams(counted(), tmp_path / "no" / "folder")


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("starts", -1, 999),
        ("starts", 3, -5),
        ("starts", 5, 10**6),
        ("tokens", 0, VOCAB),
        ("tokens", 0, -1),
        ("frequencies", 2, float("nan")),
    ],
)
def test_what_points_outside_is_refused(stored: Path, name: str, at: int, value: float) -> None:
    tensors = load_file(stored)
    tensors[name][at] = value
    save_file(tensors, stored)
    with pytest.raises(UserError, match="damaged; count the bigrams again"):
        read_bigrams(stored, VOCAB)


def test_a_shorter_part_is_refused(stored: Path) -> None:
    tensors = load_file(stored)
    save_file({**tensors, "log_probs": tensors["log_probs"][:-1].clone()}, stored)
    with pytest.raises(UserError, match="damaged"):
        read_bigrams(stored, VOCAB)
