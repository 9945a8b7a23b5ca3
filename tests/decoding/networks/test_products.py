"""Fast products against slow ones, and what they promise: a row is the same in any block."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.networks.config import ACTIVATIONS
from specdec_plugins.decoding.networks.cpu import products
from specdec_plugins.decoding.networks.cpu.products import (
    KERNELS,
    Int8Linear,
    with_fast_products,
)
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import build_schedule
from specdec_plugins.decoding.types import DecodeParams, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError
from tests.decoding.networks.toys import EOS, block_drafter, random_ids, transformer
from tests.decoding.test_verifier import SPECIAL


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(in_features)
    return nn.Linear(in_features, out_features, bias).requires_grad_(False)


def inputs(num_rows: int, width: int) -> Tensor:
    """Rows of very different sizes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, width, generator=generator)
    return x * torch.logspace(-3, 3, num_rows)[:, None]


def int8_by_hand(layer: nn.Linear, x: Tensor) -> Tensor:
    """One row and one output at a time, in integers that cannot overflow and in float64."""
    bias = torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias
    out = torch.zeros(len(x), len(layer.weight), dtype=torch.float64)
    for i, row in enumerate(x):
        step = row.abs().max() / 127
        codes = (row / step).round().long() if step > 0 else torch.zeros_like(row).long()
        for j, column in enumerate(layer.weight):
            largest = column.abs().max()
            total = (codes * (column * (127 / largest)).round().long()).sum()
            out[i, j] = total * step.double() * largest.double() / 127 + bias[j]
    return out


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [24, products._WIDE])
def test_int8_is_what_its_definition_says(width: int, bias: bool) -> None:
    layer, x = linear(width, 7, bias), inputs(5, width)
    x[2] = 0.0
    expected = int8_by_hand(layer, x)
    out = Int8Linear(layer)(x)
    # the scales are float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-7)
    exact = nn.functional.linear(x, layer.weight, layer.bias)
    assert ((out - exact).abs().amax(1) <= 0.03 * exact.abs().amax(1)).all()


@pytest.mark.parametrize("width", [24, 512, products._WIDE])
def test_an_int8_row_is_the_same_in_any_block(width: int) -> None:
    layer, x = Int8Linear(linear(width, 40)), inputs(33, width)
    alone = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), alone)
    assert torch.equal(layer(x[:32].view(4, 8, width)).flatten(0, 1), alone[:32])
    with_a_giant = torch.cat([x[:2], x[:1] * 1e6])
    assert torch.equal(layer(with_a_giant)[:2], alone[:2])


def test_what_is_replaced() -> None:
    for plain in (transformer().float(), transformer()):
        assert not replaced(with_fast_products(plain, kernels="torch"))
    assert not replaced(with_fast_products(transformer()))
    quantised = with_fast_products(transformer().float(), int8=True, kernels="torch")
    assert replaced(quantised) == {Int8Linear}
    assert not any(isinstance(m, nn.Linear) for m in quantised.modules())
    assert quantised.decoder.attention_dtype is torch.float64
    assert quantised.decoder.embedding.tokens.weight.dtype is torch.float32


def replaced(network: nn.Module) -> set[type]:
    return {type(m) for m in network.modules()} & set(products.FAST_PRODUCTS)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_decodes_with_every_kernel(
    activation: str, kernels: str, int8: bool
) -> None:
    plain = transformer().float()
    network = Transformer(replace(plain.config, activation=activation)).requires_grad_(False)
    network.load_state_dict(plain.state_dict())
    expected = decoded(network.eval(), drafts=False, batch=4, block_size=0)
    fast = with_fast_products(copy.deepcopy(network), int8, kernels)
    alone = decoded(fast, drafts=False, batch=1, block_size=0)
    assert decoded(fast, drafts=False, batch=12, block_size=0) == alone
    assert int8 or alone == expected


def decoded(
    network: Transformer, drafts: bool, batch: int, block_size: int, kernels: str = "torch"
) -> list[list[int]]:
    """Greedy translations of twelve sources of different lengths."""
    verifier = TransformerVerifier(network, SPECIAL)
    drafter = None
    if drafts:
        context = DraftContext(verifier, with_fast_products(block_drafter().float(), True, kernels))
        drafter = build_drafter("block", context)
    method = Method(drafter, RULES.get("exact")(), build_schedule("constant"))
    generator = torch.Generator().manual_seed(5)
    requests = [
        Request(
            id=str(i),
            source_ids=[*random_ids(generator, 2 + i % 11), EOS],
            params=DecodeParams(block_size=block_size, max_len=16, min_len=12),
        )
        for i in range(12)
    ]
    decoder = SpeculativeDecoder(verifier, method, EngineConfig(max_rows=batch))
    return [result.token_ids for result in decoder.decode(requests)]


@pytest.mark.parametrize("kernels", KERNELS)
def test_int8_speculation_is_int8_greedy_decoding_in_any_batch(kernels: str) -> None:
    network = with_fast_products(transformer().float(), int8=True, kernels=kernels)
    greedy = decoded(network, drafts=False, batch=1, block_size=0)
    assert len({tuple(tokens) for tokens in greedy}) > 8  # or the test could not fail
    for batch, block_size in ((1, 6), (5, 3)):
        assert decoded(network, True, batch, block_size, kernels) == greedy
    assert decoded(network, drafts=False, batch=12, block_size=0) == greedy


def test_int8_is_refused_off_the_cpu_and_where_products_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.device("meta"):
        elsewhere = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UserError, match="int8 networks run on the CPU only, not on meta"):
        with_fast_products(elsewhere, int8=True)

    def saturating(a: Tensor, b: Tensor) -> Tensor:
        return (a.long() @ b.long()).clamp(-(2**15), 2**15 - 1).int()

    products._products_are_exact.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", saturating)
    with pytest.raises(UserError, match="overflow"):
        with_fast_products(transformer().float(), int8=True, kernels="torch")
    products._products_are_exact.cache_clear()
