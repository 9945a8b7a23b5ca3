"""A simulated accelerator: torch's fake tensors on a device, each with its numbers on the host.

With torch's CUDA build the device is `cuda`, whether there is a GPU or not; else one of its own.
torch checks devices, dtypes and shapes by its CUDA rules, so code that forgets to move a tensor
fails here as on a GPU. `FOUND` names what a GPU would make the host wait for. Speed, memory and
rounding are not simulated.

`python -m tests.gpu.accelerator MODULE ARGUMENT...` runs a program that may be given
`--device simulated`.
"""

from __future__ import annotations

import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.cuda.amp import common
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ROOT = Path(__file__).parents[2]
KIND = "cuda" if torch.version.cuda else "simulated"
if KIND == "simulated":
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(KIND)
HOST = torch.device("cpu")
COPY, UPLOAD, SHAPE = "copy to the host", "copy from the host that waits", "shape that needs data"
_ASKED = ("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose")
_VALUES = {f"aten::{name}" for name in _ASKED}
_HALVES = {"aten::_softmax", "aten::_log_softmax"}
_MOVES = {"aten::_to_copy", "aten::to", "aten::copy_"}


class Found(NamedTuple):
    """Something that makes the host wait for the device."""

    what: str
    place: str  # file, line and function of the innermost call outside torch


FOUND: list[Found] = []  # so far
_fakes = FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def accelerator() -> Iterator[None]:
    """A context in which tensors can be made on the device `KIND`."""
    with ExitStack() as stack:
        for patched in (
            mock.patch.object(torch, "Generator", _Generator),
            mock.patch.object(torch, "load", _load),
            mock.patch.object(common, "amp_definitely_not_available", return_value=False),
            mock.patch.object(torch.cuda, "current_device", return_value=0),
            mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
            mock.patch.object(torch.cuda, "get_rng_state", return_value=None),
            mock.patch.object(torch.cuda, "set_rng_state"),
            mock.patch.object(FakeTensor, "tolist", _tolist),
            mock.patch.object(torch.utils, "swap_tensors", _swap),
        ):
            stack.enter_context(patched)
        for mode in (_fakes, _Numbers(), _FromNumbers()):
            stack.enter_context(mode)
        yield


class _Generator(torch.Generator):
    """A generator for the device is the host's."""

    def __new__(cls, device: Any = HOST) -> _Generator:
        there = torch.device(device).type == KIND
        return super().__new__(cls, HOST if there else device)  # type: ignore[call-arg]


_plain_swap = torch.utils.swap_tensors


def _swap(first: Tensor, second: Tensor) -> None:
    """torch moves the weights of a module by it, and refuses tensors that the mode remembers."""
    _fakes.fake_tensor_converter.meta_converter.tensor_memo.clear()
    _plain_swap(first, second)


_plain_load = torch.load


def _load(*arguments: Any, **options: Any) -> Any:
    """Files are read to the host; under a mode of fake tensors torch would leave the numbers."""
    with _disable_current_modes():
        return _plain_load(*arguments, **options)


def _tolist(tensor: FakeTensor) -> Any:
    if tensor.device.type == KIND:
        _note(COPY)
    with torch._C._DisableTorchDispatch():
        return _host(tensor).tolist()


def _note(what: str) -> None:
    frames = reversed(traceback.extract_stack())
    own = next(f for f in frames if "/torch/" not in f.filename and f.filename != __file__)
    file = own.filename.split("site-packages/")[-1].removeprefix(f"{ROOT}/")
    FOUND.append(Found(what, f"{file}:{own.lineno} {own.name}"))


def _faked(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, FakeTensor) else _fakes.from_tensor(tensor.detach())


