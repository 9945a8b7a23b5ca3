"""The sequential head of the block drafter: each position learns which token stands before it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class SequentialHead(nn.Module):
    """Corrects the state of a masked position by the token drafted before it.

    All positions of a block come out of one pass, so none knows what the others chose. The head
    runs over them from left to right::

        z_k = h_k + O relu(S h_k + T norm(e(t_{k-1})))

    with h_k the position's last state, e the token embedding (not scaled) and O zero at the start,
    so that training begins at the drafter without a head. The idea is that of Hydra (Ankner et al.
    2024) and ReDrafter (Zhang et al. 2024), for one parallel block instead of several heads.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.state = nn.Linear(dim, hidden_dim)
        self.token = nn.Linear(dim, hidden_dim, bias=False)
        self.out = nn.Linear(hidden_dim, dim)
        self.forget()

    def forget(self) -> None:
        """Begin by changing nothing."""
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, before: Tensor) -> Tensor:
        """Corrected states [N, D] of states [N, D] and embeddings [N, D] of the tokens before."""
        hidden = self.state(states) + self.token(self.norm(before))
        corrected: Tensor = states + self.out(F.relu(hidden))
        return corrected
