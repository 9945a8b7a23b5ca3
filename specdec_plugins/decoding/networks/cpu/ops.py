"""Layers and products by kernels of this project's own, in C++ (decoding/networks/cpu).

torch's modules launch some twenty operations a layer, and its products copy weights or read them
badly where there are few rows. Here a pass over all layers is one call, weights are read once and
in order, and a row's result does not depend on what else is computed: on the block it is scored in,
on its batch, on the width of the cache or on the number of threads. So exact mode is greedy
decoding to the last bit. The torch modules are the slow twin (tests/decoding/networks).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from specdec_plugins.decoding.networks.layers import CrossSource, KeyValueStore, Layer, LayerStack


def _built() -> Any:
    """The extension module, or None where it was installed without a compiler."""
    try:
        return import_module("specdec_plugins.decoding.networks.cpu._native")
    except ImportError:
        return None


kernels = _built()

_ACTIVATIONS = ("relu", "gelu", "linear")


class _Packed(Protocol):
    """Weights in the kernels' layout."""

    def multiply(self, source: int, rows: int, target: int, threads: int) -> None: ...


# A table that is output projection and embedding, of verifier and drafter, is packed once.
_packed: dict[bool, WeakIdKeyDictionary] = {
    False: WeakIdKeyDictionary(),
    True: WeakIdKeyDictionary(),
}


def instruction_sets() -> dict[str, bool]:
    """The usable ones, the best first, and whether they have 8-bit products; none if not built."""
    return {} if kernels is None else dict(kernels.instruction_sets())


def best_set(int8: bool = False) -> str | None:
    """The instruction set that is used, or None where the kernels cannot be."""
    return next((name for name, has_int8 in instruction_sets().items() if has_int8 >= int8), None)


def keeps_books(tensor: Tensor) -> bool:
    """True if the kernels can do the bookkeeping of rounds where this tensor lies."""
    return kernels is not None and tensor.is_cpu


def suits(weight: Tensor, int8: bool) -> bool:
    """True if the kernels can take the place of a torch layer with this weight."""
    fits = weight.device.type == "cpu" and weight.dtype is torch.float32
    return fits and best_set(int8) is not None


def suits_layers(layers: LayerStack, int8: bool) -> bool:
    """The same for whole layers; not where another product has taken the place of theirs before.

    A drafter that shares its verifier's layers finds them so where the kernels were not built.
    """
    up: nn.Module = _first(layers).up
    fits = isinstance(up, nn.Linear) and suits(up.weight, int8)
    return fits and layers.activation in _ACTIVATIONS


class NativeLinear(nn.Module):
    """A linear layer whose weights lie as the kernels read them.

    With `int8` they are rounded to 8 bits, scaled per output, and its inputs likewise, scaled per
    row; sums of integers are exact.
    """

    def __init__(self, linear: nn.Linear, int8: bool = False, instruction_set: str = "") -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.packed = _pack(linear, int8, instruction_set)

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] of [..., K], float32."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = rows.new_empty(len(rows), self.out_features)
        if len(rows):
            threads = torch.get_num_threads()
            self.packed.multiply(rows.data_ptr(), len(rows), out.data_ptr(), threads)
        return out.view(*x.shape[:-1], self.out_features)


