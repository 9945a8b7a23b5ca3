"""The block drafter of SpecDec: k masks after the prefix, all predicted in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Draft,
    DraftRequest,
    Prefix,
    Round,
    SourceBatch,
    Stream,
)
from specdec_plugins.decoding.drafters.base import (
    DRAFTERS,
    ContextDrafter,
    DraftContext,
    Needs,
    SupportsEncoderOutput,
    check_confidence,
    until_end,
)
from specdec_plugins.decoding.networks.block import BlockDrafter, opened
from specdec_plugins.decoding.networks.cache import KVCache, Pool, SourceMemory
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.products import NativeHead
from specdec_plugins.decoding.networks.heads import Listed, Shortlist
from specdec_plugins.decoding.sampling import sample, warp
from specdec_plugins.errors import require


@DRAFTERS.register("block")
class BlockNatDrafter(ContextDrafter):
    """Non-autoregressive drafting (Xia et al. 2023, section 3.1).

    Every row gets as many masks as its request's block size, even if fewer are used. In a
    bidirectional network the number of masks changes every prediction, so a draft then depends on
    its row alone, and on no neighbour, budget or schedule. For the same reason the published
    network cannot cache its prefix, and a round costs more as rows grow.

    A network that was trained for it (`cached_prefix`) keeps the keys and values of the prefix
    from round to round: a pass covers the tokens committed since the last one, and the masks. One
    whose encoder is the verifier's, frozen in training, reads the verifier's encoder output instead
    of encoding.
    """

    needs = Needs(BlockDrafter, verifier=False)

    @dataclass(frozen=True)
    class Config:
        share_encoder: bool | None = None  # read the verifier's encoder output; None = if equal
        cache: bool = True  # keep the prefix's keys and values, if the network was trained for it
        # Candidates of a head for a position. None = 64, or, if there is a shortlist and nothing is
        # drawn, the whole of it, on a GPU the best 256.
        candidates: int | None = None  # None = as above
        shortlist: bool = True  # draft only types that the source makes likely, if the network can
        # Drafts end where the probability, by the head, that all of them is accepted falls below
        # this, 0..1; 0 = never. None = in the kernels' lane the cost of a position, where the text
        # is greedy whatever is drafted.
        confidence: float | None = None  # None = as above

        def __post_init__(self) -> None:
            check_confidence(self.confidence or 0.0)
            require(
                self.candidates is None or self.candidates >= 1,
                f"candidates must be at least 1, not {self.candidates}: drafts come from them.",
            )

    def __init__(self, config: Config, context: DraftContext) -> None:
        self.network = _checked_network(context)
        self.max_block_size = self.network.config.longest_block
        self.max_positions = self.network.config.decoder.max_positions
        # The verifier, if its encoder's output is read instead of encoding here
        self.encoded_by = _sharing(context, self.network, config.share_encoder)
        self._samples = context.sampling
        has_head = self.network.decoder.head is not None
        require(
            not config.confidence or has_head,
            "confidence applies to a drafter with a sequential head (specdec drafter); omit it.",
        )
        self._position_cost = has_head * context.position_cost
        self._eos = context.verifier.special.eos
        super().__init__(config, context)
        self._memory: SourceMemory | None = None
        # True if the prefix's keys and values are kept from round to round
        self.keeps_prefix = config.cache and self.network.config.cached_prefix
        # Committed tokens only, without the start token: drafts are dropped after each pass.
        self._cache = self._new_cache(0)
        self._width = 0  # host-side bound of the positions that a row has in the cache
        self._behind = 0  # host-side bound of the committed tokens that a row's cache lacks
        self._shortlist = self.network.decoder.shortlist if config.shortlist else None
        self._allowed: Tensor | None = None  # [B, V] bool, the shortlist of each row
        if self._shortlist is not None:
            _ = self._shortlist.most  # before a round, as it waits for a device
        self._listed: list[Listed] = []  # the same where the kernels choose among it
        is_listed = self._shortlist is not None and not self._samples
        # Reading a value on the CPU needs no synchronisation, and every column costs.
        self._may_wait = self.network.decoder.tokens.weight.is_cpu
        # A GPU has no lists: the best of the whole table at each position would take longer.
        listed = None if self._may_wait else 256
        self._num_candidates = config.candidates or (listed if is_listed else 64)

    def native(self, verifier: Any) -> Any:
        """See `ContextDrafter`."""
        network, lists = self.network, self._shortlist
        draws_or_forgets = self._samples or self.keeps_prefix != network.config.cached_prefix
        if draws_or_forgets or network.at_once is None:
            return None
        asked = self._config.confidence
        return ops.native.BlockNatDrafter(
            weights=network.at_once,
            lists=None if lists is None else network.decoder.listed(lists),
            shares_encoder=self.encoded_by is not None,
            candidates=self._num_candidates or 0,
            confidence=self._position_cost if asked is None else asked,
            cuts_all=asked is not None,
            eos=self._eos,
        )

    @torch.inference_mode()
    def admit(self, source: SourceBatch) -> None:
        states, padding_mask = self._encoded(source)
        memory = self.network.memory(source.tokens, source.lengths, states, padding_mask)
        self._memory = memory if self._memory is None else self._memory.append(memory)
        self._cache.append(self._new_cache(len(source)))
        self._behind = max(self._behind, source.forced.shape[1] - 1)
        if self._shortlist is not None:
            self._admit_lists(source, self._shortlist)

    def _admit_lists(self, source: SourceBatch, lists: Shortlist) -> None:
        head, table = self.network.decoder.head, self.network.decoder.tokens.weight
        allowed = lists.allowed(source.tokens, source.lengths, len(table))
        if isinstance(head, NativeHead) and not self._samples:
            self._listed += [head.listed(own.nonzero()[:, 0].int(), table) for own in allowed]
            return
        held = self._allowed
        self._allowed = allowed if held is None else torch.cat([held, allowed])

    def _encoded(self, source: SourceBatch) -> tuple[Tensor, Tensor]:
        """States [B, S, D] and padding [B, S] bool of the rows that join."""
        if self.encoded_by is None:
            states, padding_mask = self.network.encoder(source.tokens)
            return states, padding_mask
        # The verifier has already admitted them, as its last rows.
        states, padding_mask = self.encoded_by.encoder_output()
        num_rows, length = source.tokens.shape
        return states[-num_rows:, :length], padding_mask[-num_rows:, :length]

    @torch.inference_mode()
    def propose(self, asked: DraftRequest) -> Draft:
        prefix, config = asked.prefix, self.network.config
        # A row that drafts nothing keeps one mask: attention over nothing would be undefined.
        num_masks = asked.params.block_size.clamp(1, config.longest_block)
        # Host-side bound of num_masks
        most = min(config.longest_block, max(1, *(p.block_size for p in asked.params.requested)))
        if prefix.width - 1 + most > config.decoder.max_positions:
            # The network has no positions beyond this; near the limit a block is shorter.
            left = config.decoder.max_positions - (prefix.lengths - 1)
            num_masks = torch.minimum(num_masks, left).clamp(min=1)
        num_used = min(asked.width, most)
        states = self._predict(prefix, num_masks, most, num_used)
        if self.network.decoder.head is not None:
            return self._cut(self._walk(states, asked))
        drafted = ops.best(self.network.decoder.logits(states))
        return self._cut(Draft(drafted, asked.budget))

    def _cut(self, draft: Draft) -> Draft:
        """Cut where the best tokens so far are too unlikely, and after the first eos.

        Not where an unlikely token was drawn: such tokens would then be missing from the output.
        """
        lengths = draft.lengths.clamp(max=draft.tokens.shape[1])
        if least := self._config.confidence:
            assert draft.confidences is not None
            is_sure = draft.confidences.cumprod(1) >= least
            lengths = torch.minimum(lengths, ops.leading_true(is_sure))
        return until_end(replace(draft, lengths=lengths), self._eos, self._may_wait)

    def _predict(self, prefix: Prefix, num_masks: Tensor, most: int, num_used: int) -> Tensor:
        """States [B, num_used, D] of the first of `num_masks` [B] masks after each prefix.

        The pass covers the tokens that the cache lacks (all, without a cache) and the masks.
        """
        assert self._memory is not None, "propose before admit"
        decoder, config = self.network.decoder, self.network.config
        first, cached = prefix.lengths - 1, self._cache.lengths  # without the start token
        width = self._most_unread(prefix) + most
        tokens, last_seen, used = opened(
            *(prefix.tokens, prefix.lengths, cached, num_masks),
            *(width, num_used, config.mask, config.pad),
        )
        if not self.keeps_prefix:
            whole: Tensor = decoder(tokens, self._memory, used, first)
            return whole
        window = self._cache.window(width, self._width, last_seen=last_seen)
        states = decoder.extend(tokens, window, self._memory, used)
        # All of this prefix stays in the cache, and nothing that was drafted after it.
        self._cache.crop(first)
        self._width, self._behind = prefix.width - 1, 0
        return states

    def _most_unread(self, prefix: Prefix) -> int:
        """Upper bound of the committed tokens that any row's cache lacks."""
        if not self.keeps_prefix:
            return prefix.width - 1
        if self._may_wait:
            return int((prefix.lengths - 1 - self._cache.lengths).max())
        return self._behind

    def _walk(self, states: Tensor, asked: DraftRequest) -> Draft:
        """The head's choice. Under a rule that samples it is drawn from the candidates alone, and
        comes with its distribution.
        """
        decoder, listed = self.network.decoder, self._listed
        head, embeddings = decoder.head, decoder.tokens.weight
        assert head is not None
        given = asked.prefix.last(), embeddings, self._num_candidates, self._memory
        if isinstance(head, NativeHead) and listed:
            drafted, confidences = head.draft(states, listed, *given)
            return Draft(drafted, asked.budget, confidences=confidences)
        logits = decoder.logits(states)
        if self._allowed is not None:
            logits = logits.masked_fill(~self._allowed[:, None], -math.inf)
        probs: list[Tensor] = []  # [B, 1, V] each

        def draw(place: int, own: Tensor, scores: Tensor) -> Tensor:
            allowed = torch.full_like(logits[:, place], -math.inf).scatter(1, own, scores)
            probs.append(warp(allowed[:, None], asked.params).float())
            positions = asked.prefix.lengths + place
            uniform = asked.random.uniform(positions, 1, Stream.PROPOSE)[:, 0]
            return sample(probs[-1][:, 0].gather(1, own), uniform)

        choose = draw if self._samples else None
        sure = bool(self._config.confidence)
        drafted, confidences = head.draft(states, logits, *given, choose, sure)
        law = torch.cat(probs, 1) if probs else None
        return Draft(drafted, asked.budget, law, confidences=confidences)

    def commit(self, prefix: Prefix, last: Round) -> None:
        """The next pass reads the kept tokens; rejected ones have left no state here."""
        self._behind += last.draft.tokens.shape[1] + 1

    @torch.inference_mode()
    def select(self, rows: Tensor) -> None:
        if rows.numel() == 0:
            self._memory, self._cache = None, self._new_cache(0)
            self._width = self._behind = 0
            self._listed, self._allowed = [], None
            return
        assert self._memory is not None, "select before admit"
        self._memory = self._memory.select(rows)
        if self._allowed is not None:
            self._allowed = self._allowed[rows]
        if self._listed:
            self._listed = [self._listed[row] for row in rows.tolist()]
        self._cache.select(rows)

    @torch.inference_mode()
    def narrow(self, longest: int, is_padded: bool) -> None:
        if self._memory is not None:
            self._memory = self._memory.narrowed(longest, is_padded)

    @torch.inference_mode()
    def fix(self, pool: Pool, num_rows: int, num_sources: int, num_targets: int) -> None:
        """Move the state into the pool, with so many rows and positions; new rows hold nothing.

        From here on no shape depends on what a tensor holds, on a CPU either.
        """
        assert self._memory is not None, "fix before admit"
        self._may_wait = False
        num_targets = num_targets if self.keeps_prefix else 0
        self._cache = pool.cache("drafter", self._cache, num_rows, num_targets)
        self._memory = pool.memory("drafter", self._memory, num_rows, num_sources)
        if self._allowed is not None:
            shape = (num_rows, self._allowed.shape[1])
            self._allowed = pool.put("drafter allowed", self._allowed, shape, fill=True)

    def expect(self, width: int, unread: int) -> None:
        """A row has so many positions in the cache at most, and lacks so many committed tokens."""
        self._width, self._behind = width, unread

    def _new_cache(self, num_rows: int) -> KVCache:
        decoder = self.network.decoder
        device, dtype = decoder.tokens.weight.device, decoder.layers.attention_dtype
        return KVCache(self.network.config.decoder, num_rows, device, dtype)


def _checked_network(context: DraftContext) -> BlockDrafter:
    """The network. Raises UserError where it has another vocabulary."""
    network = context.network
    assert isinstance(network, BlockDrafter)
    num_drafted, num_verified = network.config.decoder.vocab_size, context.verifier.vocab_size
    require(
        num_drafted == num_verified,
        f"The drafter was trained on a target vocabulary of {num_drafted} symbols and the "
        f"verifier on one of {num_verified}; use checkpoints with the same dictionaries.",
    )
    return network


def _sharing(
    context: DraftContext, network: BlockDrafter, wanted: bool | None
) -> SupportsEncoderOutput | None:
    """The verifier, if its encoder output is to be read. Raises UserError where it cannot be."""
    verifier = context.verifier
    if wanted is False:
        return None
    if isinstance(verifier, SupportsEncoderOutput) and verifier.encodes_like(network.encoder):
        return verifier
    require(
        wanted is None,
        "share_encoder: the drafter's encoder differs from this verifier's, so the drafter cannot "
        "read its output; omit the option, or train a drafter by specdec drafter from this "
        "verifier.",
    )
    return None
