"""Trainings by several processes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.bundles import ROOT
from tests.programs import python
from tests.training.conftest import SIZES

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

DRAFTER = shlex.split(
    "--task translation_lev_modified --arch block --noise block_mask --block-size 3 --criterion "
    "glat_loss --optimizer adam --lr 1e-3 --max-tokens 50 --log-format simple --log-interval 1 "
    "--cpu"
)
# fairseq starts a process for each GPU that it counts. One is as good as several: it is new.
SPAWNED = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch
torch.cuda.device_count = lambda: 1
import train
if __name__ == "__main__":
    sys.exit(train.main())
"""


def test_a_process_that_fairseq_starts_knows_the_plugin(tmp_path: Path, data: Path) -> None:
    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED, encoding="utf-8")
    done = python(
        program, data, *DRAFTER, *SIZES, "--save-dir", tmp_path, "--max-update", "1",
        "--disable-validation", "--num-workers", "0", "--distributed-world-size", "1",
        "--distributed-backend", "gloo", "--distributed-init-method", f"file://{tmp_path}/meeting",
    )  # fmt: skip
    assert "num_updates=1" in done.stdout
