"""The list of acceptance rules by name, and the two functions that all of them share."""

from __future__ import annotations

from torch import Tensor

from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.types import AcceptanceRule

RULES: Registry[AcceptanceRule] = Registry("acceptance rule")


def leading_true(mask: Tensor) -> Tensor:
    """How many entries of each row are True before the first False.

    mask: [B, K] bool. Returns [B] int64. Example: [[1, 1, 0, 1], [0, 1, 1, 1]] gives [2, 0].
    """
    return mask.long().cumprod(1).sum(1)


def at(values: Tensor, index: Tensor) -> Tensor:
    """values[b, index[b]]: [B, N, ...] and [B] int64 give [B, ...]."""
    shape = (-1, 1, *values.shape[2:])
    expanded = index.view(-1, *[1] * (values.dim() - 1)).expand(shape)
    return values.gather(1, expanded).squeeze(1)