def _host(tensor: Tensor) -> Tensor:
    """The numbers of a tensor."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    host: Tensor = tensor.host  # type: ignore[attr-defined]
    return host


class _Numbers(TorchDispatchMode):
    """Computes on the host what the fake tensors leave out."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = [*_leaves((args, kwargs))]
        there = [x.device for x in leaves if _is_there(x)]
        there += [x for x in leaves if isinstance(x, torch.device) and x.type == KIND]
        if not there:
            return _computed(operation, args, kwargs)
        name = operation._schema.name
        if name.startswith("prim::"):  # what a tensor says of itself
            return operation(*args, **kwargs)
        if name in _VALUES:
            _note(COPY)
            return _computed(operation, args, kwargs)
        if name.startswith("aten::index"):
            _check_indices(args)
        try:
            fake = operation(*_mapped(_faked, args, None), **_mapped(_faked, kwargs, None))
        except (DynamicOutputShapeException, DataDependentOutputException):
            _note(SHAPE)
            real = _computed(operation, args, kwargs)
            return _mapped(lambda x: _attached(_like(x, there[0]), x), real)
        if name in _MOVES:
            _note_move(args, kwargs, fake)
        real = iter([*_leaves(_computed(operation, args, kwargs))])
        return _mapped(lambda x: _attached(x, next(real)), fake)


def _is_there(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == KIND


def _check_indices(args: tuple[Any, ...]) -> None:
    """Indices may be on the host, but are then copied; fake tensors let all pass."""
    for index in _leaves(args[1]):
        if _is_there(index) and not _is_there(args[0]):
            raise RuntimeError(f"a tensor of the host is indexed from {index.device}")
        if isinstance(index, Tensor) and not _is_there(index) and _is_there(args[0]):
            _note(UPLOAD)


def _note_move(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
    source = next((x for x in args[1:] if isinstance(x, Tensor)), args[0])  # of `copy_` the second
    waits = not kwargs.get("non_blocking") and not any(x is True for x in args)
    if _is_there(source) and not _is_there(result):
        _note(COPY)
    elif _is_there(result) and not _is_there(source) and source.dim() and waits:
        _note(UPLOAD)


def _computed(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _mapped(_host, (args, kwargs))
    with torch._C._DisableTorchDispatch():
        if operation._schema.name in _HALVES and args[2]:  # the CPU does not do both at once
            args = (args[0].float(), args[1], False)
        return operation(*args, **kwargs)


def _attached(fake: Tensor, real: Tensor) -> Tensor:
    """The result of an operation: its fake tensor, or its numbers where these are the host's."""
    if not _is_there(fake):
        return real
    if not hasattr(fake, "host"):
        fake.host = real  # type: ignore[attr-defined]
    return fake


def _like(real: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=device)


# Of torch's own functions for nested arguments each call takes as long as an operation.


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _leaves(part)
    elif isinstance(tree, dict):
        yield from _leaves([*tree.values()])
    else:
        yield tree


def _mapped(
    function: Callable[[Tensor], Any], tree: Any, device: torch.device | None = HOST
) -> Any:
    """Tensors through a function, and devices turned into `device`, if any."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, torch.device):
        return device or tree
    if isinstance(tree, (list, tuple)):
        return type(tree)([_mapped(function, part, device) for part in tree])
    if isinstance(tree, dict):
        return {key: _mapped(function, part, device) for key, part in tree.items()}
    return tree


class _FromNumbers(TorchFunctionMode):
    """Splits functions that fill a tensor without the dispatcher in two: create, then move."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        if function is Tensor.new_tensor and _is_there(args[0]):
            like, numbers = args
            return torch.tensor(numbers, dtype=like.dtype).to(like.device)
        return function(*args, **kwargs)


@contextmanager
def in_threads() -> Iterator[None]:
    """`accelerator` in all threads: a context of torch's counts for one thread only."""
    run_plainly = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with accelerator():
            run_plainly(self)

    with mock.patch.object(threading.Thread, "run", run), accelerator():
        yield


def run_module(module: str, *arguments: str) -> None:
    """Run a program with the device."""
    sys.argv = [module, *arguments]
    with in_threads():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_module(*sys.argv[1:])
