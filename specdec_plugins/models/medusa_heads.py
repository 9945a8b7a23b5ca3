"""``--arch medusa_heads``: heads on the last state of a trained verifier, which stays as it is.

Source: Medusa (Cai et al. 2024), section 2.2.1 (frozen backbone). The heads' twin for inference is
``specdec_plugins.decoding.networks.heads``.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from torch import Tensor, nn
from torch.nn import functional

from specdec_plugins.errors import UserError, require
from specdec_plugins.models.assistant_transformer import load_verifier

_VERIFIER = "verifier."


@register_model("medusa_heads")
class MedusaHeads(BaseFairseqModel):
    """K residual blocks; a checkpoint holds these, and nothing of the verifier."""

    verifier: Any  # a fairseq Transformer

    def __init__(self, verifier: nn.Module, dim: int, num_heads: int) -> None:
        super().__init__()
        self.verifier = verifier.eval().requires_grad_(False)
        self.num_heads = num_heads
        self.blocks = nn.Linear(dim, num_heads * dim)
        # As in the paper, heads initially predict what the verifier predicts.
        nn.init.zeros_(self.blocks.weight)
        nn.init.zeros_(self.blocks.bias)

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--verifier-path", metavar="FILE", help="checkpoint that the heads are trained on"
        )
        parser.add_argument(
            "--num-heads", type=int, metavar="K", help="tokens drafted per round (default: 5)"
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> MedusaHeads:
        """Raises UserError if there is no verifier, or it has no output projection of its own."""
        require(args.num_heads >= 1, f"--num-heads is {args.num_heads}, expected 1 or more")
        verifier, _ = load_verifier(args, task, "train on")
        projection = getattr(verifier.decoder, "output_projection", None)
        if projection is None:
            raise UserError(f"{args.verifier_path}: heads need a verifier without adaptive softmax")
        return cls(verifier, projection.in_features, args.num_heads)

    def train(self, mode: bool = True) -> MedusaHeads:
        """The verifier never has dropout: heads read the states that decoding gives them."""
        super().train(mode)
        self.verifier.eval()
        return self

    def forward(
        self,
        src_tokens: Tensor,  # [B, S] int64
        src_lengths: Tensor,  # [B] int64
        prev_output_tokens: Tensor,  # [B, T] int64
    ) -> Tensor:  # [B, T, K, D]
        """States for the projection: at place t, that of head k predicts target t + k."""
        with torch.no_grad():
            hidden, _ = self.verifier(
                src_tokens, src_lengths, prev_output_tokens, features_only=True
            )
        inner = self.blocks(hidden).unflatten(-1, (self.num_heads, -1))
        residual: Tensor = hidden[:, :, None]
        return residual + functional.silu(inner)

    def project(self, states: Tensor) -> Tensor:
        """Logits [..., V] of states [..., D], by the verifier's frozen projection."""
        logits: Tensor = self.verifier.decoder.output_projection(states)
        return logits

    def max_positions(self) -> Any:
        return self.verifier.max_positions()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The state without the verifier, which has a checkpoint already."""
        state = super().state_dict(*args, **kwargs)
        for name in [n for n in state if n.startswith(kwargs.get("prefix", "") + _VERIFIER)]:
            del state[name]
        return state

    def upgrade_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Add the verifier's weights, which a checkpoint of heads lacks."""
        for name, tensor in self.verifier.state_dict().items():
            state_dict[_VERIFIER + name] = tensor


@register_model_architecture("medusa_heads", "medusa_heads")
def medusa_architecture(args: Namespace) -> None:
    """Every flag given by the user stays."""
    args.num_heads = getattr(args, "num_heads", 5)
