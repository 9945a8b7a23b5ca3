"""What a GPU must take for a round, counted: python -m benchmarks.counted writes a table.

Operations are traced without a GPU, on tensors that have shapes and no numbers. Each that computes
is one launch, and takes the longest of the launch, of its bytes at the memory's bandwidth and of
its products at the peak in fp16. So a time is a lower bound by this model, not a measurement:
kernels reach neither peak, and an operation may be several kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_plugins.decoding import lane
from specdec_plugins.decoding.contract import SpecialTokens
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    StackConfig,
    Transformer,
    TransformerConfig,
)
from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.stats import PartTimer
from specdec_plugins.decoding.verifier import TransformerVerifier

META = torch.device("meta")
TYPES, LENGTH, MIDDLE = 32_000, 25, 12  # types, tokens of source and text, tokens that stand
EAGER, IN_A_GRAPH = 10e-6, 4e-6  # seconds a launch: by torch from Python, in a CUDA graph


class Gpu(NamedTuple):
    """Figures of its data sheet."""

    name: str
    bandwidth: float  # bytes a second
    products: float  # additions and multiplications a second, fp16, dense


# NVIDIA's data sheets: Tesla P100 for PCIe, 16 GB (2016), H100 SXM5 (2022).
GPUS = (Gpu("P100", 732e9, 18.7e12), Gpu("H100", 3.35e12, 989e12))


class System(NamedTuple):
    """A way of decoding, and how many tokens its round brings."""

    name: str
    block: dict[str, Any] | None  # of the drafter's configuration; None = no drafter
    accepted: float
    block_size: int = 0
    published: float | None = None  # seconds for three sentences on a P100, by the authors


_FAST = {"cached_prefix": True, "sequential_head": 768, "head_attention": 8, "copy_source": False}
_LISTED = {"shortlist_common": 200, "shortlist_types": 380_000, "block_size": 8}
SYSTEMS = (
    System("greedy", None, 1.0, published=0.81),
    System("exact, published drafter", {"block_size": 25}, 3.55, 25, 0.44),
    System("beta 5, tau 3, published drafter", {"block_size": 25}, 6.18, 25, 0.27),
    System("exact, fast drafter", {**_FAST, **_LISTED}, 4.29, 12),
)


@dataclass
class Launch:
    """One operation that computes."""

    num_bytes: int
    products: float

    def seconds(self, gpu: Gpu, least: float) -> float:
        return max(least, self.num_bytes / gpu.bandwidth, self.products / gpu.products)


Parts = tuple[list[Launch], list[Launch]]
_READS, _WRITES = ("embedding", "index", "gather"), ("scatter_", "index_copy_")
_PRODUCTS = ("linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "scaled_dot_product_attention")


class Counted(TorchDispatchMode):
    """Notes what is launched on that kind of device."""

    def __init__(self, on: str = "meta") -> None:
        super().__init__()
        self.on = on
        self.launches: list[Launch] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, operation._schema.name.removeprefix("aten::")
        if name not in _PRODUCTS and operation._can_decompose() and _is_composite(operation):
            with self:
                return operation.decompose(*args, **kwargs)
        made = operation(*args, **kwargs)
        views = operation._schema.returns
        is_free = any(r.alias_info is not None and not r.alias_info.is_write for r in views)
        is_free |= name.startswith(("empty", "new_empty"))
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        out = [x for x in pytree.tree_leaves(made) if isinstance(x, Tensor)]
        if out and out[0].device.type == self.on and not is_free:
            self.launches.append(Launch(_bytes(name, tensors, out), _products(name, tensors, out)))
        return made


def _is_composite(operation: Any) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), key))


def _bytes(name: str, tensors: list[Tensor], out: list[Tensor]) -> int:
    """Bytes that are read and written; of a table only the rows that are asked for."""
    if name in _WRITES:
        return 2 * tensors[-1].nbytes
    if name in _READS:
        return 2 * out[0].nbytes
    read = (x.untyped_storage().nbytes() if 0 in x.stride() else x.nbytes for x in tensors)
    return sum(read) + sum(x.nbytes for x in out)


def _products(name: str, tensors: list[Tensor], out: list[Tensor]) -> float:
    if name not in _PRODUCTS:
        return 0.0
    inner = tensors[0].shape[-1]
    if name == "scaled_dot_product_attention":
        return 4.0 * out[0].numel() * tensors[1].shape[-2]
    return 2.0 * out[0].numel() * (tensors[1].shape[-1] if name in ("addmm", "baddbmm") else inner)


def traced(system: System, num_rows: int) -> Parts:
    """What is launched when rows join, and in a round in the middle of their texts."""
    width = 512
    stack = StackConfig(6, width, 4 * width, 8, TYPES, max_positions=1024)
    shared: Any = {"share_embeddings": True, "tie_output": True}
    with META:
        verifier = Transformer(TransformerConfig(stack, stack, **shared)).half().eval()
    special = SpecialTokens(start=2, pad=1, eos=2, unk=3)
    own, drafter = TransformerVerifier(verifier, special), None
    if system.block is not None:
        layers = 2 if system.block.get("cached_prefix") else 6
        learned = replace(stack, num_layers=layers, positions="learned")
        encoder = stack if layers == 2 else learned
        with META:
            made = BlockDrafter(BlockConfig(encoder, learned, **shared, **system.block))
        if layers == 2:
            made.encoder = verifier.encoder
        if made.decoder.shortlist is not None:
            made.decoder.shortlist.most = 40  # of a source type, as the bundled pair has
        context = DraftContext(own, made.half().eval())
        options = {} if layers == 2 else {"share_encoder": False}
        drafter = DRAFTERS.build("block", context, options=options)
    parts = lane.Method(drafter, Exact(), Constant(Constant.Config()))
    config = lane.EngineConfig(max_rows=num_rows)
    rows = lane.TorchLane(own, parts, config, PartTimer(META, enabled=False))
    params = DecodeParams(block_size=system.block_size, max_len=2 * LENGTH)
    text = [4] * (LENGTH - 1)
    jobs = [Request(str(i), [*text, 2], params, text[:MIDDLE]) for i in range(num_rows)]
    told = mock.patch.object(lane, "to_host", _told)
    with told, mock.patch.object(Tensor, "tolist", _tolist), torch.inference_mode():
        with Counted() as joining:
            rows.admit(jobs, 0.0)
            rows.run(1)
        with Counted() as counted:
            rows.run(1)
    return joining.launches[: -len(counted.launches)], counted.launches


_plain_tolist = Tensor.tolist


def _tolist(tensor: Tensor) -> Any:
    return [MIDDLE] * len(tensor) if tensor.is_meta else _plain_tolist(tensor)


def _told(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """`to_host` of a round that has brought each row to the middle of its text."""
    torch.cat([t.long().view(len(t), -1) for t in tensors], 1)  # what it launches
    return [
        [False if t.dtype is torch.bool else MIDDLE if t.dim() == 1 else [4] * t.shape[1]] * len(t)
        for t in tensors
    ]


def sentence(system: System, parts: Parts, num_rows: int, gpu: Gpu, launch: float) -> float:
    """Milliseconds a sentence of `LENGTH` tokens and its end; parts: `traced`."""
    joining, once = (sum(x.seconds(gpu, launch) for x in part) for part in parts)
    rounds = LENGTH / system.accepted + (system.block is None)
    return 1000 * (joining + rounds * once) / num_rows


def main() -> None:
    """Write the table, in Markdown."""
    head = ["launches a round, MB", "P100, eager", "H100, eager", "H100, graphs"]
    head += [f"batch 32: {name}" for name in head[1:]] + ["published, P100"]
    sys.stdout.write(f"| | {' | '.join(head)} |\n|---|{'---:|' * len(head)}\n")
    p100, h100 = GPUS
    for system in SYSTEMS:
        cells = list[str]()
        for num_rows in (1, 32):
            parts = traced(system, num_rows)
            if num_rows == 1:
                cells.append(f"{len(parts[1])}, {sum(x.num_bytes for x in parts[1]) / 1e6:.0f}")
            for gpu, launch in ((p100, EAGER), (h100, EAGER), (h100, IN_A_GRAPH)):
                cells.append(f"{sentence(system, parts, num_rows, gpu, launch):.1f}")
        cells.append("" if system.published is None else f"{1000 * system.published / 3:.0f}")
        sys.stdout.write(f"| {system.name} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
