"""Whether translations are the same however they are decoded: a table for a model and its text.

`python -m benchmarks.identical TEXT` first decodes greedily, one sentence at a time, on one thread,
with the native lane and the best instruction set. Then it counts the sentences that get the same
tokens by greedy and exact decoding, alone and in batches, in another lane, on another number of
threads and with another set: one change at a time, or with `--all` every combination. In brackets:
how many also have, to the last bit, the log-probabilities of the first decoding with that set. Each
set has a process of its own. The exit status is 1 if a token differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import groupby, product
from multiprocessing import get_context
from operator import eq
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus.scoring import read_lines
from specdec_plugins.decoding import engine
from specdec_plugins.decoding.networks.cpu.ops import instruction_sets
from specdec_plugins.errors import Parser, run_command

LANES = NATIVE, TORCH = "native", "torch"
STRATEGIES = {"greedy": "AR", "exact": "specdec"}
WAYS = [*product(STRATEGIES, (1, 16))]  # decoding, sentences at once
Said = tuple[list[str], list[float | None]]  # tokens, and their log-probabilities


def decoded(lines: Sequence[str], threads: int, lane: str, given: dict[str, Any]) -> list[Said]:
    """Translations of lines in this process; given: settings."""
    torch.set_num_threads(threads)
    needed = mock.patch.object(engine, "native_lane", return_value=None)
    with nullcontext() if lane == NATIVE else needed:
        translator = SpeculativeTranslator.from_pretrained(device="cpu", **given)
        return [(done.tokens, done.token_scores) for done in translator.translate(lines)]


def combinations(args: Any) -> list[tuple[str, str, int, str]]:
    """Precision, set, threads and lane, by set and precision."""
    found = [*product(args.sets, args.dtypes, args.threads, args.lanes)]
    first = args.sets[0], args.threads[0], args.lanes[0]
    return [
        one
        for one in found
        if args.all or sum(a != b for a, b in zip((one[0], *one[2:]), first, strict=True)) < 2
    ]


def rows(args: Any, lines: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Lines of the table, and of what differs."""
    first: dict[str, list[Said]] = {}  # by precision
    like: dict[str, list[Said]] = {}  # by precision and set
    spawn = get_context("spawn")  # whose process looks at the environment anew
    for name, alike in groupby(combinations(args), lambda one: one[0]):
        os.environ["SPECDEC_INSTRUCTION_SET"] = name
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            for _, dtype, threads, lane in alike:
                cells, differing = [f"{name}, {dtype}", f"{threads}", lane], list[str]()
                ways = WAYS if args.all or dtype not in first else WAYS[2:]
                cells += ["" for _ in WAYS[len(ways) :]]
                for how, batch in ways:
                    # Blocks are drafted in batches, too.
                    given = {"data": args.model, "dtype": dtype, "schedule": "constant"}
                    given |= {"strategy": STRATEGIES[how], "batch": batch}
                    said = process.submit(decoded, lines, threads, lane, given).result()
                    same = sum(map(eq, said, like.setdefault(f"{name}, {dtype}", said)))
                    pairs = zip(said, first.setdefault(dtype, said), strict=True)
                    other = [str(n) for n, (a, b) in enumerate(pairs, 1) if a[0] != b[0]]
                    cells.append(f"{len(lines) - len(other)} ({same})")
                    if other:
                        told = f"{how}, {batch} at once: sentences {' '.join(other)}"
                        differing.append(", ".join([*cells[:3], told]))
                yield cells, differing


def main() -> int:
    parser = Parser(prog="python -m benchmarks.identical", description="Compare ways of decoding.")
    parser.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="sentences, one a line")
    parser.add_argument("--model", help="bundle with a drafter (default: the bundled pair)")
    parser.add_argument("--sets", nargs="+", default=instruction_sets(), metavar="NAME")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "int8"], metavar="NAME")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--lanes", nargs="+", default=LANES, choices=LANES)
    parser.add_argument("--all", action="store_true", help="every combination, also greedily")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read every N-th line")
    args = parser.parse_args()
    lines = [line for path in args.texts for line in read_lines(path)][:: args.every]
    head = ["set, precision", "threads", "lane", *(f"{how}, {n} at once" for how, n in WAYS)]
    print(f"{len(lines)} sentences\n\n| {' | '.join(head)} |\n|---|---:|---|{'---:|' * len(WAYS)}")
    found = list[str]()
    for cells, differing in rows(args, lines):
        print(f"| {' | '.join(cells)} |", flush=True)
        found += differing
    print("\n".join(["", *found]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run_command("python -m benchmarks.identical", main, False, "stopped."))
