"""Token and position embeddings as fairseq lays them out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.networks.config import StackConfig


def sinusoids(num_positions: int, dim: int) -> Tensor:
    """The sines of all frequencies, then the cosines: [num_positions, dim] float32.

    Vaswani et al. 2017, section 3.5, in the layout of tensor2tensor. Single precision whatever
    the network's: trained networks have seen these values, rounding included.
    """
    num_frequencies = dim // 2
    step = math.log(10000) / max(num_frequencies - 1, 1)
    frequencies = torch.exp(torch.arange(num_frequencies, dtype=torch.float32) * -step)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return F.pad(table, (0, dim % 2))


class PositionTable(nn.Module):
    """One vector a position. As in fairseq, position 0 stands at row `pad` + 1."""

    def __init__(self, stack: StackConfig, pad: int) -> None:
        super().__init__()
        self.offset = pad + 1
        self.last = stack.max_positions - 1
        size = (stack.max_positions + self.offset, stack.dim)
        if stack.positions == "learned":
            self.weight = nn.Parameter(torch.randn(size) * stack.dim**-0.5)
        else:
            self.register_buffer("weight", sinusoids(*size), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """[..., D] of `positions` [...] int64; those past the table get its last row.

        Only junk may lie past the table, but junk must not raise.
        """
        return F.embedding(positions.clamp(max=self.last) + self.offset, self.weight)


def count_tokens(tokens: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Position of each token among those that are no padding, and the padding: both [B, S].

    Returns int64 positions from 0 (junk at padding) and a bool mask, True = padding.
    """
    padding_mask = tokens == pad
    return ((~padding_mask).cumsum(1) - 1).clamp(min=0), padding_mask


def additive(kept_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where True, minus infinity where False, of that dtype.

    Attention turns a bool mask into this in every layer; building it once a pass is cheaper.
    """
    zeros = torch.zeros(kept_mask.shape, dtype=dtype, device=kept_mask.device)
    return zeros.masked_fill_(~kept_mask, -math.inf)
