"""Layers for decoding on a CPU, where a pass has few rows and reads every weight.

With the kernels a pass over all layers is one call, weights are read once and in order, and a
row's result does not depend on what else is computed: not on the block it is scored in, its batch,
the width of the cache or the number of threads. So exact mode is greedy decoding to the last bit.
Torch's modules are the slow twin (tests/decoding/networks). Figures and rejected alternatives:
benchmarks/results/kernels.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from specdec_plugins.decoding.networks.cache import CacheWindow, SourceMemory
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.heads import Choice, Listed, SequentialHead
from specdec_plugins.decoding.networks.layers import Layer, LayerStack, PositionTable
from specdec_plugins.decoding.networks.reading import Weights, give_back
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.errors import require

KERNELS = ("native", "torch")
# Numbers of a table of tokens. Beside 8-bit products a larger one is in 8 bits, too, or it would be
# most of the memory: of NLLB-200's 3.3 billion weights 0.5 are such a table.
LARGE_TABLE = 1 << 27

# A table that is both output projection and embedding, of both models, is packed once.
_packed: dict[bool, WeakIdKeyDictionary] = {
    False: WeakIdKeyDictionary(),
    True: WeakIdKeyDictionary(),
}

_Network = TypeVar("_Network", bound=nn.Module)


class NativeLinear(nn.Module):
    """A linear layer whose weights are in the layout of the kernels.

    With `int8` they are rounded to 8 bits, scaled per output, and its inputs likewise, scaled per
    row; sums of integers are exact.
    """

    def __init__(self, linear: nn.Linear, int8: bool = False, instruction_set: str = "") -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = _pack(linear, int8, instruction_set)

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] of [..., K], float32."""
        out = x.new_empty(*x.shape[:-1], self.out_features)
        self.packed.multiply(x, out, torch.get_num_threads())
        return out


class NativeTable(nn.Module):
    """Embeddings of tokens in 8 bits; called like `nn.Embedding`."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.weight = ops.PackedTable(_packed_once(table.weight, True), *table.weight.shape)

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., D] float32 of tokens [...] int64."""
        return self.weight[tokens]


