"""A drafter with weights in one file: it drafts the likeliest successor of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.contract import Draft, DraftRequest
from specdec_plugins.decoding.drafters.base import (
    DRAFTERS,
    ContextDrafter,
    DraftContext,
    Needs,
    until_end,
)
from specdec_plugins.decoding.networks.trained import (
    NETWORKS,
    State,
    TrainedNetwork,
    TrainingSettings,
)
from specdec_plugins.errors import require


@dataclass(frozen=True)
class SuccessorConfig:
    vocab_size: int  # target symbols
    dim: int  # embedding width


@NETWORKS.register("successors")  # the kind in bundle.json
class Successors(TrainedNetwork):
    Config = SuccessorConfig
    arch, noun = "successors", "a table of successors"  # trained with --arch successors

    @classmethod
    def configure(cls, state: State, settings: TrainingSettings) -> SuccessorConfig:
        # or read settings.get("flag_of_training")
        require("tokens.weight" in state, "has no weights named tokens.weight.")
        return SuccessorConfig(*state["tokens.weight"].shape)

    def __init__(self, config: SuccessorConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:  # [B] -> [B, V]
        logits: Tensor = self.output(self.tokens(tokens))
        return logits


@DRAFTERS.register("successors")
class SuccessorDrafter(ContextDrafter):  # inherits admit, select and commit, which do nothing
    needs = Needs(Successors)

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Any, context: DraftContext) -> None:
        super().__init__(config, context)
        assert isinstance(context.network, Successors)
        self._network, self._eos = context.network, context.verifier.special.eos
        num_drafted, num_verified = len(self._network.tokens.weight), context.verifier.vocab_size
        require(
            num_drafted == num_verified,
            f"The table has {num_drafted} symbols and the verifier {num_verified}.",
        )

    @torch.inference_mode()
    def propose(self, asked: DraftRequest) -> Draft:
        tokens = [asked.prefix.last()]
        for _ in range(asked.width):
            tokens.append(self._network(tokens[-1]).argmax(-1))
        return until_end(Draft(torch.stack(tokens[1:], 1), asked.budget), self._eos, may_wait=False)