class NativeLayers(nn.Module):
    """All layers of a stack in one call; called like `LayerStack`."""

    def __init__(self, layers: LayerStack, int8: bool = False, instruction_set: str = "") -> None:
        super().__init__()
        first = _first(layers)
        self._num_layers = len(layers)
        self._num_heads = first.self_attention.num_heads
        self._stack = kernels.Stack(first.up.in_features, self._num_heads, first.up.out_features)
        # Taken out of the layers, as it alone is called by itself.
        self._key_values = nn.ModuleList()
        for layer in layers:
            self._add(cast(Layer, layer), layers.activation, int8, instruction_set)

    def _add(self, layer: Layer, activation: str, int8: bool, instruction_set: str) -> None:
        attention, crossing = layer.self_attention, layer.cross_attention
        linears = [attention.qkv, attention.out, layer.up, layer.down]
        norms = [layer.self_norm, layer.ffn_norm]
        if crossing is not None:
            linears[2:2] = [crossing.query, crossing.out]
            norms[1:1] = [layer.cross_norm]
            self._key_values.append(NativeLinear(crossing.key_value, int8, instruction_set))
        self._stack.add(
            [_pack(linear, int8, instruction_set) for linear in linears],
            [(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps) for norm in norms],
            layer.normalize_before,
            activation,
        )

    def __len__(self) -> int:
        return self._num_layers

    @property
    def attention_dtype(self) -> torch.dtype:
        """Of keys and values, in which attention is computed."""
        return torch.float32

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """What each layer's attention to the source reads, computed once: [B, S, 2, H, d] each."""
        shape = (*states.shape[:2], 2, self._num_heads, -1)
        return tuple(linear(states).view(shape) for linear in self._key_values)

    def forward(
        self,
        x: Tensor,  # [B, n, D]
        mask: Tensor | None,  # [B or 1, 1, n or 1, T], additive
        store: KeyValueStore | None = None,
        source: CrossSource | None = None,
        span: range | None = None,  # of the layers to run; None = all
        positions: Tensor | None = None,  # [B, n, D], added to what each layer reads
        columns: Tensor | None = None,  # [B, m] int64, whose output is wanted of the last layer
    ) -> Tensor:  # [B, n, D], or [B, m, D]
        """What leaves the last layer of the span; each one that runs writes to the store."""
        span = range(len(self)) if span is None else span
        num_rows, num_queries, dim = x.shape
        out = x.new_empty(num_rows, num_queries if columns is None else columns.shape[1], dim)
        if out.numel() == 0 or len(span) == 0:
            return out if len(span) else x
        # All of these are kept till the call is over: it is given addresses.
        x = x.contiguous()
        positions = None if positions is None else positions.expand(x.shape).contiguous()
        mask = None if mask is None else mask.contiguous()
        columns = None if columns is None else columns.contiguous()
        read = () if source is None else tuple(map(_dense, source.keys_values))
        self._stack.run(
            *(span.start, span.stop, num_rows, num_queries),
            *(x.data_ptr(), address(positions)),
            _mask(mask, num_queries),
            *_stored(store, num_rows),
            [(part.data_ptr(), part.stride(0)) for part in read],
            _mask(source.mask if source else None, read[0].shape[1] if read else 0),
            *(address(columns), out.shape[1]),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out


def suits_embedding(*tables: Tensor) -> bool:
    """True if `embed` can read these."""
    is_free = kernels is not None and not torch.is_grad_enabled()
    return is_free and all(t.is_cpu and t.dtype is torch.float32 for t in tables)


def embed(
    tokens: Tensor,  # [B, n] int64
    table: Tensor,  # [V, D] float32, as is the other
    scale: float,
    positions: Tensor,  # [B, n] int64
    position_table: Tensor,  # [offset + last + 1, D]
    offset: int,
    last: int,
) -> Tensor:  # [B, n, D]
    """Scaled embeddings of tokens plus those of their positions, in one call."""
    out = table.new_empty(*tokens.shape, table.shape[1])
    tokens, positions = tokens.contiguous(), positions.expand(tokens.shape).contiguous()
    kernels.embed(
        *(tokens.data_ptr(), tokens.numel(), table.data_ptr(), *table.shape, scale),
        *(positions.data_ptr(), position_table.data_ptr(), offset, last, out.data_ptr()),
    )
    return out


def _pack(linear: nn.Linear, int8: bool, instruction_set: str) -> _Packed:
    """Its weights in the kernels' layout; those of a tied table are shared while that lives."""
    is_shared = linear.bias is None and not instruction_set
    if is_shared and linear.weight in _packed[int8]:
        return cast(_Packed, _packed[int8][linear.weight])
    weight = linear.weight.detach().contiguous()
    bias = None if linear.bias is None else linear.bias.detach().contiguous()
    size = (linear.out_features, linear.in_features)
    packed = kernels.PackedWeights(weight.data_ptr(), address(bias), *size, int8, instruction_set)
    if is_shared:
        _packed[int8][linear.weight] = packed
    return cast(_Packed, packed)


def _first(layers: LayerStack) -> Layer:
    return cast(Layer, layers[0])


def address(tensor: Tensor | None) -> int:
    """Where a contiguous tensor's values lie; 0 = there is none."""
    return 0 if tensor is None else tensor.data_ptr()


def _dense(keys_values: Tensor) -> Tensor:
    """[B, S, 2, H, d] whose positions lie one behind the other in each row."""
    whole = keys_values.shape[2:].numel()
    is_dense = keys_values.stride()[1:] == (whole, whole // 2, keys_values.shape[-1], 1)
    return keys_values if is_dense else keys_values.contiguous()


def _mask(mask: Tensor | None, width: int) -> tuple[int, int, int, int]:
    """Address, strides of rows and queries, where they differ, and width."""
    if mask is None:
        return (0, 0, 0, width)
    if mask.stride(-1) != 1 and mask.shape[-1] > 1:
        raise ValueError("a mask's last axis must be dense")
    row = mask.stride(0) if mask.shape[0] > 1 else 0
    return (mask.data_ptr(), row, mask.stride(2) if mask.shape[2] > 1 else 0, mask.shape[-1])


def _stored(store: KeyValueStore | None, num_rows: int) -> tuple[int, int, int, int]:
    """Address, floats a layer, positions a row, and address of where new positions go."""
    if store is None:
        return (0, 0, 0, 0)
    storage, at = store.storage, store.at
    return (storage.data_ptr(), storage.stride(0), storage.shape[1] // num_rows, at.data_ptr())
