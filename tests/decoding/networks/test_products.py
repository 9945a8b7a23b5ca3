"""The layers for CPUs against torch's, and what they promise: a row's result depends on that row
alone."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from specdec_plugins.decoding.networks import StackConfig, Transformer
from specdec_plugins.decoding.networks.cache import KVCache, SourceMemory
from specdec_plugins.decoding.networks.config import ACTIVATIONS
from specdec_plugins.decoding.networks.cpu import ops, products
from specdec_plugins.decoding.networks.cpu.ops import instruction_sets
from specdec_plugins.decoding.networks.cpu.products import (
    FAST_PRODUCTS,
    NativeLayers,
    NativeLinear,
    NativeTable,
    with_fast_products,
)
from specdec_plugins.decoding.networks.layers import LayerStack
from specdec_plugins.decoding.networks.reading import give_back
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError
from tests.decoding.networks.toys import (
    EOS,
    T5,
    full_logits,
    random_ids,
    randomise,
    sentences,
    t5,
    transformer,
)
from tests.decoding.toys import SPECIAL, method_of
from tests.formats.pretrained.measured import memory
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("no_gradients")
SETS = instruction_sets()


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(in_features)
    return nn.Linear(in_features, out_features, bias).requires_grad_(False)


def test_the_kernels_were_built() -> None:
    assert "plain" in SETS


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (ModuleNotFoundError("No module named '_kernels'"), "were not compiled"),
        (ImportError("undefined symbol: GOMP"), "cannot be loaded (undefined symbol: GOMP)"),
        (SimpleNamespace(sources="of last week"), "are older than their sources"),
        (SimpleNamespace(), "are older than their sources"),  # compiled before they said of which
    ],
)
def test_a_module_that_cannot_serve_says_why(
    found: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imported(name: str) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(ops, "import_module", imported)
    assert ops._load() == (None, fault)


def test_another_instruction_set_can_be_put_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_INSTRUCTION_SET", "plain")
    assert instruction_sets() == ["plain", *(name for name in SETS if name != "plain")]
    monkeypatch.setenv("SPECDEC_INSTRUCTION_SET", "abacus")
    refused("INSTRUCTION_SET: this processor cannot run abacus", instruction_sets)


def test_without_kernels_a_network_for_a_cpu_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ops.warn_if_missing.cache_clear()
    monkeypatch.setattr(ops, "native", None)
    monkeypatch.setattr(ops, "fault", "were lost")
    with_fast_products(transformer().float(), kernels="torch")
    with torch.device("meta"):
        with_fast_products(nn.Sequential(nn.Linear(2, 2)))
    assert not caplog.messages
    for _ in range(2):
        with_fast_products(transformer().float())
    (message,) = caplog.messages
    assert message.startswith("The kernels for CPUs were lost, so decoding")
    assert "install a C++ compiler" in message
    ops.warn_if_missing.cache_clear()


# Heads of 83 numbers: four vectors of any instruction set, one more, and a rest.
STACK = StackConfig(num_layers=3, dim=166, ffn_dim=50, num_heads=2, vocab_size=9, max_positions=64)
DIM = STACK.dim


def stack_of_layers(
    before: bool = False, source: int = 20, stack: StackConfig = STACK
) -> LayerStack:
    stack = replace(stack, normalize_before=before)
    layers = LayerStack(stack, "swish" if stack.gated else "relu", source or None)
    randomise(layers, 1)
    for parameter in layers.parameters():
        parameter.data *= 0.4 if parameter.dim() > 1 else 1.0  # or rounding grows with the width
    return layers.float()


class Case:
    """Layers with a cache that holds something, and a source, both of rows of several lengths."""

    def __init__(
        self, layers: LayerStack | NativeLayers, num_rows: int = 3, stack: StackConfig = STACK
    ) -> None:
        self.layers = layers
        generator = torch.Generator().manual_seed(4)

        def some(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        lengths = torch.tensor([7, 3, 5])[:num_rows]
        padding_mask = torch.arange(7) >= lengths[:, None]
        states, prefill = some(3, 7, 20)[:num_rows], some(3, 4, DIM)[:num_rows]
        self.x, self.positions = some(3, 6, DIM)[:num_rows], some(3, 6, DIM)[:num_rows]
        self.memory = SourceMemory(lengths, padding_mask, layers.keys_values(states)).trimmed()
        self.cache = KVCache(stack, num_rows, self.x.device, torch.float32)
        window = self.cache.window(4, 0)
        layers(prefill, window.mask, window, self.memory, distances=window.distances)
        self.cache.crop(torch.tensor([4, 1, 3])[:num_rows])

    def run(self, **more: object) -> Tensor:
        window = self.cache.window(self.x.shape[1], width=4)
        more["distances"] = window.distances
        out: Tensor = self.layers(self.x, window.mask, window, self.memory, **more)
        return out


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(
    ("before", "switches"),
    [(False, {}), (True, {}), (True, {**T5, "attention_dim": 98})],
    ids=["post-norm", "pre-norm", "T5"],
)
def test_layers_are_torchs(instruction_set: str, before: bool, switches: dict[str, Any]) -> None:
    stack = replace(STACK, **switches)
    layers = stack_of_layers(before, stack=stack)
    slow = Case(layers, stack=stack)
    fast = Case(NativeLayers(layers, instruction_set=instruction_set), stack=stack)
    cases: list[dict[str, Any]] = [{}, {"span": range(1, 2)}]
    if not switches:  # what block drafters ask for
        columns = torch.tensor([[0, 5], [2, 3], [4, 1]])
        cases += [{"columns": columns, **more} for more in ({}, {"span": range(1, 2)})]
        cases += [{"positions": slow.positions, **more} for more in ({}, {"columns": columns})]
    for more in cases:
        torch.testing.assert_close(fast.run(**more), slow.run(**more), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.cache.storage, slow.cache.storage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fast", [False, True])
def test_distances_do_not_count_padding_on_the_left(fast: bool) -> None:
    encoder = (with_fast_products(t5().float()) if fast else t5()).encoder
    right, left = (
        torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1]]),
        torch.tensor([[5, 6, 7, 2], [1, 1, 8, 2]]),
    )
    expected, found = encoder(right)[0], encoder(left)[0]
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1, 2:], expected[1, :2])


@pytest.mark.parametrize("some", [False, True])
def test_an_encoder_is_torchs(some: bool) -> None:
    """Without a mask, with one for each row, and with one for each query."""
    columns = torch.tensor([[4, 0, 2], [1, 1, 3]]) if some else None
    layers = stack_of_layers(source=0)
    x = torch.randn(2, 8, DIM, generator=torch.Generator().manual_seed(2))
    padding = torch.zeros(2, 1, 1, 8)
    padding[1, ..., 5:] = -torch.inf
    causal = torch.full((8, 8), -torch.inf).triu(1)[None, None]
    for mask in (None, padding, causal, causal.expand(2, -1, -1, -1).clone()):
        out = NativeLayers(layers)(x, mask, columns=columns)
        full = mask if mask is None or mask is padding else mask.expand(2, -1, -1, -1)
        torch.testing.assert_close(out, layers(x, full, columns=columns), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("made", [transformer, t5])
def test_a_token_scored_in_a_block_gets_the_logits_that_it_gets_alone(
    made: Callable[[], Transformer], int8: bool, threads_kept: None
) -> None:
    network = with_fast_products(made().float(), int8)
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(3, 6, 4)}, "differ in (width|positions)"),
        ({"stop": 4}, "no such layers"),
        ({"source": None}, "layers have no source"),
        ({"at": torch.full((18,), 10**6)}, "position in the storage is out of range"),
        ({"mask": torch.zeros(3, 1, 6, 10**4)}, "too wide"),
        ({"mask": torch.zeros(2, 1, 6, 8)}, "other rows"),
        ({"columns": torch.full((3, 6), 6)}, "no such column"),
        ({"storage": None, "at": None}, "too wide"),
    ],
)
def test_a_pass_stays_within_its_tensors(change: dict[str, Any], words: str) -> None:
    case = Case(NativeLayers(stack_of_layers()))
    window = case.cache.window(6, width=4)
    given = {
        **{"x": case.x, "out": torch.empty(3, 6, DIM), "first": 0, "stop": 3},
        **{"mask": window.mask, "storage": window.storage, "at": window.at},
        **{"source": case.memory.compiled, "columns": None},
    }
    assert isinstance(case.layers, NativeLayers)
    stack = case.layers.compiled

    def run(
        x: Tensor, mask: Tensor, storage: Tensor, at: Tensor, columns: Tensor, **g: Any
    ) -> None:
        span = g["first"], g["stop"]
        inputs, seen = (x, None, columns), (mask, storage, at, None)
        stack.run(inputs, seen, source=g["source"], span=span, out=g["out"], threads=1)

    run(**given)
    with pytest.raises((ValueError, IndexError), match=words):
        run(**{**given, **change})


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
@pytest.mark.parametrize("int8", [False, True])
def test_a_long_pass_leaves_no_memory_behind(int8: bool) -> None:
    layers = NativeLayers(LayerStack(replace(STACK, dim=64, ffn_dim=256), "relu", None), int8)
    layers(torch.zeros(1, 8, 64), None)
    x = torch.zeros(8000, 8, 64)  # 64 MB of hidden states, and 115 MB in all
    give_back()  # what earlier tests have freed
    before = memory("VmRSS")
    out = layers(x, None)
    give_back()
    assert memory("VmRSS") - before < out.numel() * 4 + 2**25


def test_products_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in inputs"):
        NativeLinear(linear(64, 40))(torch.zeros(2, 32))
    layers = stack_of_layers()
    layers.activation = "sine"
    with pytest.raises(ValueError, match="no such activation"):
        NativeLayers(layers)
    with pytest.raises(ValueError, match="a product needs inputs"):
        ops.native.PackedWeights(torch.zeros(4, 0), bias=None, int8=False, instruction_set="")
    assert NativeLinear(linear(24, 40))(torch.zeros(0, 24)).shape == (0, 40)
    assert NativeLayers(stack_of_layers(source=0))(torch.zeros(0, 3, DIM), None).shape[0] == 0


DOTS = [name for name in SETS if name in ("amx", "avx512", "avxvnni", "dotprod", "i8mm")]


def stored_in_8_bits(in_features: int, out_features: int) -> nn.Linear:
    """A layer whose weights are multiples of a factor for each output, as a bundle has them."""
    layer = linear(in_features, out_features)
    layer.weight[0] = 0
    factors = layer.weight.abs().amax(1, keepdim=True) / 127
    layer.weight.copy_((layer.weight / factors.clamp(min=1e-30)).round() * factors)
    return layer


@pytest.mark.parametrize("shape", [(30, 40), (64, 64), (512, 200), (2048, 70)])
def test_weights_stored_in_8_bits_lose_nothing_in_float32(shape: tuple[int, int]) -> None:
    layer = stored_in_8_bits(*shape)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(37, shape[0], generator=generator)
    x[5] *= 1e6
    x[6] *= 1e-6
    x[7] = 0
    x[8, 3] = 100  # beside which all others are small
    x[9].relu_()
    exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    # What rounding inputs, sum and bias may add up to, if all goes to one side; where products
    # are of float32, each sum is rounded.
    largest, sizes = x.abs().amax(1, keepdim=True), layer.weight.abs().sum(1)
    bound = 2**-22 * (largest * sizes + exact.abs() + layer.bias.abs())
    for name in SETS:
        ours = NativeLinear(layer, instruction_set=name)
        assert ours.packed.adds_integers == (name in DOTS)
        assert ((ours(x) - exact).abs() <= bound * (1 if name in DOTS else 8)).all(), name
    found = [NativeLinear(layer, instruction_set=name)(x) for name in DOTS]
    assert all(torch.equal(out, found[0]) for out in found)
    if DOTS:  # as torch's float32, or nearer
        torchs = nn.functional.linear(x, layer.weight, layer.bias)
        errors = [(out - exact)[10:].pow(2).mean() for out in (found[0], torchs)]
        assert errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 16, 70])
@pytest.mark.parametrize("shape", [(30, 40), (64, 130)])
def test_a_row_of_stored_8_bits_depends_on_itself(
    shape: tuple[int, int], rows: int, threads_kept: None
) -> None:
    layer = stored_in_8_bits(*shape)
    x = torch.randn(70, shape[0], generator=torch.Generator().manual_seed(3))
    x[1, 0], x[4, 2] = torch.nan, torch.inf
    for name in SETS:
        ours = NativeLinear(layer, instruction_set=name)
        whole = ours(x)
        is_finite = torch.tensor([row not in (1, 4) for row in range(70)])
        assert torch.equal(whole.isfinite().any(1), is_finite)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for first in range(0, 70 - rows + 1, rows):
                part = ours(x[first : first + rows])
                assert torch.equal(part.nan_to_num(), whole[first : first + rows].nan_to_num())


def test_a_tied_table_is_packed_once() -> None:
    layer = linear(8, 40, bias=False)
    first, second = NativeLinear(layer), NativeLinear(layer)
    assert first.packed is second.packed
    assert NativeLinear(copy.deepcopy(layer)).packed is not first.packed


def test_a_large_table_has_the_8_bits_of_its_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LARGE_TABLE", 0)
    config = replace(transformer().config, share_embeddings=True, tie_output=True, output_bias=True)
    plain = Transformer(config)
    randomise(plain, seed=1)
    plain.float()
    assert replaced(with_fast_products(copy.deepcopy(plain))) == {NativeLayers, NativeLinear}
    network = with_fast_products(copy.deepcopy(plain), int8=True)
    table, weight = network.decoder.embedding.tokens, plain.decoder.embedding.tokens.weight
    assert isinstance(table, NativeTable)
    assert table is network.encoder.embedding.tokens
    steps = weight.abs().amax(1, keepdim=True) / 127
    rounded = (weight / steps).round() * steps
    tokens = torch.tensor([[3, 0, 3], [len(weight) - 1, 1, 2]])
    torch.testing.assert_close(table(tokens), rounded[tokens], rtol=1e-6, atol=0)
    # The projection is of the same numbers: a state that a token's vector is most like.
    own = network.decoder.output(table.weight[:]) - plain.decoder.output.bias
    torch.testing.assert_close(own, rounded @ rounded.T, rtol=0, atol=0.03)


def test_what_is_replaced() -> None:
    assert replaced(with_fast_products(transformer().float())) == {NativeLayers, NativeLinear}
    assert replaced(with_fast_products(transformer())) == {LayerStack}  # in float64
    assert replaced(with_fast_products(transformer().float(), kernels="torch")) == {LayerStack}
    quantised = with_fast_products(transformer().float(), int8=True)
    assert replaced(quantised) == {NativeLayers, NativeLinear}
    assert {m.packed.bits for m in quantised.modules() if isinstance(m, NativeLinear)} == {8}
    assert quantised.decoder.embedding.tokens.weight.dtype is torch.float32


def replaced(network: nn.Module) -> set[type]:
    return {type(m) for m in network.modules()} & {*FAST_PRODUCTS, LayerStack}


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_decodes_with_the_kernels(activation: str, int8: bool) -> None:
    plain = transformer().float()
    network = Transformer(replace(plain.config, activation=activation)).requires_grad_(False)
    network.load_state_dict(plain.state_dict())
    expected = decoded(network.eval(), batch=4)
    fast = with_fast_products(copy.deepcopy(network), int8)
    alone = decoded(fast, batch=1)
    assert decoded(fast, batch=12) == alone
    assert int8 or alone == expected


def decoded(network: Transformer, batch: int) -> list[list[int]]:
    """Greedy translations of twelve sources of different lengths."""
    verifier = TransformerVerifier(network, SPECIAL)
    requests = sentences(12, length=lambda i: 2 + i % 11, block_size=0, max_len=16, min_len=12)
    decoder = SpeculativeDecoder(verifier, method_of(None), EngineConfig(max_rows=batch))
    return [result.token_ids for result in decoder.decode(requests)]


def test_int8_is_refused_where_there_are_no_kernels_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        elsewhere = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UserError, match="int8 networks run on the CPU only, not on meta"):
        with_fast_products(elsewhere, int8=True)
    refused(r"made of float32, not of torch\.float64", with_fast_products, transformer(), int8=True)
    with pytest.raises(UserError, match="need this project's kernels, not torch's"):
        with_fast_products(transformer().float(), int8=True, kernels="torch")
    monkeypatch.setattr(ops, "native", None)
    monkeypatch.setattr(ops, "fault", "were lost")
    with pytest.raises(UserError, match="the kernels for CPUs, which were lost; run `make setup`"):
        with_fast_products(transformer().float(), int8=True)
