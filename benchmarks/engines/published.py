"""SpecDec as its published `inference.py` computes it, on this project's networks, for orientation.

Both models encode the source, both decode the whole prefix again every round, and finished rows
stay until the whole batch is done. That program's loops over tokens in Python are not imitated.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_axes

from benchmarks.engines import Workload, ours
from benchmarks.systems import System
from specdec_plugins.decoding.contract import Draft, Prefix, Round, Scores
from specdec_plugins.decoding.verifier import TransformerVerifier


class UncachedVerifier(TransformerVerifier):
    """Keeps no keys and values from one round to the next."""

    def fresh(self) -> UncachedVerifier:
        """One without rows, over the same network."""
        return UncachedVerifier(self.network, self.special)

    @torch.inference_mode()
    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        assert self._memory is not None, "score before admit"
        self._forget(prefix)
        tokens = self._joined(prefix, draft)  # [B, W + K]
        window = self._cache.window(tokens.shape[1], width=0)
        states = self.network.decoder(tokens, window, self._memory)
        columns = torch.arange(draft.tokens.shape[1] + 1, device=tokens.device)
        index = prefix.lengths[:, None] - 1 + columns  # [B, K+1]
        block = states.gather(1, index[..., None].expand(-1, -1, states.shape[-1]))
        return Scores(self.network.decoder.logits(block))

    @torch.inference_mode()
    def commit(self, prefix: Prefix, last: Round) -> None:
        self._forget(prefix)

    def _forget(self, prefix: Prefix) -> None:
        self._cache.crop(torch.zeros_like(prefix.lengths))

    def _joined(self, prefix: Prefix, draft: Draft) -> Tensor:
        """Each row's prefix, its draft, and padding."""
        pad = self.special.pad
        columns = torch.arange(prefix.width, device=prefix.lengths.device)
        tokens = prefix.tokens[:, : prefix.width].masked_fill(
            columns >= prefix.lengths[:, None], pad
        )
        num_drafted = draft.tokens.shape[1]
        tokens = pad_axes(tokens, (0, num_drafted), value=pad)
        drafted = draft.tokens.masked_fill(~draft.mask, pad)
        offsets = torch.arange(num_drafted, device=tokens.device)
        return tokens.scatter(1, prefix.lengths[:, None] + offsets, drafted)


def load(system: System, workload: Workload, threads: int) -> ours.Ours:
    """Raises UserError where the pair has no drafter."""
    pair, settings = workload.pair, workload.pair.settings
    # Whatever it was trained for, the drafter has its own encoder, reads the whole prefix and takes
    # the best token of each position.
    options = {**settings.drafter_options, "share_encoder": False, "cache": False}
    settings = replace(settings, drafter_options=options)
    engine = ours.load(system, replace(workload, pair=replace(pair, settings=settings)), threads)
    decoder, verifier = engine.decoder, engine.decoder.verifier
    assert isinstance(verifier, TransformerVerifier)
    decoder.verifier = UncachedVerifier(verifier.network, verifier.special)
    decoder.config = replace(decoder.config, compact_at=1.0)
    return engine
