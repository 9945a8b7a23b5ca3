"""The block drafter of SpecDec: k masks behind the prefix, all predicted in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_axes

from specdec_plugins.decoding.config import require
from specdec_plugins.decoding.drafters.base import DRAFTERS, DraftContext
from specdec_plugins.decoding.interfaces import (
    Draft,
    Prefix,
    Round,
    RowParams,
    RowRandom,
    SourceBatch,
)
from specdec_plugins.decoding.networks.block import BlockDrafter
from specdec_plugins.decoding.networks.memory import SourceMemory


@DRAFTERS.register("block")
class BlockNatDrafter:
    """Non-autoregressive drafting (Xia et al. 2023, section 3.1).

    Every row gets as many masks as its request's block size, also where less will be used: in a
    bidirectional network the number of masks changes every prediction, so a draft depends on
    its row alone, and on no neighbour, budget or schedule. For the same reason the states of the
    prefix cannot be cached: there is nothing to `commit`, and a round costs more as rows grow.
    """

    @dataclass(frozen=True)
    class Config:
        """The trained network settles everything."""

    def __init__(self, config: Config, context: DraftContext) -> None:
        network = context.network
        require(
            isinstance(network, BlockDrafter),
            "The drafter 'block' needs a checkpoint that was trained for it (--arch block).",
        )
        assert isinstance(network, BlockDrafter)
        num_drafted, num_verified = network.config.decoder.vocab_size, context.verifier.vocab_size
        require(
            num_drafted == num_verified,
            f"The drafter was trained on a target vocabulary of {num_drafted} symbols and the "
            f"verifier on one of {num_verified}; use checkpoints with the same dictionaries.",
        )
        self.network = network
        self._memory: SourceMemory | None = None
        self._num_masks: int | None = None  # the host's maximum over rows; None = not yet asked

    @property
    def max_block_size(self) -> int | None:
        return self.network.config.block_size

    @torch.inference_mode()
    def admit(self, source: SourceBatch) -> None:
        states, padding_mask = self.network.encoder(source.tokens)
        memory = SourceMemory(
            lengths=source.lengths,
            padding_mask=padding_mask,
            keys_values=self.network.decoder.keys_values(states),
            extras=self.network.copied(source.tokens),
        ).fitted()
        self._memory = memory if self._memory is None else self._memory.append(memory)
        self._num_masks = None

    @torch.inference_mode()
    def propose(
        self, prefix: Prefix, budget: Tensor, width: int, params: RowParams, random: RowRandom
    ) -> Draft:
        assert self._memory is not None, "propose before admit"
        if self._num_masks is None:
            # Requests change only with the rows, so the device is asked once, not every round.
            self._num_masks = int(params.block_size.max().clamp(min=1))
        network = self.network
        tokens, first = self._masked(prefix, params.block_size, self._num_masks)
        num_used = min(width, self._num_masks)
        columns = first[:, None] + torch.arange(num_used, device=first.device)  # [B, width]
        states = network.decoder(tokens, self._memory, columns, first)
        drafted = network.decoder.logits(states).argmax(-1)  # [B, width]
        return Draft(pad_axes(drafted, (0, width - num_used)), budget)

    def commit(self, prefix: Prefix, last: Round) -> None:
        """Nothing was cached, so there is nothing to forget."""

    @torch.inference_mode()
    def select(self, rows: Tensor) -> None:
        self._num_masks = None
        if rows.numel() == 0:
            self._memory = None
            return
        assert self._memory is not None, "select before admit"
        self._memory = self._memory.select(rows)

    def _masked(self, prefix: Prefix, block_size: Tensor, num_masks: int) -> tuple[Tensor, Tensor]:
        """Each row's prefix without its start token, its masks, and padding behind them.

        Returns tokens [B, W] and the column [B] int64 of each row's first mask.
        """
        config = self.network.config
        first = prefix.lengths - 1
        # A row that drafts nothing keeps one mask: attention over nothing would be undefined.
        last = first + block_size.clamp(min=1)
        num_kept = prefix.width - 1
        tokens = pad_axes(prefix.tokens[:, 1 : prefix.width], (0, num_masks))  # [B, W]
        columns = torch.arange(num_kept + num_masks, device=first.device)
        tokens = tokens.masked_fill(columns >= first[:, None], config.mask)
        return tokens.masked_fill(columns >= last[:, None], config.pad), first
