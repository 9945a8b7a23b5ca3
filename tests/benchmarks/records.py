"""Records of runs that never were, with round figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.results import Results
from benchmarks.systems import System


def cell(
    system: System, seconds: Sequence[float], threads: int = 2, batch: int = 1, **changes: Any
) -> dict[str, Any]:
    """One system that took so many seconds in each repetition."""
    figures: dict[str, Any] = {
        "row": system.to_dict(),
        "threads": threads,
        "batch": batch,
        "seconds": list(seconds),
        "seconds_a_sentence": {"p50": seconds[0] / 4, "p95": seconds[0] / 2},
        "tokens": 40,
        "tokens_a_second": [40 / s for s in seconds],
        "bleu": 30.0,
        "differs_from_fairseq_greedy": [],
        "differs_from_our_greedy": [],
        "num_unstable": 0,
        "accepted_tokens": None,
        "acceptance_by_position": [],
        "shares": {},
        "peak_memory_mib": 100.0,
        "by_length": [[n, seconds[0] / 4] for n in (3, 5, 8, 13)] if batch == 1 else [],
    }
    return {**figures, **changes}


def results(cells: Sequence[dict[str, Any]], device: str = "cpu", **changes: Any) -> Results:
    record: dict[str, Any] = {
        "command": "python -m benchmarks",
        "machine": {"processor": "abacus", "commit": "abc"},
        "pair": {"name": "toys", "verifier": "small", "drafter": "smaller", "drafter_weights": 0},
        "setting": {"device": device, "repeats": 2, "min_len": 1, "max_len": 200},
        "cells": list(cells),
    }
    about = {"test": "toys.tsv", "num_sentences": 4, "bleu_signature": "nrefs:1", "near_ties": []}
    return Results({**record, **about, **changes})
