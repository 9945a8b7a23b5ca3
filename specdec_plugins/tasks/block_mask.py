"""The block mask: which positions of a target the drafter must predict.

A prefix of the target stays visible, the next ``block_size`` positions are masked, everything
after them is padding: exactly the drafter's input in decoding. Pure functions of tensors.

Worked example, target ``a b c </s>`` with a prefix of 2 and blocks of 3 (``_`` is padding)::

    input_tokens   a  b  <m> <m> <m>    the block reaches past the end of the target ...
    target_tokens  a  b  c  </s>  _
    scored_mask    0  0  1   1    0     ... but what lies there has no answer to score
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# The golden ratio's fraction: multiples of it fill the unit interval most evenly.
_GOLDEN = 0.6180339887498949


class MaskedBlocks(NamedTuple):
    """Blocks of a batch, ready for the drafter; W is the width of the longest prefix + block."""

    input_tokens: Tensor  # [B, W] int64: prefix, masks, padding
    target_tokens: Tensor  # [B, W] int64: the answers, padded to match
    scored_mask: Tensor  # [B, W] bool: masked, and the target has a token there


def fixed_prefix_lengths(
    target_lengths: Tensor,  # [B] int64, </s> included
    sentence_ids: Tensor,  # [B] int64, index in the data set
    seed: int,
) -> Tensor:  # [B] int64
    """Prefix lengths that depend on the sentence and the seed, never on the batch or the update.

    A Weyl sequence gives each sentence its number: over a whole set the prefixes are spread more
    evenly than random ones, so a validation loss changes with the model and not with the draw.
    """
    start = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    uniform = torch.frac((sentence_ids.double() + 1) * _GOLDEN + start.item())  # [B]
    return _scale_to_lengths(uniform, target_lengths)


def draw_prefix_lengths(target_lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Prefix lengths [B] int64, each uniform from 0 .. length - 1, which leaves at least one token.

    target_lengths: [B] int64, </s> included.
    """
    uniform = torch.rand(
        target_lengths.shape, generator=generator, device=target_lengths.device, dtype=torch.float64
    )
    return _scale_to_lengths(uniform, target_lengths)


def _scale_to_lengths(uniform: Tensor, target_lengths: Tensor) -> Tensor:  # [B], [B] -> [B]
    # In float64 the product stays below the length: uniform is at most 1 - 2**-53.
    return (uniform * target_lengths).long()


def mask_blocks(
    target_tokens: Tensor,  # [B, T] int64, right-padded, ends in </s>, no start token
    prefix_lengths: Tensor,  # [B] int64, less than each target's length
    block_size: int,
    *,
    mask: int,
    pad: int,
    max_width: int | None = None,
) -> MaskedBlocks:
    """Mask ``block_size`` positions after each prefix; see the example of the module.

    ``max_width`` cuts off columns that the model has no positions for; as long as it is no less
    than T, only masks without an answer are lost.
    """
    num_rows, target_width = target_tokens.shape
    width = target_width + block_size
    if max_width is not None:
        width = min(width, max_width)
    # Columns that no prefix and no block reaches are dropped: the model need not compute them.
    width = min(width, int(prefix_lengths.max()) + block_size) if num_rows else 0
    column = torch.arange(width, device=target_tokens.device)  # [W]
    prefix_mask = column < prefix_lengths[:, None]  # [B, W]
    block_mask = ~prefix_mask & (column < prefix_lengths[:, None] + block_size)  # [B, W]
    answers = target_tokens.new_full((num_rows, width), pad)  # [B, W]
    shared = min(width, target_width)
    answers[:, :shared] = target_tokens[:, :shared]
    visible = torch.where(prefix_mask, answers, torch.full_like(answers, pad))  # [B, W]
    answers = answers.masked_fill(~(prefix_mask | block_mask), pad)
    return MaskedBlocks(
        input_tokens=visible.masked_fill(block_mask, mask),
        target_tokens=answers,
        scored_mask=block_mask & answers.ne(pad),
    )
