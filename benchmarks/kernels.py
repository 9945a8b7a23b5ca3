"""Times CPU passes of few rows with each instruction set and torch, in tables of milliseconds.

`python -m benchmarks.kernels` prints the tables of benchmarks/results/kernels.md. The layers have
random 16-bit weights, as in bundles. The weights of a pass are beyond the L2 cache, and `--cold`
reads and writes 32 MB before each pass: more than a drafter does between two passes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks import StackConfig
from specdec_plugins.decoding.networks.cache import KVCache, SourceMemory
from specdec_plugins.decoding.networks.cpu.ops import instruction_sets
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


@torch.inference_mode()
def main() -> int:
    parser = Parser(prog="python -m benchmarks.kernels", description="Time CPU passes of few rows.")
    parser.add_argument("--threads", type=int, default=1, help="of every engine")
    parser.add_argument("--repeats", type=int, default=30, help="timed passes, of which the median")
    parser.add_argument("--cold", action="store_true", help="empty the caches before each pass")
    parser.add_argument("--sets", nargs="+", default=instruction_sets(), metavar="NAME")
    parser.add_argument("--size", default="6x512x32000", metavar="LAYERSxWIDTHxTYPES")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    layers, dim, types = map(int, args.size.split("x"))
    stack = StackConfig(layers, dim, 4 * dim, dim // HEAD, types, PREFIX + max(ROWS))
    for what, make, counts in (
        ("decoder and projection, positions", decoder_passes, ROWS),
        ("encoder, tokens", encoder_passes, TOKENS),
    ):
        times = milliseconds(make(stack, args.sets, counts), args.repeats, args.cold)
        printed(f"{args.size}: {what}", [f"{count}" for count in counts], times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
