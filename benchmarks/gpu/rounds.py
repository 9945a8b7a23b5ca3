"""The cost of one round of decoding, by torch.profiler: kernels, launches, gaps, waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from benchmarks.reports import table
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import load_translator, number_sentences
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.types import Request

_WARM_UP, _NUM_SHOWN = 2, 15  # rounds before; kernels in the table
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
             "cudaGraphLaunch")  # fmt: skip
_WAITS = ("Synchronize", "aten::_local_scalar_dense")  # in the names of calls that wait


def profile_round(settings: Settings, line: str, output: Path) -> str:
    """Profile the third round of a line: OUTPUT.trace.json, OUTPUT.md; returns the counts."""
    translator = load_translator(settings)
    decoder = translator.decoder
    assert isinstance(decoder, SpeculativeDecoder)
    (sentence,) = number_sentences([line])
    request = translator.prepare(sentence)
    assert isinstance(request, Request)
    list(decoder.run([request]))  # gets one-time work out of the way
    on_gpu = decoder.verifier.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with decoder.session([request]) as session:
        for _ in range(_WARM_UP):
            session.step()
        assert len(session), f"the line ends within {_WARM_UP} rounds; give a longer one"
        waits = _simulated_waits(decoder.verifier.device)
        waits.clear()
        with torch.profiler.profile(activities=activities) as profiler:
            session.step()
            if on_gpu:
                torch.cuda.synchronize()
    trace = output.with_name(f"{output.name}.trace.json")
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    counts = costs(events)
    counts["synchronisations"] += len(waits)
    told = ", ".join(f"{name} {value:g}" for name, value in counts.items())
    rows = kernels(events)
    columns = {"kernel or operation": lambda r: r[0], "times": lambda r: str(r[1]),
               "us": lambda r: f"{r[2]:.0f}"}  # fmt: skip
    page = f"# One round, {settings.dtype}\n\n{told}\n\n{table(columns, rows)}\n"
    output.with_name(f"{output.name}.md").write_text(page, encoding="utf-8")
    return told


def _simulated_waits(device: torch.device) -> list[str]:
    """The waits of the host for the simulated accelerator so far; empty for other devices."""
    if device.type in ("cpu", "cuda"):
        return []
    from benchmarks.gpu.accelerator import WAITS

    return WAITS


def costs(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Counts, and microseconds, of a chrome trace's complete events.

    busy us: time with work on the device, overlapping work counted once; gap us: time without any,
    from its first work to its last.
    """
    whole = [e for e in events if e.get("ph") == "X"]
    of_cpu = [e for e in whole if e.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver")]
    there = sorted((e for e in whole if e.get("cat") in _ON_DEVICE), key=lambda e: float(e["ts"]))
    busy, end = 0.0, float("-inf")
    for event in there:
        begin, stop = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    span = end - float(there[0]["ts"]) if there else 0.0
    return {
        "operations": sum(e.get("cat") == "cpu_op" for e in whole),
        "kernels": sum(e.get("cat") == "kernel" for e in whole),
        "copies": sum(e.get("cat") in _ON_DEVICE[1:] for e in whole),
        "launches": sum(e["name"] in _LAUNCHES for e in of_cpu),
        "synchronisations": sum(any(word in e["name"] for word in _WAITS) for e in of_cpu),
        "busy us": round(busy, 1),
        "gap us": round(span - busy, 1),
        "us": round(_span(whole), 1),
    }


def _span(events: Sequence[Mapping[str, Any]]) -> float:
    timed = [e for e in events if e.get("cat") in (*_ON_DEVICE, "cpu_op", "cuda_runtime")]
    if not timed:
        return 0.0
    ends = max(float(e["ts"]) + float(e["dur"]) for e in timed)
    return ends - min(float(e["ts"]) for e in timed)


def kernels(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    """The costliest: name, times, microseconds; of the device, or of the CPU if it did nothing."""
    whole = [e for e in events if e.get("ph") == "X"]
    chosen = [e for e in whole if e.get("cat") in _ON_DEVICE]
    chosen = chosen or [e for e in whole if e.get("cat") == "cpu_op"]
    seconds, times = Counter[str](), Counter[str]()
    for event in chosen:
        seconds[event["name"]] += event["dur"]
        times[event["name"]] += 1
    return [(name[:90], times[name], us) for name, us in seconds.most_common(_NUM_SHOWN)]
