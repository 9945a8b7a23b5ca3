"""Products of few rows on a CPU, and greedy steps and rounds made of them: tables of milliseconds.

`python -m benchmarks.kernels --threads 1` prints what benchmarks/results/kernels.md holds.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import (
    KERNELS,
    StackConfig,
    Transformer,
    TransformerConfig,
    with_fast_products,
)
from specdec_plugins.decoding.networks.cpu.ops import NativeLinear
from specdec_plugins.decoding.networks.cpu.products import Int8Linear
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import build_schedule
from specdec_plugins.decoding.types import (
    DecodeParams,
    Draft,
    Prefix,
    Request,
    Round,
    RowParams,
    RowRandom,
    SourceBatch,
    SpecialTokens,
)
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import Parser

SHAPES = ((256, 256), (256, 1024), (256, 32000), (512, 512), (512, 2048), (2048, 512), (512, 32000))
ROWS = (1, 2, 8, 11, 16, 26)
SPECIAL = SpecialTokens(start=2, pad=1, eos=2, unk=3)
BLOCK, NUM_TOKENS, NUM_SOURCE = 10, 48, 20

Clock = Callable[[], float]


def least(ways: dict[str, Callable[[], object]], repeats: int, clock: Clock) -> dict[str, float]:
    """Milliseconds of each, the least of interleaved repeats."""
    best = dict.fromkeys(ways, float("inf"))
    for run in ways.values():
        run()
    for _ in range(repeats):
        for name, run in ways.items():
            before = clock()
            run()
            best[name] = min(best[name], 1000 * (clock() - before))
    return best


def candidates(linear: nn.Linear, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Ways to compute one product, each giving [M, N]."""
    weight, bias = linear.weight, linear.bias
    columns = weight.t().contiguous()
    int8 = Int8Linear(linear)
    own, own_int8 = NativeLinear(linear), NativeLinear(linear, int8=True)
    return {
        "F.linear": lambda: F.linear(x, weight, bias),
        "weight @ x.T": lambda: torch.mm(weight, x.t()).t() + bias,
        "x @ columns": lambda: torch.addmm(bias, x, columns),
        "native": lambda: own(x),
        "torch int8": lambda: int8(x),
        "native int8": lambda: own_int8(x),
    }


@torch.inference_mode()
def products(repeats: int, clock: Clock) -> None:
    """One line a shape and number of rows; `=` where a row is bit for bit what it is alone."""
    for inputs, outputs in SHAPES:
        linear = nn.Linear(inputs, outputs)
        x = torch.randn(max(ROWS), inputs)
        alone = {name: run() for name, run in candidates(linear, x[:1]).items()}
        for num_rows in ROWS:
            ways = candidates(linear, x[:num_rows])
            cells = [f"{inputs} x {outputs}", f"{num_rows}"]
            for name, milliseconds in least(ways, repeats, clock).items():
                same = "=" if torch.equal(ways[name]()[:1], alone[name]) else ""
                cells.append(f"{milliseconds:.3f} {same}".strip())
            print("| " + " | ".join(cells) + " |", flush=True)


class Guesses:
    """Drafts the same token again and again, at no cost: what remains is the engine's round."""

    max_block_size = None

    def admit(self, source: SourceBatch) -> None: ...

    def commit(self, prefix: Prefix, last: Round) -> None: ...

    def select(self, rows: Tensor) -> None: ...

    def propose(
        self, prefix: Prefix, budget: Tensor, width: int, params: RowParams, random: RowRandom
    ) -> Draft:
        return Draft(torch.full((len(budget), width), 7), budget)


def random_network() -> Transformer:
    """6+6 layers, 512 wide, 32,000 types."""
    stack = StackConfig(6, 512, 2048, 8, 32000, 1024)
    network = Transformer(TransformerConfig(stack, stack, share_embeddings=True, tie_output=True))
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.03)
    return network.eval().requires_grad_(False)


def decode(verifier: TransformerVerifier, block_size: int) -> int:
    """One sentence of a fixed length; returns how many rounds it took."""
    drafter = Guesses() if block_size else None
    method = Method(drafter, RULES.get("exact")(), build_schedule("constant"))
    params = DecodeParams(block_size=block_size, max_len=NUM_TOKENS, min_len=NUM_TOKENS)
    source = [*range(10, 9 + NUM_SOURCE), SPECIAL.eos]
    decoder = SpeculativeDecoder(verifier, method, EngineConfig(max_rows=1))
    return decoder.decode([Request("0", source, params)])[0].rounds


def passes(repeats: int, clock: Clock) -> None:
    """A greedy step and a round of ten drafted tokens, the encoder's share included."""
    plain = random_network()
    verifiers = {}
    for int8, kernels in product((False, True), reversed(KERNELS)):
        network = with_fast_products(copy.deepcopy(plain), int8, kernels)
        name = f"{'int8' if int8 else 'float32'}, {kernels}"
        verifiers[name] = TransformerVerifier(network, SPECIAL)
    jobs = {(n, k): (v, k) for n, v in verifiers.items() for k in (0, BLOCK)}
    rounds = {key: decode(*job) for key, job in jobs.items()}
    ways = {f"{n}|{k}": (lambda job=job: decode(*job)) for (n, k), job in jobs.items()}
    best = least(ways, repeats, clock)
    for name in verifiers:
        step, block = (best[f"{name}|{k}"] / rounds[name, k] for k in (0, BLOCK))
        print(f"| {name} | {step:.2f} | {block:.2f} | {block / step:.2f} |", flush=True)


def main() -> int:
    parser = Parser(
        prog="python -m benchmarks.kernels", description="Time products of few rows on a CPU."
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count seconds of the processor and not of the wall, where others use it too; "
        "one thread only",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    clock = time.process_time if args.cpu_time else time.perf_counter
    ways = candidates(nn.Linear(2, 2), torch.zeros(1, 2))
    print("| inputs x outputs | rows | " + " | ".join(ways) + " |")
    print("| --- | ---: |" + " ---: |" * len(ways))
    products(args.repeats, clock)
    print(f"\n| 6+6 x 512, 32k | greedy step | round of {BLOCK} | ratio |")
    print("| --- | ---: | ---: | ---: |")
    passes(max(args.repeats // 3, 1), clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
