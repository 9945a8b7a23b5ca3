"""Checks the project on a GPU, with one command for a bare machine: scripts/gpu-check.sh --help.

`parts.py` defines the checks. Each part runs in a process of its own, with a time limit, so that
a crash affects no other part. The result of each check is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.place import BEGUN, FAILED, NOT_DONE, OK, SAMPLES, SIMULATED, SLOWER
from benchmarks.reports import ROOT, Record, command, describe, table, write
from specdec_plugins.corpus.cli import REQUIRED, CommandLine
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.output import check_output, remove

NEEDED = (
    "fairseq-fixed", "hydra-core", "omegaconf", "antlr4-python3-runtime", "bitarray", "cffi",
    "pycparser", "sacremoses", "subword-nmt",
)  # fmt: skip
MARKER = "gpu-check.json"  # in every folder of this program from the beginning
_OURS = ("gpu-check.", "bench.", "round.", "logs", "work")  # prefixes of names in it
_CELL = 160  # most characters in a cell of the table


def main(args: argparse.Namespace) -> int:
    """Exit status: 1 if a check failed."""
    usable = args.rehearse or torch.cuda.is_available()
    require(usable, "torch sees no GPU here; add --rehearse to run smaller checks on the CPU.")
    unknown = next((part for part in args.parts or () if part not in PARTS), None)
    names = ", ".join(PARTS)
    require(unknown is None, f"--parts: there is no part {unknown!r}; choose from {names}.")
    lines = read_lines(args.text or SAMPLES)
    is_there = args.wheels is None or args.wheels.is_dir()
    require(is_there, f"--wheels {args.wheels}: no such folder; give one with wheels, or omit it.")
    folder = emptied(args.output, (args.text, args.wheels))
    for name in ("logs", "work"):
        (folder / name).mkdir()
    (folder / "work/text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    device = SIMULATED if args.rehearse else "cuda"
    record: Record = {"command": command("scripts/gpu-check.sh"), "machine": machine(device)}
    checks: list[Record] = []
    began = time.monotonic()
    report(folder, record | {"seconds": 0}, checks)
    if args.wheels is not None:
        checks += install(args.wheels, folder)
    for name in args.parts or PARTS:
        done = run_part(name, folder, device)
        checks += done
        counts = Counter(check["status"] for check in done)
        told = ", ".join(f"{number} {status}" for status, number in counts.items())
        print(f"{time.monotonic() - began:4.0f} s  {name}: {told}", flush=True)
        report(folder, record | {"seconds": round(time.monotonic() - began)}, checks)
    remove(folder / "work")
    print(f"report: {folder / 'gpu-check.md'}")
    return int(any(check["status"] == FAILED for check in checks))


def read_lines(path: Path) -> list[str]:
    """The first column of a text, without empty lines. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--text {path}: cannot be read ({reason}); give UTF-8 text.") from error
    lines = [line for row in text.splitlines() if (line := row.split("\t")[0].strip())]
    require(bool(lines), f"--text {path}: no text found; give one sentence a line.")
    return lines


