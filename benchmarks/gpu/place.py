"""What a check is, and the folder, the device and the sizes of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reports import ROOT

SIMULATED = "simulated"
SLOWER = 15  # factor on the time limits of a rehearsal, as the machine may be busy
CAPTIONS, BUNDLED = ROOT / "benchmarks/models/captions.en-de", ROOT / "data/models/en-de"
SAMPLES = ROOT / "data/samples/en-de.tsv"
OK, FAILED, NOT_DONE, BEGUN = "ok", "failed", "not done", "begun"


@dataclass(frozen=True)
class Check:
    """One check. `run` returns what was found, and raises on a fault."""

    name: str
    expected: str
    run: Callable[[], str]
    needs: tuple[str, ...] = ()  # modules without which it is not done


@dataclass(frozen=True)
class Place:
    """The folder, the device and the sizes of a run."""

    folder: Path
    device: str

    @property
    def rehearses(self) -> bool:
        return self.device == SIMULATED

    def size(self, on_gpu: int, rehearsed: int) -> int:
        return rehearsed if self.rehearses else on_gpu

    @property
    def lines(self) -> list[str]:
        return (self.folder / "work/text.txt").read_text(encoding="utf-8").splitlines()

    def entered(self) -> AbstractContextManager[None]:
        """A context in which tensors can be created on the device."""
        if not self.rehearses:
            return nullcontext()
        from benchmarks.gpu.accelerator import accelerator

        return accelerator()

    def call(self, name: str, *command: object, seconds: float) -> str:
        """The output of a program, also kept as a log. Raises RuntimeError if it fails."""
        log = self.folder / "logs" / f"{name}.log"
        with log.open("w", encoding="utf-8") as out:
            done = subprocess.run(
                list(map(str, command)),
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=seconds * self.size(1, SLOWER),
                check=False,
            )
        said = log.read_text(encoding="utf-8", errors="replace")
        if done.returncode:
            last = (said.strip() or "no output").splitlines()[-1]
            raise RuntimeError(f"exit status {done.returncode}: {last} (logs/{log.name})")
        return said