class NativeLayers(nn.Module):
    """All layers of a stack in one call; called like `LayerStack`."""

    def __init__(
        self,
        layers: LayerStack,
        int8: bool = False,
        instruction_set: str = "",
        weights: Weights | None = None,
    ) -> None:
        """weights: those of the linear layers, if they are still to be read; none are kept."""
        super().__init__()
        first = _first(layers)
        self._num_layers = len(layers)
        self._num_heads = first.self_attention.num_heads
        self.compiled = ops.native.Stack(
            dim=first.up.in_features,
            attention=first.self_attention.out.in_features,
            heads=self._num_heads,
            ffn=first.down.in_features,
        )
        # Kept apart from the layers, as only these are called on their own.
        self._key_values = nn.ModuleList()
        for index in range(len(layers)):
            if weights is not None:
                weights.read(layers[index])
            self._add(layers, index, int8, instruction_set)
            if weights is not None:
                weights.release(layers[index])

    def _add(self, layers: LayerStack, index: int, int8: bool, instruction_set: str) -> None:
        layer, table = cast(Layer, layers[index]), layers.relative(index)
        attention, crossing = layer.self_attention, layer.cross_attention
        up = layer.up if layer.gate is None else _both(layer.up, layer.gate)
        linears = [attention.qkv, attention.out, up, layer.down]
        norms = [layer.self_norm, layer.ffn_norm]
        if crossing is not None:
            linears[2:2] = [crossing.query, crossing.out]
            norms[1:1] = [layer.cross_norm]
            self._key_values.append(NativeLinear(crossing.key_value, int8, instruction_set))
        self.compiled.add(
            products=[_pack(linear, int8, instruction_set) for linear in linears],
            norms=list(map(_parts, norms)),
            switches=(
                layer.normalize_before,
                layer.gate is not None,
                attention.scale is None,
                layers.activation,
                None if table is None else table.by_distance().detach(),
            ),
        )

    def __len__(self) -> int:
        return self._num_layers

    @property
    def attention_dtype(self) -> torch.dtype:
        """Of keys and values, in which attention is computed."""
        return torch.float32

    @property
    def adds_integers(self) -> bool:
        """Whether the products of a decoder are sums of integers."""
        return bool(self.packed_keys_values[0].adds_integers)

    def after(
        self, tokens: nn.Embedding | NativeTable, scale: float, positions: PositionTable | None
    ) -> dict[str, Any]:
        """What the kernels' decoders are made of: embedding tables, and these layers."""
        places = torch.zeros(1, tokens.embedding_dim), 0, 0  # of a token at any position
        if positions is not None:
            places = positions.weight.detach(), positions.offset, positions.last
        return {"tables": (ops.unwrapped(tokens.weight), scale, *places), "stack": self.compiled}

    def reader(
        self,
        tokens: nn.Embedding | NativeTable,
        scale: float,
        positions: PositionTable | None,
        norms: tuple[nn.Module | None, nn.Module | None],  # of embeddings; of the last states
    ) -> tuple[Any, ...]:
        """What the kernels read tokens by: `after`, with the norms before and behind the layers."""
        below = self.after(tokens, scale, positions)
        first, last = (None if norm is None else _parts(norm) for norm in norms)
        return below["tables"], first, last, below["stack"]

    @property
    def packed_keys_values(self) -> list[Any]:
        """The products of `keys_values`."""
        return [cast(NativeLinear, linear).packed for linear in self._key_values]

    def keys_values(self, states: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of the source for each layer, computed once: [B, S, 2, H, d] each."""
        shape = (*states.shape[:2], 2, self._num_heads, -1)
        return tuple(linear(states).view(shape) for linear in self._key_values)

    def forward(
        self,
        x: Tensor,  # [B, n, D]
        mask: Tensor | None,  # [B or 1, 1, n or 1, T], additive
        store: CacheWindow | None = None,
        source: SourceMemory | None = None,
        span: range | None = None,  # of the layers to run; None = all
        positions: Tensor | None = None,  # [B, n, D], added to what each layer reads
        columns: Tensor | None = None,  # [B, m] int64, whose output is wanted
        distances: Tensor | None = None,  # [B, n, T] int64 from queries to keys, if relative
    ) -> Tensor:  # [B, n, D], or [B, m, D]
        """The output of the last layer of the span; each layer that runs writes to the store."""
        span = range(len(self)) if span is None else span
        num_columns = x.shape[1] if columns is None else columns.shape[1]
        out = x.new_empty(len(x), num_columns, x.shape[2])
        if out.numel() == 0 or len(span) == 0:
            return out if len(span) else x
        self.compiled.run(
            inputs=(x, None if positions is None else positions.expand(x.shape), columns),
            seen=(
                (mask, None, None, distances)
                if store is None
                else (mask, store.storage, store.at, distances)
            ),
            source=None if source is None else source.compiled,
            span=(span.start, span.stop),
            out=out,
            threads=torch.get_num_threads(),
        )
        return out


class NativeNorm(nn.Module):
    """A norm whose sums have the order that they have in the kernels' lane."""

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm) -> None:
        super().__init__()
        self.parts = _parts(norm)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] of [..., D], float32."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        ops.native.normalise(norm=self.parts, x=x, out=out, threads=torch.get_num_threads())
        return out