def emptied(folder: Path, inputs: Sequence[Path | None] = ()) -> Path:
    """The folder, new or without the last run's files. Raises UserError if it holds others."""
    check_output(folder, "--output", inputs=inputs, folder=True)
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in found if not name.startswith(_OURS)]
    require(
        not found or (MARKER in found and not others),
        f"--output {folder}: contains {(others or found or [''])[0]}, which no run of this "
        "program wrote; name another folder.",
    )
    folder = folder.resolve()
    for name in found:
        remove(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def machine(device: str) -> dict[str, Any]:
    """Machine, device, driver, versions, commit."""
    facts: dict[str, Any] = dict(describe("cuda" if device == "cuda" else "cpu"))
    if device == SIMULATED:
        facts["device"] = "simulated accelerator on the CPU"
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    facts["driver"] = "none"
    with suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(query, capture_output=True, text=True, check=True)
        facts["driver"] = "; ".join(done.stdout.split("\n")).strip("; ")
    return facts | {"CUDA of torch": str(torch.version.cuda)}


def install(wheels: Path, folder: Path) -> list[Record]:
    """Install each missing package from its wheel; returns a record of each."""
    records = []
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--find-links"]
    for package in NEEDED:
        with suppress(PackageNotFoundError):
            version(package)
            continue
        done = subprocess.run([*pip, str(wheels), package], capture_output=True, text=True)
        log = folder / f"logs/wheel.{package}.log"
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        status, last = (FAILED if done.returncode else OK), (done.stderr or done.stdout).strip()
        found = last.splitlines()[-1] if last else "no output"
        records.append(_record("wheels", package, status, found, "an installed package"))
    return records


def run_part(name: str, folder: Path, device: str) -> list[Record]:
    """Run a part, stopped when its time is up; returns a record of each check."""
    seconds = PARTS[name].seconds * (SLOWER if device == SIMULATED else 1)
    program = [sys.executable, "-m", "benchmarks.gpu.parts", name, str(folder), device]
    with (folder / f"logs/{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            program, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(seconds)
            end = f"the process ended with status {status} (logs/{name}.log)" if status else None
        except subprocess.TimeoutExpired:
            end = f"stopped after {seconds} s"
        finally:
            with suppress(ProcessLookupError):  # also what it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ended(name, folder / f"work/{name}.jsonl", end)


def ended(part: str, path: Path, end: str | None) -> list[Record]:
    """The result of each check; those that had only begun have failed for the reason `end`."""
    latest: dict[str, Record] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # the last line may be cut
                told = json.loads(line)
                latest[told["check"]] = {"part": part, **told}
    for told in latest.values():
        if told["status"] == BEGUN:
            told |= {"status": FAILED, "found": end or "it did not finish"}
    if end is not None:
        latest[""] = _record(part, "the whole part", FAILED, end, "all checks, in time")
    return list(latest.values())


def _record(part: str, check: str, status: str, found: str, expected: str) -> Record:
    told = {"part": part, "check": check, "status": status}
    return {**told, "found": found, "expected": expected}


def report(folder: Path, record: Record, checks: Sequence[Record]) -> None:
    """Write gpu-check.md and gpu-check.json."""
    counts = Counter(check["status"] for check in checks)
    facts = [f"* {name}: {value}" for name, value in record["machine"].items()]
    told = ", ".join(f"{counts[status]} {status}" for status in (OK, FAILED, NOT_DONE))
    page = ["# GPU check", "", f"`{record['command']}`", "", *facts, ""]
    page += [f"{told}, in {record['seconds']} s."]
    for status, title in ((FAILED, "Failed"), (NOT_DONE, "Not done")):
        page += ["", f"## {title}", ""] if counts[status] else []
        page += [
            f"* **{check['part']}, {check['check']}**: expected {check['expected']}; found "
            f"{check['found']} (logs/{check['part']}.log)"
            for check in checks
            if check["status"] == status
        ]
    shown = {name: name for name in ("part", "check", "status")} | {
        "s": "seconds",
        "found": "found",
    }
    columns = {title: partial(_cell, name) for title, name in shown.items()}
    page += ["", "## All checks", "", table(columns, checks), ""]
    page += [f"* [{path.name}]({path.name})" for path in sorted(folder.glob("[br]*.md"))]
    write(str(folder / "gpu-check"), {**record, "checks": list(checks)}, "\n".join(page))


def _cell(name: str, check: Record) -> str:
    value = str(check.get(name, "")).replace("|", "\\|").replace("\n", " ")
    return value if len(value) < _CELL else value[:_CELL] + " ..."


COMMAND = CommandLine(
    "gpu-check.sh",
    "Check decoding, training, the server and the speed on a GPU, in under ten minutes and without "
    "a network. Exit status 1 if a check failed; the report names those, and any not done.",
    main,
    [
        ("--output", REQUIRED, Path, "folder for the report; an earlier report is replaced"),
        ("--wheels", None, Path, "folder with the wheels of missing packages"),
        ("--text", None, Path, "text to decode: one sentence a line, or the first column of a TSV"),
        ("--rehearse", False, bool, "run smaller checks on the CPU, with a simulated device"),
        ("--parts", None, "PART", f"run only these parts, of: {', '.join(PARTS)}"),
    ],
    interrupted="stopped; the report covers the parts that had finished",
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
