"""Checkpoints: which are averaged and to what, and from which a training goes on."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.corpus import checkpoints
from specdec_plugins.corpus.checkpoints import average, last_checkpoints, restored
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from tests.programs import specdec
from tests.refusals import refused


def write(path: Path, value: float, dtype: torch.dtype = torch.float32, **more: object) -> Path:
    tied = torch.full((2, 3), value, dtype=dtype)
    model = {"a": tied, "b": tied, "steps": torch.tensor([int(value)]), **more}
    torch.save({"model": model, "last_optimizer_state": {"m": tied}, "args": None}, path)
    return path


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_the_last_are_those_of_the_highest_number(tmp_path: Path) -> None:
    for name in ("2", "9", "10", "_last", "_best", "_1_900", "_2_1000"):
        write(tmp_path / f"checkpoint{name}.pt", 1)
    assert names(last_checkpoints(tmp_path, 2, "epoch")) == ["checkpoint9.pt", "checkpoint10.pt"]
    assert names(last_checkpoints(tmp_path, 1, "update")) == ["checkpoint_2_1000.pt"]
    message = r"expected at least 3, found 2 .*--save-interval-updates"
    refused(message, last_checkpoints, tmp_path, 3, "update")
    refused("no such folder", last_checkpoints, tmp_path / "none", 1, "epoch")


def test_the_mean_keeps_dtype_ties_counters_and_precision(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.pt", value) for i, value in enumerate((1.0, 2.0, 6.0))]
    result = average(paths)
    model = result["model"]
    assert model["a"].tolist() == [[3.0] * 3] * 2
    assert model["a"].dtype == torch.float32
    assert model["a"] is model["b"]
    assert model["steps"].tolist() == [6]
    assert result["last_optimizer_state"] is None
    # Equal values apart in memory are not tied.
    apart = [write(p, 1, c=torch.full((2, 3), v)) for p, v in zip(paths, (1.0, 3.0), strict=False)]
    model = average(apart)["model"]
    assert (model["a"][0, 0], model["c"][0, 0]) == (1, 2)
    # In float16 the sum of these would overflow, and 2048 + 1 would stay 2048.
    halves = [write(p, v, torch.float16) for p, v in zip(paths, (6e4, 6e4, 5e4), strict=True)]
    weight = average(halves)["model"]["a"]
    assert weight.dtype == torch.float16
    assert torch.equal(weight, torch.full((2, 3), 17e4 / 3).half())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"c": torch.ones(1)}, r"2\.pt and .*1\.pt are different models: c is in only one"),
        ({"a": torch.ones(2, 4)}, r"a has shapes \[2, 4\] and \[2, 3\]"),
        ({"a": torch.full((2, 3), float("nan"))}, r"2\.pt: a holds NaN"),
    ],
)
def test_what_does_not_belong_together(
    tmp_path: Path, more: dict[str, object], sentence: str
) -> None:
    paths = [write(tmp_path / "1.pt", 1), write(tmp_path / "2.pt", 1, **more)]
    refused(sentence, average, paths)


def test_models_of_other_words_are_not_averaged(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.pt", 1) for i in range(3)]
    for path, digests in zip(paths, (None, ["a", "b"], ["a", "c"]), strict=True):
        settings = Namespace(arch="transformer", dictionaries=digests)
        save_checkpoint(load_checkpoint(path) | {"args": settings}, path)
    average(paths[:2])
    refused("2.pt and a checkpoint before it were trained with different dict", average, paths)


@pytest.mark.integration
def test_the_command(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        write(tmp_path / f"checkpoint{i}.pt", i)
    last = [".", "--last", 2, "--output", "out/average.pt"]
    specdec("train average", *last, cwd=tmp_path)
    assert load_checkpoint(tmp_path / "out" / "average.pt")["model"]["a"][0, 0] == 2.5
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["average.pt"]
    named = ["checkpoint1.pt", "checkpoint2.pt", "--output", "out/average.pt"]
    specdec("train average", *named, cwd=tmp_path)
    assert load_checkpoint(tmp_path / "out" / "average.pt")["model"]["a"][0, 0] == 1.5
    twice = ["checkpoint1.pt", "./checkpoint1.pt", "--output", "x.pt"]
    bad = specdec("train average", *twice, cwd=tmp_path, expect=2)
    assert "checkpoint1.pt: given twice" in bad.stderr
    bad = specdec("train average", ".", "--output", "x.pt", cwd=tmp_path, expect=2)
    assert "choose checkpoints with --last N" in bad.stderr


def checkpoint(updates: int, seconds: float = 0.0) -> dict[str, Any]:
    table = torch.arange(6.0).reshape(2, 3) / 7
    return {
        "model": {"embed": table, "output": table, "version": torch.tensor([3])},
        "optimizer_history": [{"num_updates": updates, "lr_scheduler_state": {"best": None}}],
        "extra_state": {"previous_training_time": seconds},
        "last_optimizer_state": {"state": {0: {"exp_avg": table}}, "param_groups": [{"lr": 1.0}]},
    }


LAST = "checkpoint_last.pt"


def cut(path: Path) -> None:
    """As fairseq's own copy leaves a file that it could not finish."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def diverged(updates: int) -> dict[str, Any]:
    return {**checkpoint(updates), "model": {"embed": torch.tensor([1.0, torch.nan])}}


@pytest.mark.parametrize("fault", ["cut", "diverged", "missing"])
def test_a_training_goes_on_from_the_furthest_whole_checkpoint(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for updates in (8, 9, 10):
        save_checkpoint(checkpoint(updates), tmp_path / f"checkpoint_1_{updates}.pt")
    save_checkpoint({**checkpoint(11), "last_optimizer_state": None}, tmp_path / "checkpoint3.pt")
    save_checkpoint(diverged(20), tmp_path / "checkpoint_best.pt")
    if fault != "missing":
        save_checkpoint(diverged(12) if fault == "diverged" else checkpoint(12), tmp_path / LAST)
    if fault == "cut":
        cut(tmp_path / LAST)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    found = restored(tmp_path, may_write=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    restored(tmp_path)
    assert found is not None
    assert [checkpoints.num_updates(c) for c in (found, load_checkpoint(tmp_path / LAST))] == [
        10
    ] * 2
    assert "checkpoint_1_10.pt, update 10" in caplog.text
    said = {"cut": "_last.pt: damaged", "diverged": "_last.pt: embed holds NaN", "missing": ""}
    assert said[fault] in caplog.text
    if fault != "missing":  # what cannot be used is kept, nevertheless
        assert (tmp_path / "checkpoint_last.pt.replaced").read_bytes() == before[LAST]


def test_a_whole_last_checkpoint_is_taken_as_it_is(tmp_path: Path) -> None:
    assert restored(tmp_path / "none") is None
    save_checkpoint(checkpoint(9), tmp_path / LAST)
    save_checkpoint(checkpoint(10), tmp_path / "checkpoint_1_10.pt")
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert checkpoints.num_updates(restored(tmp_path) or {}) == 9
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before


def test_nothing_begins_anew_over_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(9), tmp_path / LAST)
    cut(tmp_path / LAST)
    told = "checkpoint_last.pt: damaged.*no other.*give another --save-dir"
    refused(told, restored, tmp_path)
