"""Trainings by several processes."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from specdec_plugins.corpus.checkpoints import LAST, num_updates
from specdec_plugins.formats.checkpoints import load_checkpoint
from tests.bundles import ROOT
from tests.programs import free_port, run
from tests.training.conftest import SIZES
from tests.warm_python import warm_python

pytestmark = [pytest.mark.fairseq, pytest.mark.integration]

DRAFTER = shlex.split(
    "--task translation_lev_modified --arch block --noise block_mask --block-size 3 --criterion "
    "glat_loss --optimizer adam --lr 1e-3 --max-tokens 50 --log-format simple --log-interval 1 "
    "--cpu"
)
# fairseq starts a process for each GPU that it counts. One is as good as several: it is new.
SPAWNING = f"""
import torch
torch.cuda.device_count = lambda: 1
__file__ = {str(ROOT / "train.py")!r}
exec(compile(open(__file__).read(), __file__, "exec"))
"""


def test_a_process_that_fairseq_starts_knows_the_plugin(tmp_path: Path, data: Path) -> None:
    program = tmp_path / "spawning.py"
    program.write_text(SPAWNING, encoding="utf-8")
    done = run(
        warm_python(), program, data, *DRAFTER, *SIZES, "--save-dir", tmp_path, "--max-update", 1,
        "--disable-validation", "--num-workers", "0", "--distributed-world-size", "1",
        "--distributed-backend", "gloo", "--distributed-init-method", f"file://{tmp_path}/meeting",
        PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert "num_updates=1" in done.stdout


def test_two_workers_go_on_as_two_machines_do(tmp_path: Path, data: Path) -> None:
    guide = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    (line,) = (line for line in guide.splitlines() if line.startswith("torchrun --nnodes"))
    line = line.replace("HOST", "127.0.0.1").replace("29500", str(free_port()))
    line = line.replace("--nproc-per-node 4", "--nproc-per-node 1").removesuffix(" train.py ...")
    flags = ["train.py", data, *DRAFTER, *SIZES, "--disable-validation", "--num-workers", "0"]
    flags += ["--max-update", "5", "--save-interval-updates", "4", "--save-dir"]

    def train(*launcher: str, folder: Path) -> None:
        run(warm_python(), "-m", "torch.distributed.run", *launcher, *flags, folder)

    def machine(number: int) -> None:
        words = line.replace("--node-rank 0", f"--node-rank {number}").split()[1:]
        train(*words, folder=machines)

    machines, workers = tmp_path / "machines", tmp_path / "workers"
    with ThreadPoolExecutor(2) as both:
        list(both.map(machine, range(2)))
    workers.mkdir()
    (fourth,) = machines.glob("checkpoint_*_4.pt")
    fourth.rename(workers / LAST)
    train("--standalone", "--nproc-per-node", "2", folder=workers)
    states = [load_checkpoint(folder / LAST) for folder in (machines, workers)]
    assert list(map(num_updates, states)) == [5, 5]
    torch.testing.assert_close(*(state["model"] for state in states), rtol=0, atol=0)
