"""Draft from a translation of nearly the same text; draft the rest as a block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.drafters.base import DRAFTERS, ContextDrafter, DraftContext, Needs
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.drafters.lookup import NOTHING, check_ngrams, match_lengths
from specdec_plugins.decoding.networks.block import BlockDrafter
from specdec_plugins.decoding.networks.cache import join_rows
from specdec_plugins.decoding.networks.cpu.ops import compiled, leading_true, native
from specdec_plugins.decoding.types import Draft, DraftRequest, Prefix, Round, SourceBatch
from specdec_plugins.errors import require

_LONGEST = 1024  # tokens of a hint that are read: no sentence is longer


@DRAFTERS.register("hint")
class HintDrafter(ContextDrafter):
    """Follows each row's hint (`Request.hint_ids`): a translation memory's entry, an older version.

    The drafter looks for the end of the prefix in the hint, and drafts what follows it there. It
    takes the longest match of `min_ngram` to `max_ngram` tokens; of equally long ones the nearest
    to the row's own length, since similar texts agree at similar positions. A row without tokens
    begins with the hint.

    A short match says little where the texts differ, and a block drafter knows the source. So if
    there is a block network, it drafts too, except for rows with a match of `max_ngram`, which
    follow the hint directly. Other rows follow the hint if block and hint begin with the same
    `agreement` tokens; if not, the block, continued by the hint after its end. This choice must not
    depend on drawn tokens, or their distribution would not be the one that they are judged by:
    under a rule that samples a short match is never followed.

    Without a network every match is followed, and rows without one take a plain step. Hints are
    verified like any draft: in exact mode they change no word.
    """

    needs = Needs(BlockDrafter, bigrams=True)

    @dataclass(frozen=True)
    class Config(BlockNatDrafter.Config):
        max_ngram: int = 6  # most tokens of the prefix's end that are compared
        min_ngram: int = 2  # tokens that must match
        agreement: int = 2  # first tokens that block and hint must share; 0 = any match is followed

        def __post_init__(self) -> None:
            super().__post_init__()
            check_ngrams(self.min_ngram, self.max_ngram)
            require(self.agreement >= 0, f"agreement must be 0 or more, not {self.agreement}.")

    def __init__(self, config: Config, context: DraftContext) -> None:
        super().__init__(config, context)
        self._eos = context.verifier.special.eos
        self._may_wait = context.verifier.device.type == "cpu"
        self._blocks = None if context.network is None else BlockNatDrafter(config, context)
        # Blocks may be of any size: past the block drafter's longest, hints go on alone.
        self.max_positions = None if self._blocks is None else self._blocks.max_positions
        unasked = config.min_ngram if config.agreement == 0 else config.max_ngram
        self._unasked = config.min_ngram if self._blocks is None else unasked
        self._agreement = None if context.sampling else config.agreement  # None: see the class
        # [B, H] int64, each ends in eos and is padded with NOTHING, as is a missing one
        self._hints = torch.zeros(0, 0, dtype=torch.int64, device=context.verifier.device)

    def admit(self, source: SourceBatch) -> None:
        hints = pad(source.hints[:, :_LONGEST], (0, 1), value=NOTHING)
        length = (hints != NOTHING).sum(1, keepdim=True)  # [B, 1]
        hints = hints.scatter(1, length, torch.where(length > 0, self._eos, NOTHING))
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
        nothing = Draft.empty(len(asked.budget), asked.budget.device)
        hinted, matched = self._follow(asked, nothing)
        left = asked.budget * (matched < self._unasked)
        may_skip = self._may_wait and self._agreement is not None  # a drawn draft needs its q
        if self._blocks is None or (may_skip and not bool(left.any())):
            return self._cut(hinted)
        block = self._blocks.propose(replace(asked, budget=left))
        both, _ = self._follow(asked, block)
        if self._agreement is None:
            return self._cut(both if block.probs is None else _certain_behind(both, block))
        agreed = leading_true((hinted.tokens == both.tokens) & hinted.mask & both.mask)
        is_hint = (hinted.lengths > 0) & (agreed >= self._agreement)
        tokens = torch.where(is_hint[:, None], hinted.tokens, both.tokens)
        return self._cut(Draft(tokens, torch.where(is_hint, hinted.lengths, both.lengths)))

    def _follow(self, asked: DraftRequest, draft: Draft) -> tuple[Draft, Tensor]:
        """Each row's draft continued by its hint, and the number of tokens that matched, [B]."""
        config, width = self._config, asked.width
        limits = (config.min_ngram, config.max_ngram)
        tokens, lengths, matched = follow(
            self._hints, asked.prefix, draft, asked.budget, width, limits, self._eos
        )
        return Draft(tokens, lengths), matched

    def _cut(self, draft: Draft) -> Draft:
        """Without unused columns, where finding them needs no synchronisation."""
        if not self._may_wait:
            return draft
        width = max(1, int(draft.lengths.max()))
        probs = None if draft.probs is None else draft.probs[:, :width]
        return Draft(draft.tokens[:, :width], draft.lengths, probs)


