"""Reading checkpoints never runs their code; they are written whole or not at all."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from specdec_plugins.formats.checkpoints import (
    allow_fairseq_checkpoints,
    copy_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from tests.refusals import refused


class _Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_settings_of_a_checkpoint_are_read(tmp_path: Path) -> None:
    path = tmp_path / "good.pt"
    weights = {"encoder.version": torch.tensor([3.0])}
    args = argparse.Namespace(arch="block", counts=defaultdict(int))
    save_checkpoint({"model": weights, "args": args}, path)
    checkpoint = load_checkpoint(path)
    assert checkpoint["args"] == args
    assert torch.equal(checkpoint["model"]["encoder.version"], torch.tensor([3.0]))


@pytest.mark.fairseq
def test_omegaconf_settings_are_read(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    path = tmp_path / "good.pt"
    cfg = OmegaConf.create({"model": {"arch": "block", "lr": [0.5]}})
    save_checkpoint({"model": {}, "cfg": cfg}, path)
    assert load_checkpoint(path)["cfg"].model.lr[0] == 0.5


METERS = {"counts": numpy.array([3, 1]), "score": numpy.float64(0.5)}


@pytest.mark.parametrize("core", ["numpy._core", "numpy.core"])  # of numpy 2 and 1
def test_numbers_that_eval_bleu_leaves_in_the_meters_are_read(tmp_path: Path, core: str) -> None:
    path = tmp_path / "bleu.pt"
    _older({"model": {"w": torch.ones(2)}, "extra_state": METERS}, path)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.", f"{core}.".encode()))
    checkpoint = load_checkpoint(path)
    assert torch.equal(checkpoint["model"]["w"], torch.ones(2))
    assert checkpoint["extra_state"]["counts"].tolist() == [3, 1]
    assert checkpoint["extra_state"]["score"] == 0.5


def test_objects_in_numpy_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.pt"
    save_checkpoint({"model": {}, "extra_state": numpy.array([None, {}])}, path)
    refused(r"odd\.pt: ", load_checkpoint, path)


def _older(content: object, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _bare(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize(
    ("write", "sentence"),
    [(torch.save, "refused.*system"), (_older, "refused.*system"), (_bare, "")],
)
def test_code_in_a_file_is_refused_and_does_not_run(
    tmp_path: Path, write: Callable[[object, Path], None], sentence: str
) -> None:
    path, trace = tmp_path / "evil.pt", tmp_path / "it-ran"
    write({"model": {}, "extra": _Malicious(trace)}, path)
    refused(rf"evil\.pt: {sentence}", load_checkpoint, path)
    assert not trace.exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_reading_changes_nothing_about_what_the_process_allows(
    tmp_path: Path, allowed: bool
) -> None:
    path = tmp_path / "good.pt"
    save_checkpoint({"model": {}, "args": argparse.Namespace(), "extra_state": METERS}, path)
    before = torch.serialization.get_safe_globals()
    try:
        torch.serialization.clear_safe_globals()
        if allowed:
            allow_fairseq_checkpoints()
        load_checkpoint(path)
        if allowed:
            assert torch.load(path)["args"] == argparse.Namespace()  # as fairseq reads it
        else:
            with pytest.raises(pickle.UnpicklingError):
                torch.load(path)
    finally:
        torch.serialization.add_safe_globals(before)


def _half_a_checkpoint() -> bytes:
    whole = io.BytesIO()
    torch.save({"model": {"w": torch.zeros(1000)}}, whole)
    return whole.getvalue()[:2000]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        *((odd, "damaged or not a checkpoint") for odd in (b"", b"not one", b"PK\x03\x04 half")),
        (_half_a_checkpoint(), "damaged"),
        (torch.zeros(3), "not a fairseq checkpoint"),
        ({"weights": {}}, "not a fairseq checkpoint"),
        ({"model": torch.zeros(1)}, "not a fairseq checkpoint"),
    ],
)
def test_damaged_and_foreign_files_are_named(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "odd.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    refused(rf"odd\.pt: {sentence}", load_checkpoint, path)
    for nothing in (tmp_path / "none.pt", tmp_path):
        refused("no such checkpoint", load_checkpoint, nothing)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_model_that_has_diverged_is_refused(value: float, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    weights = {"good": torch.ones(2), "bad": torch.tensor([1.0, value]).half()}
    save_checkpoint({"model": weights}, path)
    refused(
        r"bad\.pt: bad holds NaN or infinity.*earlier checkpoint.*lower --lr", load_checkpoint, path
    )


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.pt"
    save_checkpoint({"model": {}}, path)
    assert [p.name for p in path.parent.iterdir()] == ["a.pt"]
    refused("cannot be written", save_checkpoint, {"model": {}}, path / "b.pt")


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file that this process writes can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1000, 100_000])
def test_a_full_disk_leaves_the_old_file_and_no_half_of_a_new_one(
    tmp_path: Path, room: int
) -> None:
    old, large = tmp_path / "a.pt", tmp_path / "large.pt"
    save_checkpoint({"model": {"w": 1}}, old)
    save_checkpoint({"model": {"w": torch.zeros(99_999)}}, large)
    before = old.read_bytes()
    with room_for(room):
        full = r"a\.pt: cannot be written \(File too large\).*before are whole: make room"
        refused(full, save_checkpoint, {"model": {"w": torch.zeros(99_999)}}, old)
        refused(full, copy_checkpoint, large, old)
    assert old.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "large.pt"]
    copy_checkpoint(large, old)
    assert old.read_bytes() == large.read_bytes()
