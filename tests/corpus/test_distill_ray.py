"""Distillation on a real Ray cluster of this machine, one of whose workers is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.corpus import distill, teacher
from specdec_plugins.corpus.teacher import ChunkTranslator
from specdec_plugins.errors import UserError
from tests.corpus.conftest import Verifier, distil

pytestmark = pytest.mark.fairseq

MARK = "DISTILL_TEST_MARK"


class KilledOnce(ChunkTranslator):
    """Dies as the kernel's killer would have it, in the middle of the third chunk."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mark = Path(os.environ[MARK])
        if row["chunk"] == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(row)


def chunks(output: Path) -> dict[str, Any]:
    parts = output.with_name(f"{output.name}.parts")
    return {path.name: json.loads(path.read_text()) for path in parts.glob("chunk-*.json")}


@pytest.mark.integration
def test_a_killed_worker_loses_nothing(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distil(verifier, tmp_path / "plain")
    mark = tmp_path / "killed"
    monkeypatch.setenv(MARK, str(mark))
    monkeypatch.setattr(teacher, "ChunkTranslator", KilledOnce)
    distil(verifier, tmp_path / "cluster", "--ray", "local", "--ray-workers", 2)
    assert mark.exists()
    assert len(chunks(tmp_path / "cluster")) == 5
    assert chunks(tmp_path / "cluster") == chunks(tmp_path / "plain")
    for path in (tmp_path / "plain").iterdir():
        if path.suffix in (".bin", ".idx"):
            assert (tmp_path / "cluster" / path.name).read_bytes() == path.read_bytes()


def test_without_ray_one_process_does_it(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "has_ray", lambda: False)
    distil(verifier, tmp_path / "kd", "--ray", "local")
    assert len(chunks(tmp_path / "kd")) == 5


def test_ray_and_shards_exclude_each_other(verifier: Verifier, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="omit --num-shards"):
        distil(verifier, tmp_path / "kd", "--ray", "local", "--num-shards", 2)


def test_time_that_is_up_is_told_and_costs_nothing(verifier: Verifier, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        distil(verifier, tmp_path / "kd", "--until", time.time() - 1)
    assert stopped.value.code == 75
    assert not (tmp_path / "kd").exists()
    distil(verifier, tmp_path / "kd")
    assert len(chunks(tmp_path / "kd")) == 5
