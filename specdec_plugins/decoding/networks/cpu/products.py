"""Matrix products for decoding on a CPU, where a pass has few rows and reads every weight.

Figures and what else was tried: benchmarks/results/kernels.md.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.layers import LayerStack
from specdec_plugins.errors import require

_WIDE = 1024  # inputs from which the int8 kernel reorders transposed weights slowly at each call
# What leaves these goes into attention, which is computed in the precision that it gets.
_INTO_ATTENTION = ("qkv", "query", "key_value")

KERNELS = ("native", "torch")

_Network = TypeVar("_Network", bound=nn.Module)


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights, scaled per output, and 8-bit inputs, scaled per row.

    Sums of integers are exact and a row's scale depends on that row alone, so its result is the
    same in any block and any batch. Outputs have the dtype of `scale`.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.out_features, in_features = weight.shape
        largest = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        codes = (weight * (127 / largest)).round().to(torch.int8)  # [N, K]
        self.row_weight = codes.t()  # [K, N] both; the layouts that one row, and that more want
        self.block_weight = codes.t().contiguous() if in_features >= _WIDE else self.row_weight
        self.scale = (largest[:, 0] / 127).to(dtype)  # [N]
        bias = linear.bias
        self.bias = torch.zeros_like(self.scale) if bias is None else bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] of [..., K]."""
        rows = x.reshape(-1, x.shape[-1])
        step = rows.abs().amax(1, keepdim=True) / 127  # [M, 1], of one code of the row
        # A row of zeros is divided by zero; whatever codes that gives are multiplied by zero.
        codes = (rows / step).round_().to(torch.int8)
        sums = torch._int_mm(codes, self.row_weight if len(codes) == 1 else self.block_weight)
        out = torch.addcmul(self.bias, sums * self.scale, step.to(self.scale.dtype))
        return out.view(*x.shape[:-1], self.out_features)


FAST_PRODUCTS = (Int8Linear, ops.NativeLinear, ops.NativeLayers)


def with_fast_products(network: _Network, int8: bool = False, kernels: str = "native") -> _Network:
    """The network, its layers replaced in place by what is fastest where it lies.

    `kernels` says whose: "native" are this project's own, for float32 and 8 bits on a CPU, used
    where they were built and the processor has what they need; "torch" are torch's alone. With
    `int8` all linear layers are quantised. Raises UserError where 8-bit products do not work. The
    network can not be moved, copied or saved any more.
    """
    if kernels == "native":
        for parent, name, child in _children(network):
            if isinstance(child, LayerStack) and ops.suits_layers(child, int8):
                setattr(parent, name, ops.NativeLayers(child, int8))
        # A stack that is torch's still keeps torch's products: its attention lies between them.
        others = {m for m in network.modules() if isinstance(m, LayerStack) for m in m.modules()}
        for parent, name, child in _children(network):
            if not isinstance(child, nn.Linear) or parent in others:
                continue
            if ops.suits(child.weight, int8):
                setattr(parent, name, ops.NativeLinear(child, int8))
    if int8:
        _quantise(network)
    return network


def _quantise(network: nn.Module) -> None:
    """Give 8-bit weights to the linear layers that are still torch's own.

    Attention in between is computed in float64: a difference in the last bit, as blocks and rows
    have it in float32, could become one of a whole 8-bit step.
    """
    for parent, name, child in _children(network):
        if isinstance(child, nn.Linear):
            _check_int8(child.weight.device)
            dtype = torch.float64 if name in _INTO_ATTENTION else torch.float32
            setattr(parent, name, Int8Linear(child, dtype))


def _children(network: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """All modules, each with what holds it and under which name."""
    return [(p, name, child) for p in network.modules() for name, child in p.named_children()]


def _check_int8(device: torch.device) -> None:
    require(
        device.type == "cpu",
        f"int8 networks run on the CPU only, not on {device.type}; choose the CPU, or float16.",
    )
    require(
        _products_are_exact(),
        "This processor's 8-bit products overflow, so int8 is not offered on it; use float32.",
    )


@cache
def _products_are_exact() -> bool:
    """Without 8-bit dot products in hardware, some kernels add pairs in 16 bits and saturate."""
    for num_rows in (1, 2, 16):
        rows = torch.full((num_rows, 64), 127, dtype=torch.int8)
        columns = torch.full((32, 64), 127, dtype=torch.int8)
        columns[1::2] = -127
        expected = rows.long() @ columns.long().t()
        if not torch.equal(torch._int_mm(rows, columns.t()).long(), expected):
            return False
    return True
