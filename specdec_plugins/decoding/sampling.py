"""Random numbers keyed by row and position, distributions from logits, and draws from them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import RowRandom, Stream
from specdec_plugins.decoding.networks.cpu.ops import best
from specdec_plugins.decoding.requests import RowParams

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
        self._seeds = seeds

    @cached_property
    def _keys(self) -> Tensor:
        """[B] int64, hashed on first use: most rules draw nothing."""
        return _mix(self._seeds)

    def uniform(self, first: Tensor, n: int, stream: Stream) -> Tensor:
        """Numbers in [0, 1) for positions first[b] .. first[b] + n - 1: [B, n] float64."""
        positions = first[:, None] + torch.arange(n, device=first.device)
        counts = positions * len(Stream) + stream.value
        # Each hashed seed starts its own SplitMix64 sequence; `counts` says where to read it. (The
        # xor of two hashes would not do: it is the same for seed 3, count 5 and seed 5, count 3.)
        bits = _mix(self._keys[:, None] + counts * _GOLDEN)
        return _shift_right(bits, 11).double() * 2.0**-53


def warp(logits: Tensor, params: RowParams) -> Tensor:
    """Probabilities after each row's temperature, then top-k, then top-p.

    logits: [B, N, V]. Returns [B, N, V], float64 for float64 logits and float32 otherwise. Top-p
    keeps the smallest set of best tokens whose mass within the top k is at least top_p. Ties are
    ordered by token id, so that the kept set is the same every time.

    Sorting a vocabulary costs as much as a layer, so only rows that need it are sorted.
    """
    exact = logits if logits.dtype is torch.float64 else logits.float()
    probs = (exact / params.temperature.to(exact)[:, None, None]).softmax(-1)
    greedy, truncated = params.truncation
    if len(greedy):
        best = probs[greedy].argmax(-1, keepdim=True)  # [B', N, 1], the first of equal ones
        probs[greedy] = torch.zeros_like(probs[greedy]).scatter_(-1, best, 1.0)
    if len(truncated):
        top_k, top_p = params.top_k[truncated], params.top_p[truncated]
        probs[truncated] = _truncated(probs[truncated], top_k, top_p)
    return probs


def _truncated(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Each distribution truncated and renormalised. probs: [B, N, V]; top_k, top_p: [B]."""
    vocab_size = probs.shape[-1]
    top_k = torch.where(top_k > 0, top_k, vocab_size)[:, None, None]
    top_p = top_p[:, None, None]
    ordered, ids = probs.sort(stable=True, dim=-1, descending=True)
    ordered = ordered * (torch.arange(vocab_size, device=probs.device) < top_k)
    ordered = ordered / ordered.sum(-1, keepdim=True)
    mass_before = ordered.cumsum(-1) - ordered
    ordered = ordered * ((mass_before < top_p) | (top_p >= 1))
    kept = torch.zeros_like(probs).scatter(-1, ids, ordered)
    return kept / kept.sum(-1, keepdim=True)


def sample(weights: Tensor, uniform: Tensor) -> Tensor:
    """One draw a row by inversion; a token of weight 0 is never drawn.

    weights: [B, V], not negative, of any positive sum; uniform: [B] float64 in [0, 1). Returns
    [B] int64. Sums are float64: the error of a float32 sum exceeds the weight of rare tokens.
    """
    cumulative = weights.double().cumsum(-1)  # [B, V]
    # Below the sum, since a float64 below 1 is at most 1 - 2^-53.
    point = uniform * cumulative[:, -1]
    # Junk rows may have no weight at all; they get some token, too.
    return (cumulative <= point[:, None]).sum(-1).clamp(max=weights.shape[-1] - 1)


def draft_token(
    logits: Tensor, params: RowParams, random: RowRandom, position: Tensor, sampling: bool
) -> tuple[Tensor, Tensor | None]:
    """One drafted token a row and, under a rule that samples, the distribution it is drawn from.

    logits: [B, V]; position: [B] int64, the token's place in the target. Returns [B] int64 and
    [B, 1, V] float32 or None: without sampling the token is the argmax.
    """
    if not sampling:
        return best(logits), None
    probs = warp(logits[:, None], params).float()
    return sample(probs[:, 0], random.uniform(position, 1, Stream.PROPOSE)[:, 0]), probs
