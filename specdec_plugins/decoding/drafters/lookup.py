"""Propose what followed the same tokens earlier, in the source or in the prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.contract import Draft, DraftRequest, Prefix, SourceBatch
from specdec_plugins.decoding.drafters.base import DRAFTERS, ContextDrafter, DraftContext
from specdec_plugins.decoding.networks.cache import join_rows
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.ops import at, leading_true
from specdec_plugins.errors import require

NOTHING = -1  # equals no token: padding, symbols unknown to the target, the gap between texts


@DRAFTERS.register("lookup")
class LookupDrafter(ContextDrafter):
    """Finds the longest suffix of the prefix in source and prefix, and copies what follows it.

    Good for what translation copies: names, numbers, code. No network and no training. Of equally
    long matches the first in the source wins, then the first in the prefix. Without a match the
    draft is empty and the round a plain autoregressive step. Prompt lookup of the transformers
    library searches only the target side of an encoder-decoder model; here the source comes first.
    """

    @dataclass(frozen=True)
    class Config:
        max_ngram: int = 3  # most tokens of the suffix that are compared
        min_ngram: int = 1  # tokens that must match for a proposal

        def __post_init__(self) -> None:
            least, most = self.min_ngram, self.max_ngram
            told = f"min_ngram must be from 1 to max_ngram ({most}), not {least}."
            require(1 <= least <= most, told)

    def __init__(self, config: Config, context: DraftContext) -> None:
        super().__init__(config, context)
        self._unk = context.verifier.special.unk
        device, table = context.verifier.device, context.source_to_target
        self._to_target = None if table is None else table.to(device)
        # [B, S] int64, sources in target ids
        self._source = torch.zeros(0, 0, dtype=torch.int64, device=device)

    def native(self, verifier: Any) -> Any:
        """See `ContextDrafter`."""
        table = self._to_target
        known = [] if table is None else table.masked_fill(table == self._unk, NOTHING).tolist()
        return ops.native.LookupDrafter(known, self._config.min_ngram, self._config.max_ngram)

    def admit(self, source: SourceBatch) -> None:
        tokens = source.tokens
        if self._to_target is not None:
            tokens = self._to_target[tokens]
            tokens = tokens.masked_fill(tokens == self._unk, NOTHING)
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = tokens.masked_fill(columns >= source.lengths[:, None], NOTHING)
        self._source = join_rows((self._source, tokens), fill=NOTHING)

    def select(self, rows: Tensor) -> None:
        self._source = self._source[rows]

    def propose(self, asked: DraftRequest) -> Draft:
        prefix, budget, width = asked.prefix, asked.budget, asked.width
        columns = torch.arange(prefix.width, device=budget.device)
        written = (columns > 0) & (columns < prefix.lengths[:, None])  # without the start token
        target = prefix.tokens[:, : prefix.width].masked_fill(~written, NOTHING)
        # The start token's column keeps a match from running from one text into the other.
        text = torch.cat([self._source, pad(target, (0, 1), value=NOTHING)], 1)  # [B, N]
        found = match_lengths(text, prefix, self._config.max_ngram)
        at_most, start = found.max(1)  # [B] each
        wanted = torch.arange(width, device=budget.device)
        index = (start[:, None] + wanted).clamp(max=text.shape[1] - 1)
        tokens = text.gather(1, index)  # [B, K]
        lengths = torch.minimum(leading_true(tokens != NOTHING), budget)
        return Draft(tokens, lengths * (at_most >= self._config.min_ngram))


def match_lengths(text: Tensor, prefix: Prefix, max_ngram: int) -> Tensor:
    """[b, j]: how many tokens before text[b, j] equal the end of the prefix; [B, N] int64.

    At most `max_ngram` are compared. Example: text 7 8 9 8, prefix ending in 7 8: 2 at the 9;
    nothing follows the last 8. Positions without a continuation count 0.
    """
    matched = torch.ones_like(text, dtype=torch.bool)
    total = torch.zeros_like(text)
    for back in range(1, max_ngram + 1):
        own = at(prefix.tokens, (prefix.lengths - back).clamp(min=0))  # [B]
        own = torch.where(prefix.lengths > back, own, NOTHING - 1)  # never the start token
        before = pad(text, (back, 0), value=NOTHING)[:, : text.shape[1]]
        matched = matched & (before == own[:, None])
        total = total + matched
    return total * (text != NOTHING)
