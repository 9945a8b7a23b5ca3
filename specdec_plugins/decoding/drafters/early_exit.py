"""The verifier's own first layers draft; verification resumes where they stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from specdec_plugins.decoding.contract import Draft, DraftRequest, Prefix
from specdec_plugins.decoding.drafters.base import (
    DRAFTERS,
    ContextDrafter,
    DraftContext,
    TokenByToken,
    check_confidence,
)
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.errors import require


@runtime_checkable
class SupportsEarlyExit(Protocol):
    """A verifier whose first layers may run ahead of `score`, which resumes where they stopped."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""

    def run_ahead(self, prefix: Prefix, tokens: Tensor, exit_layer: int) -> Tensor:
        """Read one token a row with the first `exit_layer` layers: [B, V] logits of the next one.

        tokens: [B] int64, token ids. The first call of a round reads `prefix.last()`, each later
        call the next drafted token, all with the same `exit_layer`. The next `score` must get a
        draft of which these calls have read all columns, or all but the last: their layers are not
        computed again. Stopped rows may be fed any token.
        """


@DRAFTERS.register("early_exit")
class EarlyExitDrafter(ContextDrafter):
    """Self-speculation with one cache (LayerSkip, Elhoushi et al. 2024, section 4.3).

    Drafts token by token with the verifier's first `exit_layer` decoder layers and its output
    projection. It has no state of its own: keys, values and states stay in the verifier, which
    runs only the layers after the exit over the draft. It pays off with a verifier that was trained
    for it (`--arch early_exit_transformer --criterion early_exit_loss`).

    A row stops where the exit's best token has less than `confidence` probability (`TokenByToken`).
    """

    @dataclass(frozen=True)
    class Config:
        exit_layer: int = 1  # decoder layers that draft, from 1 to one fewer than there are
        confidence: float = 0.0  # stops below this probability, 0..1, of the best token; 0 = never

        def __post_init__(self) -> None:
            check_confidence(self.confidence)

    def __init__(self, config: Config, context: DraftContext) -> None:
        super().__init__(config, context)
        self._exit_layer = config.exit_layer
        self._verifier = _checked_verifier(context, config.exit_layer)
        self._drafting = TokenByToken(context.verifier, context.sampling, config.confidence)

    def native(self, verifier: Any) -> Any:
        """See `ContextDrafter`."""
        confidence, eos = self._config.confidence, self._drafting.target.special.eos
        if self._drafting.sampling:
            return None
        least = math.log(confidence) if confidence > 0 else -math.inf
        return ops.native.EarlyExitDrafter(verifier, self._exit_layer, least, eos)

    def propose(self, asked: DraftRequest) -> Draft:
        reader = _FirstLayers(self._verifier, asked.prefix, self._exit_layer, asked.prefix.last())
        return self._drafting.draft(reader, asked)


@dataclass
class _FirstLayers:
    verifier: SupportsEarlyExit
    prefix: Prefix
    exit_layer: int
    token: Tensor  # [B] int64, to be read next

    def logits(self) -> Tensor:
        return self.verifier.run_ahead(self.prefix, self.token, self.exit_layer)

    def take(self, token: Tensor, going: Tensor) -> None:
        self.token = token


def _checked_verifier(context: DraftContext, exit_layer: int) -> SupportsEarlyExit:
    """The verifier. Raises UserError where it has no exit after that layer."""
    verifier = context.verifier
    assert isinstance(verifier, SupportsEarlyExit)
    last = verifier.num_layers - 1
    require(
        last >= 1,
        "The verifier has a single decoder layer, so it cannot exit early; use another drafter.",
    )
    require(
        1 <= exit_layer <= last,
        f"There is no exit after layer {exit_layer} of the verifier's {last + 1} decoder layers; "
        f"exit_layer must be from 1 to {last}.",
    )
    return verifier
