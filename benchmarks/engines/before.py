"""An older commit of this project, in a checkout of its own with its kernels built.

A process in the checkout runs that commit's code. Only the Python interface of docs/python.md is
used, which older commits also have: tokens in, tokens and counts out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines import Engine, Output, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import GREEDY, System
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import UserError, require

_PROGRAM = """
import json, sys, torch
from specdec_plugins.app.translator import SpeculativeTranslator
threads, settings = json.loads(sys.argv[1])
torch.set_num_threads(threads)
translator = SpeculativeTranslator.from_pretrained(scores=False, **settings)
print("[]", flush=True)
for line in sys.stdin:
    tokens = [found.tokens for found in translator.translate_tokens(json.loads(line))]
    print(json.dumps([tokens, vars(translator.stats)]), flush=True)
"""
_NO_TEXT = {"tokenizer": None, "bpe": None, "bpe_codes": None, "greedy_like": "fairseq"}


class Before(Engine):
    """A process that answers each line of JSON with another."""

    def __init__(self, checkout: str, *arguments: Any) -> None:
        """Raises UserError where the process does not start."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(arguments)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": checkout},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._counted: dict[str, Any] = {"seconds": {}}
        self._answer()

    def translate(self, batch: Sequence[Sentence]) -> Output:
        """Decode the batch in a session of its own."""
        assert self._process.stdin is not None
        print(json.dumps([s.tokens for s in batch]), file=self._process.stdin, flush=True)
        tokens, counts = self._answer()
        before, self._counted = self._counted, counts
        numbers = {n: v - before.get(n, 0) for n, v in counts.items() if isinstance(v, int)}
        times = counts["seconds"].items()
        seconds = {part: time - before["seconds"].get(part, 0.0) for part, time in times}
        return Output(tokens, DecodeStats(**numbers, seconds=seconds))

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise UserError("the older commit's process ended; its output is above.")


def load(system: System, workload: Workload, threads: int) -> Before:
    """Raises UserError if no older checkout was named."""
    checkout, settings = workload.before
    require(bool(checkout), "needs a checkout of an older commit, and none was given.")
    options, lengths = system.options, workload.lengths
    more = {
        "dtype": system.dtype,
        "device": workload.device,
        "batch": workload.max_batch,
        "min_len": lengths.min_len,
        "max_len_b": lengths.max_len,
    }
    if system.role == GREEDY:
        more |= {"strategy": "AR"}
    else:
        more |= {"block_size": options["k"]} if "k" in options else {}
        # int8 was not the default then.
        more |= {"drafter_dtype": "int8"} if system.dtype == "float32" else {}
    return Before(str(Path(checkout).resolve()), threads, {**settings, **_NO_TEXT, **more})
