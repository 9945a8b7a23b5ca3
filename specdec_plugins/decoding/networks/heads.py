"""Heads on the verifier's last state, each for a place farther ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding.networks.trained import (
    NETWORKS,
    State,
    TrainedNetwork,
    TrainingSettings,
)
from specdec_plugins.errors import require


@dataclass(frozen=True)
class MedusaConfig:
    """How many heads, and of what."""

    num_heads: int  # the block size that they were trained for
    dim: int  # width of the states that they read


@NETWORKS.register("medusa_heads")
class MedusaHeads(TrainedNetwork):
    """One residual block a head (Medusa, Cai et al. 2024, section 2.1.1, equation of the heads).

    Head k turns the state h, from which the verifier's projection W reads the next token, into one
    from which it reads the token k places behind that: W (h + SiLU(W_k h + b_k)). In the paper
    each head has a projection of its own, which begins as a copy of W; here all share W itself, so
    that heads are small beside the verifier's vocabulary, and no less certain where h says it all.
    """

    Config = MedusaConfig
    arch, noun = "medusa_heads", "a set of heads"

    @classmethod
    def configure(cls, state: State, settings: TrainingSettings) -> MedusaConfig:
        return cls.described({}, state)

    @classmethod
    def described(cls, architecture: dict[str, Any], state: State) -> MedusaConfig:
        """The weights alone settle it; earlier bundles say nothing else."""
        require("blocks.weight" in state, "holds no heads: it has no weights named blocks.weight.")
        rows, dim = state["blocks.weight"].shape
        return MedusaConfig(rows // dim, dim)

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.num_heads, self.dim = config.num_heads, config.dim
        # All W_k and b_k, one product.
        self.blocks = nn.Linear(config.dim, config.num_heads * config.dim)

    def forward(self, hidden: Tensor, num_used: int) -> Tensor:
        """States [B, num_used, D] of the first heads, of last states [B, D]."""
        rows = num_used * self.dim
        inner = F.linear(hidden, self.blocks.weight[:rows], self.blocks.bias[:rows])
        residual: Tensor = hidden[:, None]
        return residual + F.silu(inner.view(-1, num_used, self.dim))
