"""What drafters are built from, the code they share, and their registry."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.contract import (
    Draft,
    Drafter,
    DraftRequest,
    SourceBatch,
    Stateful,
    Target,
    Verifier,
)
from specdec_plugins.decoding.extend import until_eos
from specdec_plugins.decoding.networks.cpu.ops import log_total
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.decoding.networks.transformer import Encoder
from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.sampling import draft_token
from specdec_plugins.errors import require

DRAFTERS: Registry[Drafter] = Registry(
    "drafter", {"hint": "nothing drafts from hints any more; choose block"}
)


@dataclass(frozen=True)
class DraftContext:
    """Everything a drafter may be built from; each takes what it needs, and raises without it."""

    verifier: Target  # a Verifier, unless the drafter decodes alone
    network: nn.Module | None = None  # the trained network that was loaded for it, in eval mode
    source_to_target: Tensor | None = None  # [V source] int64, same symbol or unk; None = same ids
    assistant: Verifier | None = None  # a smaller model with the same target vocabulary
    source_to_assistant: Tensor | None = None  # [V source] int64, same symbol or unk; None = same
    sampling: bool = False  # the rule draws from p, so a drafter should draw from its own q too
    # Of verifying one more position, as a share of the time that a token takes
    position_cost: float = 0.0

    def beside(self, verifier: Target) -> DraftContext:
        """The context of another session: the same weights, this verifier."""
        assistant = None if self.assistant is None else self.assistant.fresh()
        return replace(self, verifier=verifier, assistant=assistant)


@runtime_checkable
class SupportsEncoderOutput(Protocol):
    """A verifier whose encoder output others may read instead of encoding, or which reads it."""

    @property
    def encoder_dim(self) -> int:
        """Width D of the encoder's states."""

    def encoder_output(self) -> tuple[Tensor, Tensor]:
        """States [B, S, D] and padding [B, S] bool (True = padding) of the present rows."""

    def encodes_like(self, encoder: Encoder) -> bool:
        """True if that encoder's output would be the same."""

    def admit_encoded(self, source: SourceBatch, states: Tensor, padding_mask: Tensor) -> None:
        """`admit` without encoding: states [B, S, D] and padding [B, S] bool of the new rows."""


class ContextDrafter(Stateful):
    """Base of every registered drafter, which is built from a config and a context."""

    max_block_size: int | None = None
    max_positions: int | None = None

    def __init__(self, config: Any, context: DraftContext) -> None:
        self._config = config
        self._context = context

    def fresh(self, target: Target) -> Self:
        return type(self)(self._config, self._context.beside(target))

    def native(self, verifier: Any) -> Any:
        """The same in the kernels' lane, whose verifier this is; None = only torch drafts so."""
        return None


@dataclass(frozen=True)
class Needs:
    """What a class of drafter accepts; the rest is refused before anything is loaded."""

    network: type[TrainedNetwork] | None = None  # trained weights of this kind, from a checkpoint
    verifier: bool = True  # False = it can also decode alone
    own_source: bool = False  # the network may have a source dictionary of its own


def needs_of(name: str) -> Needs:
    """`needs` of the drafter class of that name; an empty `Needs` where it has none."""
    needs: Needs = getattr(DRAFTERS.get(name), "needs", Needs())
    return needs


def until_end(draft: Draft, eos: int, may_wait: bool) -> Draft:
    """The draft of a drafter that proposes all positions at once, cut after each row's first eos.

    Nothing after it can ever be kept: either the eos is accepted and the sentence ends, or it is
    rejected and so is what follows. So the text stays the same, and the verifier scores less.
    may_wait: the host may wait for the device to learn how many columns are left; else all stay.
    """
    lengths, _ = until_eos(draft.tokens, draft.lengths, eos)
    if not may_wait:
        return replace(draft, lengths=lengths)
    width = max(1, int(lengths.max()))
    both = (draft.probs, draft.confidences)
    probs, confidences = (None if part is None else part[:, :width] for part in both)
    return Draft(draft.tokens[:, :width], lengths, probs, confidences)


def check_confidence(confidence: float) -> None:
    """Raises UserError unless an option of that name is a probability."""
    require(0 <= confidence <= 1, f"confidence must be within 0..1, not {confidence}.")


class TokenReader(Protocol):
    """A model that drafts token by token, during one draft."""

    def logits(self) -> Tensor:
        """[B, V] for the next token of each row."""

    def take(self, token: Tensor, going: Tensor) -> None:
        """Append token [B] int64 to the rows that are `going` [B] bool; elsewhere it is junk."""


@dataclass(frozen=True)
class TokenByToken:
    """Drafts a block with a model that predicts one token at a time.

    With `sampling` it draws from its own distribution q, with temperature, top-k and top-p applied
    as to p, and returns q; otherwise it drafts its argmax. A row stops after an end of sentence,
    and where the best token has less than `confidence` probability. The best token decides and not
    the drawn one: leaving out drawn tokens would bias the distribution of what is kept.
    """

    target: Target
    sampling: bool
    confidence: float  # 0 = never stop for it, at no cost

    def draft(self, reader: TokenReader, asked: DraftRequest) -> Draft:
        prefix, budget = asked.prefix, asked.budget
        going = prefix.active & (budget > 0)
        may_wait = self.target.device.type == "cpu"  # a GPU makes unneeded passes instead
        lengths = torch.zeros_like(budget)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []  # [B, 1, V] each, where the tokens are drawn
        for i in range(asked.width):
            logits = reader.logits()
            going = going & (i < budget)
            if self.confidence > 0:
                log_probs = logits.amax(-1) - log_total(logits)  # [B], of the best, without warping
                going = going & (log_probs >= math.log(self.confidence))
                if may_wait and not bool(going.any()):
                    break
            place = prefix.lengths + i
            token, q = draft_token(logits, asked.params, asked.random, place, self.sampling)
            tokens.append(token)
            probs += [] if q is None else [q]
            lengths = lengths + going
            reader.take(token, going)
            going = going & (token != self.target.special.eos)  # nothing after it can be kept
            if may_wait and not bool(going.any()):
                break
        if not tokens:
            return Draft.empty(len(budget), budget.device)
        return Draft(torch.stack(tokens, 1), lengths, torch.cat(probs, 1) if probs else None)
