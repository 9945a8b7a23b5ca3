"""Weights on their way from files to networks: read when they are wanted, one part at a time.

So a network can be made of a file that memory could not hold beside it: a file in single precision
is four times as large as the same weights in 8 bits.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from specdec_plugins.errors import UserError

Rows = Tensor | slice
_PIECE = 1 << 20  # numbers of a matrix that are copied or compared at a time


@dataclass(frozen=True)
class Unread:
    """A tensor that is still in its file, or is made of such."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    some: Callable[[Rows], Tensor] | None = None  # rows of a matrix; None = only all at once
    origin: object = None  # the same for the same tensor in the same file; None = unknown

    def picked(self, order: Sequence[int]) -> Unread:
        """Rows in another order, each as often as it is there."""
        index, some = torch.tensor(order), self.some
        own = None if some is None else lambda rows: some(index[rows])
        return Unread((len(order), *self.shape[1:]), lambda: self.read()[index], own)


Part = Tensor | Unread
Parts = dict[str, Part]


class LazyState(Mapping[str, Tensor]):
    """Named tensors, read anew whenever one is asked for."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> Tensor:
        return now(self.parts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def now(part: Part) -> Tensor:
    """The tensor itself."""
    return part.read() if isinstance(part, Unread) else part


def parts_of(state: Mapping[str, Tensor]) -> Mapping[str, Part]:
    """The tensors of a state, without reading any."""
    return state.parts if isinstance(state, LazyState) else state


def all_read(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a state; a tied one is one tensor under each of its names."""
    parts = parts_of(state)
    once = {id(part): now(part) for part in parts.values()}
    return {name: once[id(part)] for name, part in parts.items()}


