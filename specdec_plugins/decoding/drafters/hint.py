"""Propose what a translation of nearly the same text says; let the rest be drafted as a block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.drafters.base import (
    DRAFTERS,
    ContextDrafter,
    DraftContext,
    Needs,
    until_end,
)
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.drafters.lookup import NOTHING, check_ngrams, match_lengths
from specdec_plugins.decoding.networks.block import BlockDrafter
from specdec_plugins.decoding.networks.cache import join_rows
from specdec_plugins.decoding.types import Draft, DraftRequest, Prefix, Round, SourceBatch

_LONGEST = 1024  # tokens of a hint that are read: no sentence goes on behind them


@DRAFTERS.register("hint")
class HintDrafter(ContextDrafter):
    """Follows each row's hint (`Request.hint_ids`): a translation memory's entry, an older version.

    A row that has written nothing drafts the hint from its beginning. Later it finds the end of its
    prefix in the hint and drafts what follows there; of equally long matches it takes the one
    nearest to its own length, since a text that is nearly the same is so in nearly the same place.

    Rows without a hint, or whose hint has nothing to say, are drafted by a block drafter where its
    network is there, and else wait for the verifier's own token. As with every drafter, what the
    hint says is checked: in exact mode it changes no word.
    """

    needs = Needs(BlockDrafter, bigrams=True)

    @dataclass(frozen=True)
    class Config(BlockNatDrafter.Config):
        max_ngram: int = 4  # tokens of the prefix's end that are compared at most
        min_ngram: int = 2  # tokens that must match

        def __post_init__(self) -> None:
            super().__post_init__()
            check_ngrams(self.min_ngram, self.max_ngram)

    def __init__(self, config: Config, context: DraftContext) -> None:
        super().__init__(config, context)
        self._special = context.verifier.special
        self._may_wait = context.verifier.device.type == "cpu"
        self._blocks = None if context.network is None else BlockNatDrafter(config, context)
        # Blocks may be of any size: behind the block drafter's own longest, hints go on alone.
        self.max_positions = None if self._blocks is None else self._blocks.max_positions
        # [B, H] int64, each ends in eos; NOTHING behind it, and where there is none
        self._hints = torch.zeros(0, 0, dtype=torch.int64, device=context.verifier.device)

    def admit(self, source: SourceBatch) -> None:
        hints = pad(source.hints[:, :_LONGEST], (0, 1), value=NOTHING)
        length = (hints != NOTHING).sum(1, keepdim=True)  # [B, 1]
        hints = hints.scatter(1, length, torch.where(length > 0, self._special.eos, NOTHING))
        self._hints = join_rows((self._hints, hints), fill=NOTHING)
        if self._blocks is not None:
            self._blocks.admit(source)

    def commit(self, prefix: Prefix, last: Round) -> None:
        if self._blocks is not None:
            self._blocks.commit(prefix, last)

    def select(self, rows: Tensor) -> None:
        self._hints = self._hints[rows] if rows.numel() else self._hints[:0, :0]
        if self._blocks is not None:
            self._blocks.select(rows)

    def propose(self, asked: DraftRequest) -> Draft:
        hinted = self._follow(asked)
        left = asked.budget * (hinted.lengths == 0)
        if self._blocks is None or (self._may_wait and not bool(left.any())):
            return hinted
        return _either(hinted, self._blocks.propose(replace(asked, budget=left)))

    def _follow(self, asked: DraftRequest) -> Draft:
        """What the hints say behind each prefix; nothing where they do not say."""
        prefix, budget, width = asked.prefix, asked.budget, asked.width
        if self._hints.shape[1] == 0:
            return Draft.empty(len(budget), budget.device)
        config = self._config
        matched = match_lengths(self._hints, prefix, config.max_ngram)  # [B, H]
        columns = torch.arange(self._hints.shape[1], device=budget.device)
        away = (columns - (prefix.lengths[:, None] - 1)).abs()
        begins = (prefix.lengths[:, None] == 1) & (columns == 0) & (self._hints != NOTHING)
        is_found = (matched >= config.min_ngram) | begins
        # The longest match, and of equal ones the nearest.
        rank = torch.where(is_found, (matched << 32) - away, -(1 << 40))
        start = rank.argmax(1, keepdim=True)  # [B, 1]
        at = start + torch.arange(width, device=budget.device)
        tokens = pad(self._hints, (0, width), value=NOTHING).gather(1, at)
        lengths = (tokens != NOTHING).sum(1) * is_found.gather(1, start)[:, 0]
        draft = Draft(tokens, torch.minimum(lengths, budget))
        return until_end(draft, self._special.eos, self._may_wait)


def _either(first: Draft, second: Draft) -> Draft:
    """Each row's first draft where it has one, and else its second."""
    width = max(first.tokens.shape[1], second.tokens.shape[1])
    has_first = first.lengths > 0
    one, other = (pad(d.tokens, (0, width - d.tokens.shape[1])) for d in (first, second))
    probs = second.probs
    if probs is not None:
        # A hint's tokens are certain: all of their distribution lies on them.
        probs = pad(probs, (0, 0, 0, width - probs.shape[1]))
        certain = torch.zeros_like(probs).scatter(2, one[..., None].clamp(min=0), 1.0)
        probs = torch.where(has_first[:, None, None], certain, probs)
    return Draft(
        torch.where(has_first[:, None], one, other),
        torch.where(has_first, first.lengths, second.lengths),
        probs,
    )
