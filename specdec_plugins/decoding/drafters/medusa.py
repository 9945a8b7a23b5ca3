"""Small heads on the verifier's last state predict the tokens after its next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.contract import Draft, DraftRequest, Prefix, Round, SourceBatch
from specdec_plugins.decoding.drafters.base import (
    DRAFTERS,
    ContextDrafter,
    DraftContext,
    Needs,
    until_end,
)
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.ops import at, best
from specdec_plugins.decoding.networks.heads import MedusaHeads
from specdec_plugins.errors import require


@runtime_checkable
class SupportsHidden(Protocol):
    """A verifier that returns its last states with its scores, for heads to read."""

    @property
    def hidden_dim(self) -> int:
        """Width D of a last state, as the output projection reads it."""

    def keep_hidden(self) -> None:
        """Fill `Scores.hidden` from now on."""

    def project(self, states: Tensor) -> Tensor:
        """The output projection: logits [..., V] of states [..., D]."""


@DRAFTERS.register("medusa")
class MedusaDrafter(ContextDrafter):
    """Each head's best token, one head a position (Cai et al. 2024, section 2.1).

    From the state that gave the verifier's own token of a round, head k predicts the token k
    positions later. So a draft costs one small product. A row's first round, without a state yet,
    is a plain autoregressive step.
    """

    needs = Needs(MedusaHeads)

    @dataclass(frozen=True)
    class Config:
        """No options: the trained heads determine everything."""

    def __init__(self, config: Config, context: DraftContext) -> None:
        super().__init__(config, context)
        verifier, heads = context.verifier, context.network
        assert isinstance(verifier, SupportsHidden)
        assert isinstance(heads, MedusaHeads)
        require(
            heads.dim == verifier.hidden_dim,
            f"The heads read states of width {heads.dim}, but the verifier's have width "
            f"{verifier.hidden_dim}; use heads that were trained on this verifier.",
        )
        self._verifier, self._heads = verifier, heads
        self._verifier.keep_hidden()
        self.max_block_size = self._heads.num_heads
        self._eos = context.verifier.special.eos
        # Reading a value on the CPU needs no synchronisation.
        self._may_wait = context.verifier.device.type == "cpu"
        weight = self._heads.blocks.weight
        self._hidden = weight.new_zeros(0, self._heads.dim)  # [B, D]
        # [B] bool, whether `_hidden` of this row is set
        self._known = torch.zeros(0, dtype=torch.bool, device=weight.device)

    def native(self, verifier: Any) -> Any:
        """See `ContextDrafter`."""
        heads = self._heads.at_once
        return None if heads is None else ops.native.MedusaDrafter(verifier, heads, self._eos)

    def admit(self, source: SourceBatch) -> None:
        self._hidden = pad(self._hidden, (0, 0, 0, len(source)))
        self._known = pad(self._known, (0, len(source)))

    def commit(self, prefix: Prefix, last: Round) -> None:
        """With n tokens accepted, row n of the scores gave the next token."""
        assert last.scores.hidden is not None, "the verifier scores without its states"
        self._hidden = at(last.scores.hidden, last.verdict.num_accepted)
        self._known = torch.ones_like(self._known)

    def select(self, rows: Tensor) -> None:
        self._hidden, self._known = self._hidden[rows], self._known[rows]

    @torch.inference_mode()
    def propose(self, asked: DraftRequest) -> Draft:
        num_used = min(asked.width, self._heads.num_heads)
        states = self._heads(self._hidden, num_used)  # [B, K, D]
        tokens = best(self._verifier.project(states))
        draft = Draft(tokens, asked.budget.clamp(max=num_used) * self._known)
        return until_end(draft, self._eos, self._may_wait)
