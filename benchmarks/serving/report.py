"""What a load test found, as JSON and as a page to read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.comparison import markdown
from benchmarks.machine import describe
from benchmarks.serving.reference import Reference

if TYPE_CHECKING:
    from benchmarks.serving.load import Result

_HEADER = ("speculation", "clients", "requests", "p50 s", "p95 s", "p99 s", "tokens/s")
_HEADER += ("against the plain loop", "tokens a round")


def write(
    output: str | None, reference: Reference, results: Sequence[Result], arguments: Sequence[str]
) -> None:
    """Print the page; write it and the record where they are wanted."""
    facts = {**describe(reference.model.verifier.device.type), "threads": torch.get_num_threads()}
    page = "\n".join(_page(reference, results, arguments, facts))
    print(page)
    if output is None:
        return
    record = {
        "arguments": list(arguments),
        "machine": facts,
        "plain_loop": {
            "texts": len(reference.texts),
            "seconds": reference.seconds,
            "tokens_per_second": reference.tokens_per_second,
        },
        "results": [asdict(result) for result in results],
    }
    Path(f"{output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    Path(f"{output}.md").write_text(page + "\n", encoding="utf-8")


def _page(
    reference: Reference,
    results: Sequence[Result],
    arguments: Sequence[str],
    facts: dict[str, Any],
) -> list[str]:
    texts = len(reference.texts)
    lines = [
        "# Load test of specdec-serve",
        "",
        f"`python -m benchmarks.serving.load {shlex.join(arguments)}`",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
        f"A plain loop over the same model, one sentence after the other in one process: "
        f"{reference.tokens_per_second:.0f} tokens/s, {reference.seconds / texts:.4f} s a text, "
        f"{texts} texts.",
    ]
    timed = [result for result in results if not result.load.mixed]
    if timed:
        lines += ["", markdown(_HEADER, [_row(result, reference) for result in timed])]
    for result in (result for result in results if result.load.mixed):
        lines += ["", *_mixed(result)]
    return [*lines, "", *_verdict(results)]


def _row(result: Result, reference: Reference) -> list[str]:
    return [
        result.load.mode,
        str(result.load.concurrency),
        str(result.num_requests),
        *(f"{figure:.3f}" for figure in (result.p50, result.p95, result.p99)),
        f"{result.tokens_per_second:.0f}",
        f"{result.tokens_per_second / reference.tokens_per_second:.2f}x",
        f"{result.tokens_per_round:.2f}",
    ]


def _mixed(result: Result) -> list[str]:
    kinds = ", ".join(f"{num} {kind}" for kind, num in sorted(result.kinds.items()))
    codes = ", ".join(f"{num} with {code}" for code, num in sorted(result.codes.items()))
    return [
        f"## {result.num_requests} mixed requests, {result.load.concurrency} clients, "
        f"speculation {result.load.mode}",
        "",
        f"* Sent: {kinds}; {result.retries} tried again after 429.",
        f"* The log has: {codes}. In {result.seconds:.0f} s; latency p50 {result.p50:.3f}, "
        f"p95 {result.p95:.3f}, p99 {result.p99:.3f} s.",
        *(f"* {figure}" for figure in result.figures),
    ]


def _verdict(results: Sequence[Result]) -> list[str]:
    near_ties = {line for result in results for line in result.near_ties}
    faults = [f"* FAULT ({r.load.name}): {line}" for r in results for line in r.faults]
    if not faults:
        faults = [
            "No fault: every good request was answered, every answer is the plain decoding of its "
            "text, no row stayed behind, every answer stands in the log once under its id, and the "
            "metrics agree with the clients' counts. Spans are what clients that left may have had "
            "decoded, and rounds of answers that do not tell them."
        ]
    ties = sorted(near_ties) or ["none"]
    return [*faults, "", "Near-ties (two best logits less than 1e-4 apart): " + "; ".join(ties)]
