"""Matrices stored in 8 bits: codes from -127 to 127, and a factor for each row.

The factors [N], bfloat16, have the name of the codes [N, M], int8, with SCALE behind it. The
largest number of a row has the code 127 or -127. A code times a factor is exact in float32, and a
factor is what the kernels compute as the step of its row. So every precision decodes from the same
numbers: in 8 bits the kernels find these codes, and a model that is stored again stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.reading import Parts, Rows, Unread, now
from specdec_plugins.errors import UserError

SCALE = ".scale"
_FEW = 1 << 12  # numbers of a table so small that it stays as it is, such as one of biases


def in_8_bits(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the large matrices in 8 bits; others are in float16."""
    found = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            found[name] = tensor
        elif tensor.dim() != 2 or tensor.numel() < _FEW:
            found[name] = tensor.half()
        else:
            found[name], found[name + SCALE] = _codes(tensor)
    return found


def fits_8_bits(matrix: Tensor) -> bool:
    """Whether a matrix [N, M] is one that was stored so."""
    return matrix.dtype is torch.float32 and torch.equal(_product(*_codes(matrix)), matrix)


def without_codes(parts: Parts) -> Parts:
    """The tensors with the matrices themselves, float32, in place of codes and factors.

    They are computed when they are read; a tied one is one part under each of its names. Raises
    UserError where factors and codes do not fit.
    """
    once: dict[tuple[int, int], Unread] = {}
    found = {name: part for name, part in parts.items() if not name.endswith(SCALE)}
    for name in parts.keys() - found.keys():
        codes, factors = parts.get(name.removesuffix(SCALE)), now(parts[name])
        if not isinstance(codes, Unread) or codes.shape[:1] != factors.shape:
            raise UserError(f"{name} does not fit the matrix that it scales; copy the file again.")
        part = once.setdefault((id(codes), id(parts[name])), _read_later(codes, factors))
        found[name.removesuffix(SCALE)] = part
    return found


def _read_later(codes: Unread, factors: Tensor) -> Unread:
    def some(rows: Rows) -> Tensor:
        assert codes.some is not None
        return _product(codes.some(rows), factors[rows])

    return Unread(codes.shape, lambda: _product(codes.read(), factors), some, codes.origin)


def _codes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [N, M] int8 and factors [N] bfloat16 of a matrix [N, M]."""
    factors = (matrix.abs().amax(1).float() / 127).bfloat16()
    steps = factors.to(matrix.dtype).where(factors > 0, 1)[:, None]
    return (matrix / steps).round().clamp(-127, 127).to(torch.int8), factors


def _product(codes: Tensor, factors: Tensor) -> Tensor:
    return codes.float() * factors.float()[:, None]
