"""The memory of this process, now and at its most."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from specdec_plugins.app.report import peak_memory

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(device: str) -> None:
    """Count from now. Where the system cannot forget a peak, it goes on from the start."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")  # resets VmHWM, see proc(5)


def peak(device: str) -> int:
    """Bytes since `reset_peak`: of torch's tensors on a GPU, else of the whole process."""
    found = _status("VmHWM") if device == "cpu" else None
    return peak_memory(torch.device(device)) if found is None else found


def present(device: str) -> int:
    """Bytes now, of the same kind; 0 where nobody can say."""
    return torch.cuda.memory_allocated() if device == "cuda" else _status("VmRSS") or 0


def _status(name: str) -> int | None:
    """Bytes, see proc(5); None on systems without it."""
    if _STATUS.is_file():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
