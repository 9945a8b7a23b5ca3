"""The kernels against torch, and what they promise: a row's result depends on that row alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.cache import KVCache, SourceMemory
from specdec_plugins.decoding.networks import StackConfig, Transformer, with_fast_products
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.ops import best, instruction_sets, log_total, rank
from specdec_plugins.decoding.networks.cpu.products import (
    Int8Linear,
    NativeLayers,
    NativeLinear,
    suits_layers,
)
from specdec_plugins.decoding.networks.layers import LayerStack
from tests.decoding.networks.test_products import inputs, int8_by_hand, linear
from tests.decoding.networks.toys import EOS, full_logits, random_ids, randomise, transformer

SETS = instruction_sets()
WITH_INT8 = [name for name, has_int8 in SETS.items() if has_int8]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_the_kernels_were_built() -> None:
    assert "plain" in SETS


def test_without_kernels_a_network_for_a_cpu_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ops.warn_if_missing.cache_clear()
    monkeypatch.setattr(ops, "native", None)
    with_fast_products(transformer().float(), kernels="torch")
    with torch.device("meta"):
        with_fast_products(nn.Sequential(nn.Linear(2, 2)))
    assert not caplog.messages
    for _ in range(2):
        with_fast_products(transformer().float())
    (message,) = caplog.messages
    assert "install a C++ compiler" in message
    ops.warn_if_missing.cache_clear()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(("width", "outputs"), [(24, 40), (17, 5), (256, 129)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_torchs(instruction_set: str, width: int, outputs: int, bias: bool) -> None:
    layer, x = linear(width, outputs, bias), inputs(14, width)
    out = NativeLinear(layer, instruction_set=instruction_set)(x.view(2, 7, width))
    expected = nn.functional.linear(
        x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()
    )
    scale = x.abs().amax(1, keepdim=True).double()
    assert ((out.flatten(0, 1) - expected).abs() <= 1e-5 * (1 + scale)).all()


@pytest.mark.parametrize("instruction_set", WITH_INT8)
@pytest.mark.parametrize("bias", [True, False])
def test_an_int8_product_is_what_its_definition_says(instruction_set: str, bias: bool) -> None:
    layer, x = linear(30, 70, bias), inputs(8, 30)
    x[2] = 0.0
    expected = int8_by_hand(layer, x)
    out = NativeLinear(layer, True, instruction_set)(x).double()
    # A value halfway between two codes may be rounded to either.
    step = x.abs().amax(1, keepdim=True).double() / 127
    column = layer.weight.abs().amax(1).double()
    assert ((out - expected).abs() <= 1.01 * step * column + 1e-5).all()
    close = torch.isclose(out, expected, rtol=1e-5, atol=1e-6)
    assert close.double().mean() > 0.8


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_is_the_same_in_any_block_and_on_any_threads(
    instruction_set: str, int8: bool, threads_kept: None
) -> None:
    if int8 and instruction_set not in WITH_INT8:
        with pytest.raises(ValueError, match="no 8-bit products"):
            NativeLinear(linear(33, 150), True, instruction_set)
        return
    layer, x = NativeLinear(linear(33, 150), int8, instruction_set), inputs(20, 33)
    alone = torch.cat([layer(row[None]) for row in x])
    for threads, size in product((1, 2, 3), (2, 5, 6, 7, 13, 20)):
        torch.set_num_threads(threads)
        assert torch.equal(layer(x[:size]), alone[:size])


@pytest.fixture
def threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


STACK = StackConfig(num_layers=3, dim=36, ffn_dim=50, num_heads=2, vocab_size=9, max_positions=64)


def stack_of_layers(before: bool = False, activation: str = "relu", source: int = 20) -> LayerStack:
    layers = LayerStack(replace(STACK, normalize_before=before), activation, source or None)
    randomise(layers, 1)
    return layers.float()


class Case:
    """Layers with a cache that holds something, and a source, both of rows of several lengths."""

    def __init__(self, layers: LayerStack | NativeLayers, num_rows: int = 3) -> None:
        self.layers = layers
        generator = torch.Generator().manual_seed(4)

        def some(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        lengths = torch.tensor([7, 3, 5])[:num_rows]
        padding_mask = torch.arange(7) >= lengths[:, None]
        states, prefill = some(3, 7, 20)[:num_rows], some(3, 4, 36)[:num_rows]
        self.x, self.positions = some(3, 6, 36)[:num_rows], some(3, 6, 36)[:num_rows]
        self.memory = SourceMemory(lengths, padding_mask, layers.keys_values(states)).trimmed()
        self.cache = KVCache(STACK, num_rows, self.x.device, torch.float32)
        layers(prefill, self.cache.window(4, 0).mask, self.cache.window(4, 0), self.memory)
        self.cache.crop(torch.tensor([4, 1, 3])[:num_rows])

    def run(self, **more: object) -> Tensor:
        window = self.cache.window(self.x.shape[1], width=4)
        out: Tensor = self.layers(self.x, window.mask, window, self.memory, **more)
        return out


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("activation", ["relu", "gelu", "linear"])
@pytest.mark.parametrize("before", [False, True])
def test_layers_are_torchs(instruction_set: str, activation: str, before: bool) -> None:
    layers = stack_of_layers(before, activation)
    kernels = NativeLayers(layers, instruction_set=instruction_set)
    slow, fast = Case(layers), Case(kernels)
    columns = torch.tensor([[0, 5], [2, 3], [4, 1]])
    for more in (
        {},
        {"span": range(1, 2)},
        {"positions": slow.positions},
        {"columns": columns},
        {"positions": slow.positions, "columns": columns},
    ):
        torch.testing.assert_close(fast.run(**more), slow.run(**more), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.cache.storage, slow.cache.storage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_mask", [False, True])
def test_an_encoder_is_torchs(with_mask: bool) -> None:
    layers = stack_of_layers(source=0)
    x = torch.randn(3, 8, 36, generator=torch.Generator().manual_seed(2))
    mask = torch.zeros(3, 1, 1, 8)
    mask[1, ..., 5:] = -torch.inf
    given = mask if with_mask else None
    torch.testing.assert_close(
        NativeLayers(layers)(x, given), layers(x, given), rtol=1e-4, atol=1e-4
    )


def test_columns_of_a_mask_for_each_query() -> None:
    layers = stack_of_layers(source=0)
    x = torch.randn(2, 5, 36, generator=torch.Generator().manual_seed(2))
    causal = torch.full((5, 5), -torch.inf).triu(1)[None, None]
    columns = torch.tensor([[4, 0, 2], [1, 1, 3]])
    for mask in (causal, causal.expand(2, -1, -1, -1).clone()):
        expected = layers(x, mask.expand(2, -1, -1, -1), columns=columns)
        out = NativeLayers(layers)(x, mask, columns=columns)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("int8", [False, bool(WITH_INT8)])
def test_a_token_scored_in_a_block_gets_the_logits_that_it_gets_alone(
    int8: bool, threads_kept: None
) -> None:
    network = with_fast_products(transformer().float(), int8)
    generator = torch.Generator().manual_seed(0)
    sources = [[*random_ids(generator, n), EOS] for n in (6, 2, 9)]
    target = torch.tensor([[EOS, *random_ids(generator, 11)] for _ in sources])
    widest = max(map(len, sources))
    source = torch.tensor([s + [1] * (widest - len(s)) for s in sources])
    whole = full_logits(network, source, target)
    for row, threads in product(range(3), (1, 2)):
        torch.set_num_threads(threads)
        alone = torch.tensor([sources[row]])
        assert torch.equal(full_logits(network, alone, target[row : row + 1])[0], whole[row])
        assert torch.equal(
            full_logits(network, alone, target[row : row + 1, :3])[0], whole[row, :3]
        )


def test_layers_that_were_quantised_before_are_left_alone() -> None:
    # The encoder that a drafter shares with its verifier, where the kernels were not built.
    network = with_fast_products(transformer().float(), int8=True, kernels="torch")
    before = [type(module) for module in network.modules()]
    assert Int8Linear in before
    assert [type(module) for module in with_fast_products(network).modules()] == before


def test_where_torch_is_left_in_place() -> None:
    assert not suits_layers(stack_of_layers(activation="tanh"), int8=False)
    assert not suits_layers(stack_of_layers().double(), int8=False)

    def kinds(network: Transformer) -> set[type]:
        return {type(m) for m in network.modules()} & {NativeLayers, NativeLinear, LayerStack}

    assert kinds(with_fast_products(transformer().float())) == {NativeLayers, NativeLinear}
    assert kinds(with_fast_products(transformer().float(), kernels="torch")) == {LayerStack}
    assert kinds(with_fast_products(transformer())) == {LayerStack}


def test_a_tied_table_is_packed_once() -> None:
    layer = linear(8, 40, bias=False)
    first, second = NativeLinear(layer), NativeLinear(layer)
    assert first.packed is second.packed
    assert NativeLinear(copy.deepcopy(layer)).packed is not first.packed


@pytest.mark.parametrize("width", [1, 5, 16, 37, 1000])
def test_reductions_are_torchs(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    logits = torch.randn(4, 3, width, generator=generator) * 20
    logits[1] = logits[1].round()  # ties
    logits[2, :, : width // 2] = -torch.inf
    logits[3] = -torch.inf
    logits[3, :, 0] = 0.5
    tokens = torch.randint(width, (4, 3), generator=generator)
    assert torch.equal(best(logits), logits.argmax(-1))
    torch.testing.assert_close(log_total(logits), logits.logsumexp(-1))
    assert torch.equal(rank(logits, tokens), rank(logits.double(), tokens))


def test_what_is_no_number_hides_nothing() -> None:
    logits = torch.zeros(2, 40)
    logits[0, 0], logits[0, 16] = torch.nan, 50.0
    logits[1, 3] = torch.inf
    assert best(logits).tolist() == [16, 3]
    assert log_total(logits)[1] == torch.inf