def follow(
    hints: Tensor,  # [B, H] int64, padded with NOTHING
    prefix: Prefix,
    draft: Draft,
    budget: Tensor,  # [B] int64
    width: int,
    ngrams: tuple[int, int],  # the fewest and the most tokens of a match
    eos: int,
) -> tuple[Tensor, Tensor, Tensor]:  # [B, width], [B], [B], all int64
    """Each draft, continued by the hint after prefix and draft, up to its eos and the budget.

    Returns the tokens, how many of them count, and how many matched; 0 where none did.
    """
    least, most = ngrams
    if compiled(hints):
        tokens = hints.new_empty(len(hints), width)
        counts, matched = hints.new_empty(len(hints)), hints.new_empty(len(hints))
        native.follow(
            *(hints, prefix.tokens, prefix.lengths, draft.tokens, draft.lengths, budget),
            *(least, most, eos, tokens, counts, matched),
        )
        return tokens, counts, matched
    hints = pad(hints, (0, 1), value=NOTHING)
    start, matched = _found(hints, prefix, draft, least, most)
    places = torch.arange(width, device=hints.device) - draft.lengths[:, None]  # after the draft
    own = pad(draft.tokens, (0, max(0, width - draft.tokens.shape[1])))[:, :width]
    said = pad(hints, (0, width), value=NOTHING).gather(1, start + places.clamp(min=0))
    in_draft = places < 0
    said_mask = (said != NOTHING) & (matched > 0)[:, None]
    tokens = torch.where(in_draft, own, said)
    is_end = (tokens == eos) & ~in_draft
    before_end = is_end.long().cumsum(1) - is_end.long() == 0
    counts = leading_true(in_draft | (said_mask & before_end))
    counts = torch.maximum(torch.minimum(counts, budget), draft.lengths.clamp(max=width))
    return tokens, counts, matched


def _found(
    hints: Tensor, prefix: Prefix, draft: Draft, least: int, most: int
) -> tuple[Tensor, Tensor]:  # [B, 1], [B] int64
    """Where each hint continues prefix and draft, and how many tokens matched."""
    written, known = _behind(prefix, draft), prefix.lengths - 1 + draft.lengths
    columns = torch.arange(hints.shape[1], device=hints.device)
    length = match_lengths(hints, written, most)  # [B, H + 1]
    begins = (known[:, None] == 0) & (columns == 0) & (hints != NOTHING)
    length = torch.where(begins, least, length * (length >= least))
    # The longest match, and of equal ones the nearest.
    rank = (length << 32) - (columns - known[:, None]).abs()
    start = torch.where(length > 0, rank, -(1 << 40)).argmax(1, keepdim=True)  # [B, 1]
    return start, length.gather(1, start)[:, 0]


def _behind(prefix: Prefix, draft: Draft) -> Prefix:
    """The prefix as if its draft had been kept."""
    wide = pad(prefix.tokens, (0, draft.tokens.shape[1]))
    columns = torch.arange(draft.tokens.shape[1], device=wide.device)
    # A draft's junk comes after its valid tokens.
    tokens = wide.scatter(1, prefix.lengths[:, None] + columns, draft.tokens)
    lengths = prefix.lengths + draft.lengths
    return replace(prefix, tokens=tokens, lengths=lengths)


def _certain_behind(both: Draft, block: Draft) -> Draft:
    """The distribution of a block, followed by that of a hint, which is one-hot."""
    assert block.probs is not None
    missing = both.tokens.shape[1] - block.probs.shape[1]
    probs = pad(block.probs, (0, 0, 0, max(0, missing)))[:, : both.tokens.shape[1]]
    certain = torch.zeros_like(probs).scatter(2, both.tokens[..., None].clamp(min=0), 1.0)
    columns = torch.arange(both.tokens.shape[1], device=both.tokens.device)
    is_block = (columns < block.lengths[:, None])[..., None]
    return replace(both, probs=torch.where(is_block, probs, certain))
