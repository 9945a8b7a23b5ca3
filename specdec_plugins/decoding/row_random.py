"""Counter-based random numbers: a hash of (seed, position, stream), so a row needs no state."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.interfaces import Stream

# Finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators", figure 17), in two's complement because torch's integers are signed.
_GOLDEN = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's `>>` copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


class HashRandom:
    """`RowRandom` over a batch of seeds. seeds: [B] int64."""

    def __init__(self, seeds: Tensor) -> None:
        self._keys = _mix(seeds)

    def uniform(self, first: Tensor, n: int, stream: Stream) -> Tensor:
        """Numbers in [0, 1) for positions first[b] .. first[b] + n - 1: [B, n] float64."""
        positions = first[:, None] + torch.arange(n, device=first.device)
        counts = positions * len(Stream) + stream.value
        # Each hashed seed starts its own SplitMix64 sequence; `counts` says where to read it. (The
        # xor of two hashes would not do: it is the same for seed 3, count 5 and seed 5, count 3.)
        bits = _mix(self._keys[:, None] + counts * _GOLDEN)
        return _shift_right(bits, 11).double() * 2.0**-53