class NativeHead(nn.Module):
    """A sequential head that drafts all blocks in one call; called like `SequentialHead`.

    It holds that head, with its products replaced by the kernels', for choices made in Python.
    """

    def __init__(self, head: SequentialHead) -> None:
        super().__init__()
        self._head = head
        self.keys_values = head.keys_values
        self._choices: Any = None
        self._compiled: Any = None

    def prepare(self, embeddings: ops.Table, lists: bool) -> None:
        """See `SequentialHead.prepare`."""
        self.compiled(embeddings)
        if lists:
            self.choosing(embeddings)

    def listed(self, types: Tensor, embeddings: ops.Table) -> Listed:
        """The shortlist of a row, of types [N] int32 of the embeddings [V, D]; its projection has
        the precision of the other products.
        """
        return Listed(types, self.choosing(embeddings).pick(outputs=types))

    @property
    def packed_keys_values(self) -> list[Any]:
        """The products of `keys_values`."""
        return [self._head.key_value.packed] if self._head.num_heads else []

    def choosing(self, embeddings: ops.Table) -> Any:
        """The weights that shortlists are picked from."""
        if self._choices is None:
            like = cast(NativeLinear, self._head.out).packed
            self._choices = ops.native.Choices(weight=ops.unwrapped(embeddings), like=like)
        return self._choices

    def draft(
        self,
        states: Tensor,  # [B, K, D]
        logits: Tensor | Sequence[Listed],  # [B, K, V], or the types of each row to score
        before: Tensor,  # [B] int64
        embeddings: ops.Table,  # [V, D]
        num_candidates: int | None,
        source: SourceMemory | None = None,
        choose: Choice | None = None,
        sure: bool = True,
    ) -> tuple[Tensor, Tensor | None]:  # [B, K] int64, [B, K] float32
        """See `SequentialHead.draft`."""
        if choose is not None or (num_candidates is None and isinstance(logits, Tensor)):
            assert isinstance(logits, Tensor), "a choice of Python's is made by all logits"
            return self._head.draft(
                states, logits, before, embeddings, num_candidates, source, choose, sure
            )
        given = (
            (logits, []) if isinstance(logits, Tensor) else (None, [row.packed for row in logits])
        )
        drafted = before.new_empty(states.shape[:2]), states.new_empty(states.shape[:2])
        ops.native.walk_blocks(
            blocks=(states, *given, before, ops.unwrapped(embeddings)),
            head=self.compiled(embeddings),
            source=None if source is None else source.compiled,
            candidates=num_candidates or 0,
            drafted=drafted,
            threads=torch.get_num_threads(),
        )
        return drafted

    def compiled(self, embeddings: ops.Table) -> Any:
        """The kernels' head, over these weights."""
        if self._compiled is None:
            head = self._head
            self._compiled = ops.native.Head(
                table=head.table(embeddings),
                state=head.state.packed,
                out=head.out.packed,
                context=head.context.packed if head.num_heads else None,
                heads=head.num_heads,
            )
        return self._compiled


