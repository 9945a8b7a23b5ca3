"""The checks of scripts/gpu-check.sh, part by part; each part runs in a process of its own.

    python -m benchmarks.gpu.parts PART FOLDER DEVICE

appends to FOLDER/work/PART.jsonl when a check begins and when it ends, so that the parent knows
how far a process came that crashed or was stopped.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.place import BEGUN, BUNDLED, FAILED, NOT_DONE, OK, SAMPLES, Check, Place
from benchmarks.gpu.rounds import profile_round
from benchmarks.gpu.server import serving
from benchmarks.gpu.training import gradients, training
from benchmarks.gpu.words import decoding, settings_of
from specdec_plugins.app.exactness import check_exactness
from specdec_plugins.app.translator import number_sentences


@dataclass(frozen=True)
class Part:
    """Checks that share a process."""

    seconds: int  # time limit
    checks: Callable[[Place], list[Check]]
    at_once: int = 1  # checks in parallel, on a GPU


def exactness(place: Place) -> list[Check]:
    """The whole text, by the function of scripts/check_exactness.py."""
    numbered = number_sentences(place.lines[: place.size(10**6, 4)])

    def check(dtype: str) -> str:
        settings = settings_of(
            BUNDLED, {"device": place.device, "dtype": dtype, "batch": place.size(16, 2)}
        )
        with place.entered():
            found = check_exactness(settings, numbered)
        assert found.holds, str(found)
        return str(found).splitlines()[0]

    expected = "every difference from greedy decoding explained by rounding"
    dtypes = ("float32", "float16", "bfloat16")
    return [Check(f"check_exactness, {dtype}", expected, partial(check, dtype)) for dtype in dtypes]


def bench(place: Place) -> list[Check]:
    """`make bench-gpu` on the bundled pair as it is and grown, with few sentences and rows."""
    rows = ["ours greedy*", "ours exact*", "fairseq greedy*"][: 3 if find_spec("fairseq") else 2]
    common = ["--pair", BUNDLED, "--test", SAMPLES, "--work", place.folder / "work/bench"]
    common += ["--batch-rows", "* greedy", "ours exact", "--threads", 2, "--repeats", 1]
    common += ["--turn", 50, "--relaxed", "--rows"]
    if place.rehearses:
        common += [*rows[:2], "--sentences", 2, "--dtypes", "float32"]
    else:
        common += [*rows, "--sentences", 24, "--dtypes", "float32", "float16", "--device", "cuda"]
        common += ["--batches", 1, 8, 32]

    def check(name: str, *grow: str) -> str:
        output = place.folder / f"bench.{name}"
        command = [sys.executable, "-m", "benchmarks", "--output", output, *common, *grow]
        said = place.call(f"bench.{name}", *command, seconds=100)
        return f"{output.name}.md, {len(said.splitlines())} lines"

    grown = "4x512x8400" if place.rehearses else "6x512x32000"
    needs = ("sacrebleu", "matplotlib", "sacremoses", "subword_nmt")
    where = "on the CPU" if place.rehearses else "on the GPU"
    return [
        Check(f"the bundled pair, {where}", "a table", partial(check, "pair"), needs),
        Check(f"grown to {grown}, {where}", "a table", partial(check, "grown", "--grow", grown),
              needs),
    ]  # fmt: skip


def profile(place: Place) -> list[Check]:
    """One round of exact decoding, batch 1."""

    def check(dtype: str) -> str:
        settings = settings_of(BUNDLED, {"device": place.device, "dtype": dtype})
        with place.entered():
            return profile_round(
                settings, max(place.lines, key=len), place.folder / f"round.{dtype}"
            )

    return [
        Check(f"one round, {dtype}", "a table and a trace", partial(check, dtype))
        for dtype in ("float32", "float16")
    ]


PARTS = {
    **{
        f"decoding.{dtype}": Part(place_seconds, partial(decoding, dtype))
        for dtype, place_seconds in (("float32", 90), ("float16", 60), ("bfloat16", 60))
    },
    "serving": Part(60, serving),
    "exactness": Part(45, exactness),
    "profile": Part(25, profile),
    "training": Part(100, training, at_once=6),
    "gradients": Part(40, gradients),
    "bench": Part(110, bench),
}


def run_part(name: str, place: Place) -> None:
    """Run the checks of a part; record when each begins and how it ends."""
    part = PARTS[name]
    with (place.folder / f"work/{name}.jsonl").open("a", encoding="utf-8") as records:

        def write(**record: Any) -> None:
            records.write(json.dumps(record, ensure_ascii=False) + "\n")
            records.flush()

        def do(check: Check) -> None:
            told = {"check": check.name, "expected": check.expected}
            missing = [module for module in check.needs if find_spec(module) is None]
            if missing:
                write(**told, status=NOT_DONE, found=f"{', '.join(missing)} not installed")
                return
            write(**told, status=BEGUN)
            status, found, seconds = attempt(check)
            write(**told, status=status, found=found, seconds=seconds)

        with ThreadPoolExecutor(place.size(part.at_once, 1)) as pool:
            list(pool.map(do, part.checks(place)))


def attempt(check: Check) -> tuple[str, str, float]:
    """Status, what was found, seconds. The traceback goes to standard error, which is the log."""
    began = time.perf_counter()
    try:
        status, found = OK, check.run()
    except Exception as error:  # reported; the next check runs
        traceback.print_exc()
        lines = [line for line in str(error).splitlines() if line.strip()]
        status, found = FAILED, f"{type(error).__name__}: {' '.join(lines)[:500]}"
    return status, found, round(time.perf_counter() - began, 2)


if __name__ == "__main__":
    run_part(sys.argv[1], Place(Path(sys.argv[2]).resolve(), sys.argv[3]))
