"""Tokens that may not be emitted, struck from the verifier's logits before anyone judges them.

Every strategy and every rule sees the same struck logits, so a constraint never costs exactness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.types import SpecialTokens


def strike(
    logits: Tensor, first: Tensor, min_len: Tensor, special: SpecialTokens, ban_pad: bool
) -> Tensor:
    """Logits [B, K+1, V] with banned tokens at minus infinity, written in place.

    first: [B] int64, the target position of row 0's token (the prefix length, start included).
    min_len: [B] int64; eos is banned while fewer tokens stand after the start token, as in
    fairseq's `--min-len`.
    """
    num_rows = logits.shape[1]
    standing = first[:, None] - 1 + torch.arange(num_rows, device=logits.device)  # [B, K+1]
    too_early = standing < min_len[:, None]
    logits[..., special.eos].masked_fill_(too_early, float("-inf"))
    if ban_pad:
        logits[..., special.pad] = float("-inf")
    return logits
