"""A simulated accelerator: tensors on a device of their own, computed on the CPU.

It enforces CUDA's rule that operands are on one device, so code that forgets to move a tensor, or
creates one on the CPU in the middle of a pass, fails here as on a GPU. Speed and memory are not
simulated, and half precision is the CPU's.

`python -m tests.gpu.accelerator MODULE ARGUMENT...` runs a program that may be given
`--device simulated`.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("simulated")
DEVICE, HOST = torch.device("simulated:0"), torch.device("cpu")

# CUDA takes these with operands of both sides: copies, and device tensors indexed from the host.
COPIES = {"aten::copy_", "aten::_to_copy"}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
WAITS: list[str] = []  # operations that have made the host wait for the device so far


class OnAccelerator(Tensor):
    """A tensor that reports the accelerator as its device; `host` holds its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnAccelerator:
        made: OnAccelerator = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            dtype=host.dtype,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            device=DEVICE,
        )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _compute(operation, args, kwargs or {})

    # In C++ these two bypass the dispatcher.

    def tolist(self) -> list[Any]:
        WAITS.append("tolist")
        return self.host.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert a tensor on {DEVICE} to numpy; copy it to the host first")


@contextmanager
def accelerator() -> Iterator[None]:
    """A context in which `device="simulated"` creates tensors on the accelerator."""
    with _Operations(), _FromNumbers(), mock.patch.object(torch, "Generator", _Generator):
        yield


class _Generator(torch.Generator):
    """A generator for the device is the host's."""

    def __new__(cls, device: Any = HOST) -> _Generator:
        there = torch.device(device).type == DEVICE.type
        return super().__new__(cls, HOST if there else device)  # type: ignore[call-arg]


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _compute(operation, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """Splits functions that fill a tensor without the dispatcher in two: create, then move."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return torch.tensor(*args, **kwargs).to(device)
        if function is Tensor.new_tensor and isinstance(args[0], OnAccelerator):
            like, numbers = args
            return torch.tensor(numbers, dtype=like.dtype).to(like.device)
        return function(*args, **kwargs)


def _compute(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the operation on the host; returns the result on the device that it belongs to."""
    name = operation._schema.name
    _check_devices(name, args, kwargs)
    there = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, OnAccelerator)]
    devices = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.device)]
    target = devices[0] if devices else DEVICE if there else HOST
    # Without gradients the copy arrives as `to`.
    is_copy = there and target == HOST and name in (*COPIES, "aten::to")
    if is_copy or name in ("aten::_local_scalar_dense", "aten::item"):
        WAITS.append(name)
    args, kwargs = pytree.tree_map_only(torch.device, lambda _: HOST, (args, kwargs))
    result = operation(*_map(_host, args), **_map(_host, kwargs))
    if name == "aten::copy_":  # the result is its first operand, whatever the second is
        return args[0]
    # A tensor that is written in place stays the same object.
    written = {id(x.host): x for x in there}
    if target.type != DEVICE.type:
        return result
    # A view of a weight made in inference mode would have no version, which torch tries to set.
    with torch.inference_mode(False):
        return _map(lambda x: written[id(x)] if id(x) in written else OnAccelerator(x), result)


def _check_devices(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in COPIES:
        return
    if name in INDEXING and isinstance(args[0], OnAccelerator):
        args = (args[0], *args[2:])  # without the indices, which may be on either side
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    # A tensor without dimensions may be on any device.
    here = [x for x in tensors if not isinstance(x, OnAccelerator) and x.dim() > 0]
    if here and any(isinstance(x, OnAccelerator) for x in tensors):
        raise RuntimeError(f"{name}: expected all tensors on one device, found {DEVICE} and cpu")


def _host(x: Tensor) -> Tensor:
    return x.host if isinstance(x, OnAccelerator) else x


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, function, tree)


def run_module(module: str, *arguments: str) -> None:
    """Run a program with the device in all its threads: a context counts for one thread only."""
    run_plainly = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with accelerator():
            run_plainly(self)

    threading.Thread.run = run  # type: ignore[method-assign]
    sys.argv = [module, *arguments]
    with accelerator():
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_module(*sys.argv[1:])
