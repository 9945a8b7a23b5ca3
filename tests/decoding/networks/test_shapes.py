"""Layers of random shapes: a row's result is its own to the last bit, and torch's but for rounding.

Sums are vectorised by hand, so every remainder of a width divided by a number of lanes is a case of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.networks import StackConfig
from specdec_plugins.decoding.networks.cache import KVCache, SourceMemory
from specdec_plugins.decoding.networks.config import ACTIVATIONS
from specdec_plugins.decoding.networks.cpu.ops import instruction_sets
from specdec_plugins.decoding.networks.cpu.products import NativeLayers
from specdec_plugins.decoding.networks.layers import LayerStack

WIDTHS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 47, 64, 65, 130)


@dataclass(frozen=True)
class Shape:
    heads: int
    head_dim: int
    ffn: int
    rows: int
    source: int  # the longest
    prefix: int  # the longest; 0 = nothing is cached
    block: int
    activation: str
    norm_before: bool
    halves: bool  # weights that fit in 16 bits
    int8: bool
    instruction_set: str
    threads: int

    @property
    def stack(self) -> StackConfig:
        return StackConfig(
            num_layers=2,
            dim=self.heads * self.head_dim,
            ffn_dim=self.ffn,
            num_heads=self.heads,
            vocab_size=9,
            max_positions=600,
            normalize_before=self.norm_before,
        )


SHAPES = st.builds(
    Shape,
    heads=st.integers(1, 4),
    head_dim=st.sampled_from(WIDTHS[:-1]),
    ffn=st.sampled_from(WIDTHS),
    rows=st.sampled_from((1, 2, 5)),
    source=st.sampled_from(WIDTHS[:11]),
    prefix=st.sampled_from((0, *WIDTHS)),
    block=st.sampled_from((1, 2, 6, 7, 8, 13, 17)),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    norm_before=st.booleans(),
    halves=st.booleans(),
    int8=st.booleans(),
    instruction_set=st.sampled_from(instruction_sets()),
    threads=st.integers(1, 3),
)


class Batch:
    """Rows with prefixes and sources of several lengths, and a block of new positions for each."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.prefixes = torch.randint(0, shape.prefix + 1, (shape.rows,))
        self.sources = torch.randint(1, shape.source + 1, (shape.rows,))
        dim = shape.stack.dim
        self.states = torch.randn(shape.rows, shape.source, dim)
        self.before = torch.randn(shape.rows, max(shape.prefix, 1), dim)
        self.x = torch.randn(shape.rows, shape.block, dim)

    def run(self, layers: LayerStack | NativeLayers, rows: list[int], step: int) -> Tensor:
        """The block's output for these rows, of so many positions at a time."""
        lengths = self.sources[rows]
        longest = int(lengths.max())
        padding = torch.arange(longest) >= lengths[:, None]
        keys_values = layers.keys_values(self.states[rows][:, :longest].contiguous())
        memory = SourceMemory(lengths, padding, keys_values).trimmed()
        cache = KVCache(self.shape.stack, len(rows), torch.device("cpu"), torch.float32)
        if self.shape.prefix:
            window = cache.window(self.shape.prefix, width=0)
            layers(self.before[rows], window.mask, window, memory)
        cache.crop(self.prefixes[rows])
        width, out = int(self.prefixes[rows].max()), []
        for first in range(0, self.shape.block, step):
            part = self.x[rows][:, first : first + step].contiguous()
            window = cache.window(part.shape[1], width)
            out.append(layers(part, window.mask, window, memory))
            width += part.shape[1]
            cache.crop(cache.lengths + part.shape[1])
        return torch.cat(out, 1)


@pytest.mark.usefixtures("no_gradients", "threads_kept")
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(shape=SHAPES)
def test_layers_of_any_shape(shape: Shape) -> None:
    torch.manual_seed(0)
    layers = LayerStack(shape.stack, shape.activation, shape.stack.dim).requires_grad_(False)
    if shape.halves:
        for parameter in layers.parameters():
            parameter.copy_(parameter.half())
    kernels = NativeLayers(layers, shape.int8, shape.instruction_set)
    batch, everyone = Batch(shape), list(range(shape.rows))
    torch.set_num_threads(1)
    whole = batch.run(kernels, everyone, shape.block)
    torch.set_num_threads(shape.threads)
    for row in everyone:
        assert torch.equal(batch.run(kernels, [row], 1)[0], whole[row])
    if not shape.int8:
        expected = batch.run(layers, everyone, shape.block)
        torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)
