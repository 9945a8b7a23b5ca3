"""What drafters are built from, the code they share, and their registry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.decoding.extend import narrowed, until_eos
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.decoding.networks.transformer import Encoder
from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.sampling import best_probability, draft_token
from specdec_plugins.decoding.types import (
    Draft,
    Drafter,
    DraftRequest,
    Stateful,
    Target,
    Tree,
    Verifier,
)

DRAFTERS: Registry[Drafter] = Registry("drafter")
# Position, tokens [B, M] int64 drafted before it -> log-probabilities [B, M, C] of candidates.
Chooser = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class DraftContext:
    """Everything a drafter may be built from; each takes what it needs, and raises without it."""

    verifier: Target  # a Verifier, unless the drafter decodes alone
    network: nn.Module | None = None  # the trained network that was loaded for it, in eval mode
    source_to_target: Tensor | None = None  # [V source] int64, same symbol or unk; None = same ids
    assistant: Verifier | None = None  # a smaller model with the same target vocabulary
    source_to_assistant: Tensor | None = None  # [V source] int64, same symbol or unk; None = same
    bigrams: Bigrams | None = None  # bigrams of the target language
    sampling: bool = False  # the rule draws from p, so a drafter should draw from its own q too
    tree: int = 0  # nodes of a tree to draft each round; 0 = a chain

    def beside(self, verifier: Target) -> DraftContext:
        """The context of another session: the same weights, this verifier."""
        assistant = None if self.assistant is None else self.assistant.fresh()
        return replace(self, verifier=verifier, assistant=assistant)


@runtime_checkable
class SupportsEncoderOutput(Protocol):
    """A verifier whose encoder output a drafter may read instead of encoding again."""

    @property
    def encoder_dim(self) -> int:
        """Width D of the encoder's states."""

    def encoder_output(self) -> tuple[Tensor, Tensor]:
        """States [B, S, D] and padding [B, S] bool (True = padding) of the present rows."""

    def encodes_like(self, encoder: Encoder) -> bool:
        """True if that encoder's output would be the same."""


class ContextDrafter(Stateful):
    """Base of every registered drafter, which is built from a config and a context."""

    max_block_size: int | None = None
    max_positions: int | None = None

    def __init__(self, config: Any, context: DraftContext) -> None:
        self._config = config
        self._context = context

    def fresh(self, target: Target) -> Self:
        return type(self)(self._config, self._context.beside(target))


@dataclass(frozen=True)
class Needs:
    """What a class of drafter accepts; the rest is refused before anything is loaded."""

    network: type[TrainedNetwork] | None = None  # trained weights of this kind, from a checkpoint
    verifier: bool = True  # False = it can also decode alone
    own_source: bool = False  # the network may have a source dictionary of its own
    bigrams: bool = False  # it can use bigrams
    tree: bool = False  # it can draft trees


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
    draft = replace(draft, lengths=lengths)
    return narrowed(draft, max(1, int(lengths.max()))) if may_wait else draft


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
        lengths = torch.zeros_like(budget)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []  # [B, 1, V] each, where the tokens are drawn
        for i in range(asked.width):
            logits = reader.logits()
            going = going & (i < budget)
            if self.confidence > 0:
                going = going & (best_probability(logits) >= self.confidence)
                # Waiting for the device is cheaper than unneeded passes.
                if not bool(going.any()):
                    break
            place = prefix.lengths + i
            token, q = draft_token(logits, asked.params, asked.random, place, self.sampling)
            tokens.append(token)
            probs += [] if q is None else [q]
            lengths = lengths + going
            reader.take(token, going)
            going = going & (token != self.target.special.eos)  # nothing after it can be kept
            if self.target.device.type == "cpu" and not bool(going.any()):
                break
        if not tokens:
            return Draft.empty(len(budget), budget.device)
        return Draft(torch.stack(tokens, 1), lengths, torch.cat(probs, 1) if probs else None)


def grow(
    choose: Chooser,
    candidates: Tensor,  # [B, K, C] int64, of each place
    last: Tensor,  # [B] int64, the last committed tokens
    budget: Tensor,  # [B] int64, the largest depth of each row
    size: int,  # N
    eos: int,
) -> tuple[Tensor, Tensor, Tree]:  # tokens [B, N] int64, how many count [B] int64
    """The likeliest nodes of depth K at most, by the product of probabilities along the path.

    EAGLE-2 ranks trees this way (Li et al. 2024, arXiv 2406.16858). Works depth by depth, all nodes
    at once, without synchronisation: at depth d no more than size - d + 1 nodes can be among the
    likeliest, since a node is no likelier than its parent. At the end all are sorted. Nothing
    follows an end of sentence, as it could never be kept.
    """
    tokens, log_probs = last[:, None], torch.zeros(len(last), 1, device=last.device)
    found, first = [(tokens, log_probs, torch.zeros_like(tokens))], 0
    for place in range(min(candidates.shape[1], size)):
        reached = log_probs[..., None] + choose(place, tokens)  # [B, M, C]
        num_kept = min(size - place, reached.shape[1] * reached.shape[2])
        log_probs, index = reached.flatten(1).topk(num_kept)  # [B, M'] both
        parents = index // reached.shape[2] + first
        first += tokens.shape[1]
        tokens = candidates[:, place].gather(1, index % reached.shape[2])
        found.append((tokens, log_probs, parents))
        log_probs = log_probs.masked_fill(tokens == eos, -math.inf)
    tokens, log_probs, parents = (torch.cat(part, 1) for part in zip(*found, strict=True))
    depths = _depths(tuple(part.shape[1] for part, _, _ in found), last.device)
    # NaN, where a network overflowed, is not a node either.
    is_node = (log_probs > -math.inf) & (depths <= budget[:, None])
    ordered, order = log_probs.where(is_node, -math.inf).sort(dim=1, descending=True, stable=True)
    order, is_node = order[:, : size + 1], ordered[:, : size + 1] > -math.inf
    # The new index of each node; one that is left out has no child that is kept.
    places = torch.arange(order.shape[1], device=last.device)
    places = torch.zeros_like(tokens).scatter_(1, order, places.expand_as(order))
    parents = places.gather(1, parents.gather(1, order)) * is_node
    tree = Tree(parents, depths[order] * is_node, height=len(found) - 1)
    return tokens.gather(1, order[:, 1:]), is_node[:, 1:].sum(1), tree


@lru_cache(maxsize=64)
def _depths(widths: tuple[int, ...], device: torch.device) -> Tensor:
    """[M] int64: depths of so many nodes at each depth; cached, so that no copy is waited for."""
    depths = [depth for depth, width in enumerate(widths) for _ in range(width)]
    return torch.tensor(depths, device=device)
