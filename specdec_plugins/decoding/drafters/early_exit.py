"""The verifier's own first layers draft; verification goes on from where they stopped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.drafters.base import DRAFTERS, DraftContext
from specdec_plugins.decoding.sampling import best_probability, draft_token
from specdec_plugins.decoding.types import (
    Draft,
    Prefix,
    Round,
    RowParams,
    RowRandom,
    SourceBatch,
    SupportsEarlyExit,
)
from specdec_plugins.errors import UserError, require


@DRAFTERS.register("early_exit")
class EarlyExitDrafter:
    """Self-speculation with one cache (LayerSkip, Elhoushi et al. 2024, section 4.3).

    Drafts token by token with the verifier's first `exit_layer` decoder layers and its output
    projection. It has no state of its own: keys, values and states stay in the verifier, which
    runs only the layers behind the exit over what was drafted. Worth its time with a verifier that
    was trained for it (`--arch early_exit_transformer --criterion early_exit_loss`).

    Under a rule that samples it draws from its own law and hands that on; a row stops where the
    exit's best token has less than `confidence` probability, as with the drafter `assistant`, and
    behind an end of sentence.
    """

    max_block_size: int | None = None

    @dataclass(frozen=True)
    class Config:
        exit_layer: int = 1  # decoder layers that draft, from 1 to one fewer than there are
        confidence: float = 0.0  # probability, 0..1, of the best token, or it stops; 0 = never

        def __post_init__(self) -> None:
            require(
                0 <= self.confidence <= 1,
                f"confidence must be within 0..1, not {self.confidence}.",
            )

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._verifier = _checked_verifier(context, config.exit_layer)
        self._sampling = context.sampling
        self._asks = context.verifier.device.type == "cpu"  # nobody waits there
        self._eos = context.verifier.special.eos

    def admit(self, source: SourceBatch) -> None:
        pass

    def commit(self, prefix: Prefix, last: Round) -> None:
        pass

    def select(self, rows: Tensor) -> None:
        pass

    def propose(
        self, prefix: Prefix, budget: Tensor, width: int, params: RowParams, random: RowRandom
    ) -> Draft:
        going = prefix.active & (budget > 0)
        lengths, token = torch.zeros_like(budget), prefix.last()
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        for i in range(width):
            logits = self._verifier.run_ahead(prefix, token, self._config.exit_layer)  # [B, V]
            confident = best_probability(logits) >= self._config.confidence
            going = going & (i < budget) & confident
            # Waiting for the device here is cheaper than passes that nobody needs.
            if self._config.confidence > 0 and not bool(going.any()):
                break
            place = prefix.lengths + i
            token, law = draft_token(logits, params, random, place, self._sampling)
            tokens.append(token)
            laws += [] if law is None else [law]
            lengths = lengths + going
            going = going & (token != self._eos)  # nothing behind it can be kept
            if self._asks and not bool(going.any()):
                break
        if not tokens:
            return Draft.empty(len(budget), budget.device)
        return Draft(torch.stack(tokens, 1), lengths, torch.cat(laws, 1) if laws else None)


def _checked_verifier(context: DraftContext, exit_layer: int) -> SupportsEarlyExit:
    """The verifier. Raises UserError where it cannot be left after that layer."""
    verifier = context.verifier
    if not isinstance(verifier, SupportsEarlyExit):
        raise UserError(
            "The drafter 'early_exit' drafts with the verifier's own first layers, and this "
            "verifier has none that can run alone; use another drafter."
        )
    last = verifier.num_layers - 1
    require(
        last >= 1,
        "The verifier has a single decoder layer, so it cannot be left early; use another drafter.",
    )
    require(
        1 <= exit_layer <= last,
        f"There is no exit after layer {exit_layer} of the verifier's {last + 1} decoder layers; "
        f"exit_layer must be from 1 to {last}.",
    )
    return verifier