def _both(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """One product that gives the outputs of both."""
    both = nn.Linear(first.in_features, 2 * first.out_features, first.bias is not None, "meta")
    both.weight = nn.Parameter(torch.cat([first.weight, second.weight]), requires_grad=False)
    if first.bias is not None:
        both.bias = nn.Parameter(torch.cat([first.bias, second.bias]), requires_grad=False)
    return both


def _parts(norm: nn.Module) -> tuple[Tensor, Tensor | None, float]:
    """Gain, bias and epsilon of a norm; no bias: it is an RMS norm."""
    if isinstance(norm, NativeNorm):
        return norm.parts
    if isinstance(norm, nn.RMSNorm):
        return norm.weight.detach(), None, cast(float, norm.eps)
    assert isinstance(norm, nn.LayerNorm)
    return norm.weight.detach(), norm.bias.detach(), norm.eps


def _pack(linear: nn.Linear, int8: bool, instruction_set: str) -> Any:
    """Its weights in the kernels' layout; those of a tied table are shared while it lives."""
    bias = None if linear.bias is None else linear.bias.detach()
    if bias is None and not instruction_set:
        return _packed_once(linear.weight, int8)
    if linear.weight in _packed[int8] and not instruction_set:
        return ops.native.PackedWeights(other=_packed[int8][linear.weight], bias=bias)
    return ops.native.PackedWeights(
        weight=linear.weight.detach(), bias=bias, int8=int8, instruction_set=instruction_set
    )


def _packed_once(weight: Tensor, int8: bool) -> Any:
    """A matrix in the kernels' layout."""
    if weight not in _packed[int8]:
        _packed[int8][weight] = ops.native.PackedWeights(
            weight=weight.detach(), bias=None, int8=int8, instruction_set=""
        )
    return _packed[int8][weight]


def _first(layers: LayerStack) -> Layer:
    return cast(Layer, layers[0])


FAST_PRODUCTS = (NativeLinear, NativeLayers, NativeNorm, NativeTable)


def with_fast_products(
    network: _Network,
    int8: bool = False,
    kernels: str = "native",
    weights: Weights | None = None,
    beside: Sequence[nn.Module] = (),
) -> _Network:
    """The network, its layers replaced in place by the fastest ones for its device, and prepared.

    `kernels`: "native" uses this project's own, for float32 on a CPU, if they were built; "torch"
    uses torch's alone. With `int8` all linear layers are quantised, for which there are only our
    own. `weights`: those that are still to be read, layer by layer. `beside`: networks whose
    products will be the same, and that have some of its tables, which are replaced there, too: if
    not, they would hold the tables in float32 meanwhile. Raises UserError where the
    kernels cannot be used. The network cannot be moved, copied or saved any more.
    """
    if int8:
        _check_int8(next(network.parameters()), kernels)
    if kernels == "native":
        _use_kernels(network, int8, weights, beside)
    elif weights is not None:
        weights.read()
    if isinstance(network, TrainedNetwork):
        network.prepare()
    return network


def _use_kernels(
    network: nn.Module, int8: bool, weights: Weights | None, beside: Sequence[nn.Module]
) -> None:
    """Replace torch's layers by the kernels' own, where they suit."""
    if any(parameter.is_cpu for parameter in network.parameters()):
        ops.warn_if_missing()
    stacks = [
        (parent, name, child)
        for parent, name, child in _children(network)
        if isinstance(child, LayerStack) and suits(_first(child).up.weight)
    ]
    if weights is not None:  # first what is large for a moment: tables of tokens
        weights.read(but=[linear for _, _, stack in stacks for linear in weights.put_off(stack)])
    _replace_outside(network, [stack for _, _, stack in stacks], int8, beside)
    give_back()
    for parent, name, stack in stacks:
        setattr(parent, name, NativeLayers(stack, int8, weights=weights))
    if weights is not None:
        weights.forget()
    for parent, name, child in _children(network):
        if isinstance(child, SequentialHead) and isinstance(child.out, NativeLinear):
            setattr(parent, name, NativeHead(child))


def _replace_outside(
    network: nn.Module, stacks: Sequence[LayerStack], int8: bool, beside: Sequence[nn.Module]
) -> None:
    """Replace what is in no stack: large tables of tokens, output projections and norms."""
    inside = {id(module) for stack in stacks for module in stack.modules()}
    tables = dict[nn.Module, NativeTable]()  # a table may be that of both sides
    children = [child for child in _children(network) if id(child[2]) not in inside]
    own = {id(getattr(child, "weight", None)) for _, _, child in children} - {id(None)}
    for parent, name, child in (child for other in beside for child in _children(other)):
        if id(getattr(child, "weight", None)) in own:
            children.append((parent, name, child))
    for parent, name, child in children:
        if int8 and isinstance(child, nn.Embedding) and _is_large(child):
            setattr(parent, name, tables.setdefault(child, NativeTable(child)))
        elif isinstance(child, nn.Linear) and suits(child.weight):
            setattr(parent, name, NativeLinear(child, int8))
        elif isinstance(child, (nn.LayerNorm, nn.RMSNorm)) and suits(child.weight):
            setattr(parent, name, NativeNorm(child))


def _is_large(table: nn.Embedding) -> bool:
    return table.weight.numel() > LARGE_TABLE and suits(table.weight)


def suits(weight: Tensor) -> bool:
    """True if the kernels can take the place of a torch layer with this weight."""
    fits = weight.device.type == "cpu" and weight.dtype is torch.float32
    return fits and ops.best_set() is not None


def _children(network: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """All child modules, each as its parent, its name and itself."""
    return [(p, name, child) for p in network.modules() for name, child in p.named_children()]


def _check_int8(weight: Tensor, kernels: str) -> None:
    require(
        weight.device.type == "cpu",
        f"int8 networks run on the CPU only, not on {weight.device.type}; choose the CPU, or "
        "float16.",
    )
    require(weight.dtype is torch.float32, f"int8 is made of float32, not of {weight.dtype}.")
    require(
        kernels == "native",
        "int8 networks need this project's kernels, not torch's; choose native, or float32.",
    )
    require(
        ops.best_set() is not None,
        f"int8 networks need the kernels for CPUs, which {ops.fault}; run `make setup`, or pip "
        "install, again with a C++ compiler, or choose float32.",
    )
