"""Times CPU passes of few rows with each instruction set and torch, in tables of milliseconds.

`python -m benchmarks.kernels` prints the tables of benchmarks/results/kernels.md. The layers have
random 16-bit weights, as in bundles. The weights of a pass are beyond the L2 cache, and `--cold`
reads and writes 32 MB before each pass: more than a drafter does between two passes.

`--around TEXT` instead prints what is around the kernels: the processor time of sentences of the
bundled pair, decoded one at a time in 8 bits, in calls of the kernels' lane and in all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.corpus.scoring import read_lines
from specdec_plugins.decoding.networks import StackConfig
from specdec_plugins.decoding.networks.cache import KVCache, SourceMemory
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.products import NativeLayers, NativeLinear
from specdec_plugins.decoding.networks.layers import LayerStack
from specdec_plugins.errors import Parser

HEAD = 64  # width of an attention head
PREFIX, SOURCE = 20, 20  # target tokens in the cache, source tokens
ROWS, TOKENS = (1, 5, 8, 11), (10, 20, 30)
TORCH = "torch"
Key = tuple[str, ...]  # instruction set, precision, count
Jobs = dict[Key, Callable[[], object]]


def milliseconds(jobs: Jobs, repeats: int, cold: bool) -> dict[Key, float]:
    """The median wall-clock time over interleaved turns."""
    spent: dict[Key, list[float]] = {key: [] for key in jobs}
    others, last = torch.zeros(8 << 20), None  # 32 MB
    for _ in range(repeats):
        for key, run in jobs.items():
            if cold:
                others.add_(1)
            elif key[:-1] != last:  # other weights: warm up
                for _ in range(3):
                    run()
            last = key[:-1]
            before = time.perf_counter()
            run()
            spent[key].append(1000 * (time.perf_counter() - before))
    return {key: median(times) for key, times in spent.items()}


def printed(first: str, columns: Sequence[str], times: dict[Key, float]) -> None:
    """Print a line for each key without its last part, which names the column; column 1 is 1x."""
    print(f"\n| {first} | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns))
    for line in dict.fromkeys(key[:-1] for key in times):
        own = [times[(*line, column)] for column in columns]
        ratios = [f"{time:.2f} ({time / own[0]:.2f}x)" for time in own[1:]]
        print(f"| {', '.join(line)} | {own[0]:.2f} | " + " | ".join(ratios) + " |", flush=True)


def random_layers(stack: StackConfig, source: int | None) -> LayerStack:
    return LayerStack(stack, "relu", source).requires_grad_(False).half().float()


def decoder_passes(stack: StackConfig, sets: Sequence[str], rows: Sequence[int]) -> Jobs:
    """All decoder layers and the projection, over `rows` positions of one sentence."""
    jobs: Jobs = {}
    layers = random_layers(stack, stack.dim)
    project = nn.Linear(stack.dim, stack.vocab_size, bias=False).half().float()
    states = torch.randn(1, SOURCE, stack.dim)
    lengths, padding = torch.tensor([SOURCE]), torch.zeros(1, SOURCE, dtype=torch.bool)
    for name, int8 in kinds(sets):
        own, output = NativeLayers(layers, int8, name), NativeLinear(project, int8, name)
        memory = SourceMemory(lengths, padding, own.keys_values(states)).trimmed()
        cache = KVCache(stack, 1, states.device, torch.float32)
        window = cache.window(PREFIX, 0)
        own(torch.randn(1, PREFIX, stack.dim), window.mask, window, memory)

        for count in rows:
            x = torch.randn(1, count, stack.dim)
            jobs[name, precision(int8), f"{count}"] = partial(
                decoder_pass, own, output, cache, memory, x
            )
    return jobs


def decoder_pass(
    layers: NativeLayers, project: NativeLinear, cache: KVCache, memory: SourceMemory, x: Tensor
) -> Tensor:
    cache.crop(torch.tensor([PREFIX]))
    window = cache.window(x.shape[1], width=PREFIX)
    logits: Tensor = project(layers(x, window.mask, window, memory))
    return logits


def encoder_passes(stack: StackConfig, sets: Sequence[str], tokens: Sequence[int]) -> Jobs:
    """All encoder layers over one sentence of `tokens` tokens."""
    jobs: Jobs = {}
    for name, int8 in (*kinds(sets), (TORCH, False)):  # torch's products are oneDNN's
        layers = random_layers(stack, None)
        own = layers if name == TORCH else NativeLayers(layers, int8, name)
        for count in tokens:
            x = torch.randn(1, count, stack.dim)
            jobs[name, precision(int8), f"{count}"] = partial(own, x, None)
    return jobs


def kinds(sets: Sequence[str]) -> Iterator[tuple[str, bool]]:
    return ((name, int8) for int8 in (False, True) for name in sets)


def precision(int8: bool) -> str:
    return "int8" if int8 else "float32"


class Timed:
    """A lane of the kernels, which adds up the processor time of its calls."""

    spent = 0.0

    def __init__(self, lane: Any) -> None:
        self.__dict__["lane"] = lane

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.lane, name)
        return partial(self._call, own) if callable(own) else own

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.lane, name, value)

    def _call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        before = time.thread_time()
        found = function(*args, **named)
        Timed.spent += time.thread_time() - before
        return found


def print_around(text: Path, repeats: int) -> None:
    """Exact decoding, from token ids to token ids; the turn of the least time counts."""
    made, turns = ops.native.Lane, list[tuple[float, float]]()
    with mock.patch.object(ops.native, "Lane", lambda **given: Timed(made(**given))):
        given: dict[str, Any] = {"dtype": "int8", "scores": False, "batch": 1}
        own = SpeculativeTranslator.from_pretrained(device="cpu", **given)
        asked = map(own.prepare, number_sentences(read_lines(text)))
        requests = [request for request in asked if request]
        for _ in range(repeats):
            Timed.spent, before = 0.0, time.thread_time()
            for request in requests:
                list(own.decoder.run([request]))
            turns.append((time.thread_time() - before, Timed.spent))
    whole, inside = (1e6 / len(requests) * least for least in min(turns))
    told = f"{whole:.0f} microseconds a sentence, {whole - inside:.0f} around the kernels' lane"
    print(f"{told}, {1 - inside / whole:.1%}")


def main() -> int:
    parser = Parser(prog="python -m benchmarks.kernels", description="Time CPU passes of few rows.")
    parser.add_argument("--threads", type=int, default=1, help="of every engine")
    parser.add_argument("--repeats", type=int, default=30, help="timed passes, of which the median")
    parser.add_argument("--cold", action="store_true", help="empty the caches before each pass")
    parser.add_argument("--sets", nargs="+", default=ops.instruction_sets(), metavar="NAME")
    parser.add_argument("--size", default="6x512x32000", metavar="LAYERSxWIDTHxTYPES")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--around", type=Path, metavar="TEXT", help="sentences, one a line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.around is not None:
        print_around(args.around, args.repeats)
        return 0
    torch.manual_seed(args.seed)
    layers, dim, types = map(int, args.size.split("x"))
    stack = StackConfig(layers, dim, 4 * dim, dim // HEAD, types, PREFIX + max(ROWS))
    torch.set_grad_enabled(False)
    for what, make, counts in (
        ("decoder and projection, positions", decoder_passes, ROWS),
        ("encoder, tokens", encoder_passes, TOKENS),
    ):
        times = milliseconds(make(stack, args.sets, counts), args.repeats, args.cold)
        printed(f"{args.size}: {what}", [f"{count}" for count in counts], times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