def _in_pieces(*parts: Part) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """Tensors of one shape, a few rows at a time where they can be read so.

    A table may be so large that memory cannot hold it twice.
    """
    readers = [part.__getitem__ if isinstance(part, Tensor) else part.some for part in parts]
    length, *width = parts[0].shape or (1,)
    step = max(1, _PIECE // max(1, prod(width)))
    if length <= step or None in readers:
        yield slice(None), tuple(map(now, parts))
        return
    for begin in range(0, length, step):
        rows = slice(begin, min(begin + step, length))
        yield rows, tuple(reader(rows) for reader in readers if reader)


def same_numbers(
    first: Part, second: Part, dtype: torch.dtype | None = None, roundings: Sequence[Any] = ()
) -> bool:
    """True if both hold the same in that dtype (None: in the wider of theirs), a piece at a time.

    roundings: dtypes; also true if one is the other rounded to one of these and back.
    """
    origins = [part.origin if isinstance(part, Unread) else None for part in (first, second)]
    if first is second or (origins[0] is not None and origins[0] == origins[1]):
        return True
    if tuple(first.shape) != tuple(second.shape):
        return False
    ways = [(None, None), *((r, None) for r in roundings), *((None, r) for r in roundings)]
    return any(
        all(_equal(one, other, dtype, way) for _, (one, other) in _in_pieces(first, second))
        for way in ways
    )


def _equal(first: Tensor, second: Tensor, dtype: torch.dtype | None, way: Sequence[Any]) -> bool:
    wide = dtype or torch.promote_types(first.dtype, second.dtype)
    one, other = (
        tensor.to(wide).to(rounding or wide).to(wide)
        for tensor, rounding in zip((first, second), way, strict=True)
    )
    return torch.equal(one, other)


@dataclass(frozen=True)
class Joined(Unread):
    """Matrices or vectors, one after the other."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Joined:
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        origins = tuple(part.origin if isinstance(part, Unread) else None for part in parts)
        return cls(
            shape,
            lambda: torch.cat([now(part) for part in parts]),
            origin=None if None in origins else origins,
            parts=tuple(parts),
        )


def _copy(part: Part, place: Tensor) -> None:
    """Copy a tensor to where it belongs, without a copy between."""
    if not isinstance(part, Joined):
        for rows, (own,) in _in_pieces(part):
            (place[rows] if place.dim() else place).copy_(own)
        return
    begin = 0
    for inner in part.parts:
        _copy(inner, place[begin : begin + inner.shape[0]])
        begin += inner.shape[0]


def give_back() -> None:
    """Give freed memory to the system, where that has to be asked for (glibc).

    Freed matrices else stay, in pieces that others do not fit into.
    """
    trim = getattr(CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class uninitialised(TorchFunctionMode):  # noqa: N801  (a context manager)
    """Networks that are built inside have any weights; the memory is not even touched."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


class Weights:
    """The weights of a network that are still to be read, all at once or module by module."""

    def __init__(self, network: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Raises UserError where the two do not match."""
        expected, parts = network.state_dict(), parts_of(state)
        _complain("lacks the weights", expected.keys() - parts.keys())
        _complain("has weights of another kind of model:", parts.keys() - expected.keys())
        wrong = {n for n, part in parts.items() if tuple(part.shape) != tuple(expected[n].shape)}
        _complain("has weights of unexpected size:", wrong)
        self._parts = parts
        # Of layers that were released, by shape. Memory that is given back and asked for again
        # would lie in pieces, which the system cannot have.
        self._memory = defaultdict[torch.Size, list[Tensor]](list)
        # Weak, as a module that has been replaced should leave the memory.
        self._names = WeakKeyDictionary({m: name for name, m in network.named_modules()})
        # Tied weights are read under their first name.
        self._left = {name for name, _ in network.named_parameters()}
        self._left |= {name for name, _ in network.named_buffers()} & parts.keys()

    @torch.no_grad()
    def read(self, module: nn.Module | None = None, but: Iterable[nn.Module] = ()) -> None:
        """Read those of a module and what it holds (None: of all), except what others hold."""
        omitted = {inner for one in but for inner in one.modules()}
        for inner in [*self._names] if module is None else [*module.modules()]:
            if inner not in omitted:
                self._read_own(inner)
        give_back()

    def held(self, module: nn.Module) -> LazyState:
        """All tensors of a module by its own names, read or not."""
        prefix = f"{self._names[module]}."
        return LazyState({name: self._parts[prefix + name] for name in module.state_dict()})

    def leave(self, module: nn.Module) -> None:
        """Read no more of a module's own: another network has it."""
        self._left -= {f"{self._names[module]}.{name}" for name in module.state_dict()}

    def put_off(self, module: nn.Module) -> list[nn.Module]:
        """The linear layers in a module that are still to be read; till then without memory."""
        linears = [one for one in module.modules() if isinstance(one, nn.Linear)]
        found = [one for one in linears if f"{self._names[one]}.weight" in self._left]
        return [one.to("meta") for one in found]

    def release(self, module: nn.Module) -> None:
        """Take the memory of the linear layers in a module, which are used no more, for others."""
        for inner in module.modules():
            for parameter in inner.parameters() if isinstance(inner, nn.Linear) else ():
                self._memory[parameter.shape].append(parameter.detach())
            if isinstance(inner, nn.Linear):
                inner.to("meta")

    def forget(self) -> None:
        """Let go of the memory that was kept for layers."""
        self._memory.clear()
        give_back()

    def _read_own(self, module: nn.Module) -> None:
        prefix = f"{self._names[module]}."
        for kind in (*module._parameters, *module._buffers):
            name = f"{prefix}{kind}".removeprefix(".")
            if name in self._left:
                self._left.remove(name)
                if (place := getattr(module, kind)).is_meta:
                    place = (self._memory[place.shape] or [torch.empty(place.shape)]).pop()
                    setattr(module, kind, nn.Parameter(place, requires_grad=False))
                _copy(self._parts[name], place)


def _complain(what: str, names: Iterable[str]) -> None:
    listed = sorted(names)
    if listed:
        more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
        raise UserError(
            f"the checkpoint {what} {', '.join(listed[:3])}{more}; give one of the "
            "requested kind of model."
        )
