"""Heads on the verifier's last state, each for a place farther ahead."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MedusaHeads(nn.Module):
    """One residual block a head (Medusa, Cai et al. 2024, section 2.1.1, equation of the heads).

    Head k turns the state h, from which the verifier's projection W reads the next token, into one
    from which it reads the token k places behind that: W (h + SiLU(W_k h + b_k)). In the paper
    each head has a projection of its own, which begins as a copy of W; here all share W itself, so
    that heads are small beside the verifier's vocabulary, and no less certain where h says it all.
    """

    def __init__(self, num_heads: int, dim: int) -> None:
        """dim: width of the states."""
        super().__init__()
        self.num_heads = num_heads
        self.dim = dim
        self.blocks = nn.Linear(dim, num_heads * dim)  # all W_k and b_k, one product

    def forward(self, hidden: Tensor, num_used: int) -> Tensor:
        """States [B, num_used, D] of the first heads, of last states [B, D]."""
        rows = num_used * self.dim
        inner = F.linear(hidden, self.blocks.weight[:rows], self.blocks.bias[:rows])
        residual: Tensor = hidden[:, None]
        return residual + F.silu(inner.view(-1, num_used, self.dim))


def heads_of(weight: Tensor, bias: Tensor) -> MedusaHeads:
    """Heads with these blocks: weight [K * D, D], bias [K * D]."""
    dim = weight.shape[1]
    with torch.device("meta"):
        heads = MedusaHeads(weight.shape[0] // dim, dim)
    heads.load_state_dict({"blocks.weight": weight, "blocks.bias": bias}, assign=True)
    return heads.eval().requires_grad_(False)
