"""How a round extends a row: the accepted tokens, the cut after eos, the length limit, loops.

Only `until_eos` decides where a sentence ends, and `up_to_eos` of `rounds.h` in the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.contract import Draft, Prefix, Verdict
from specdec_plugins.decoding.requests import RowParams

_LONGEST_PERIOD, _MOST_TIMES = 8, 5  # of tokens that repeat; once more is a loop


@dataclass(frozen=True)
class Extension:
    """What one round appended to each row."""

    tokens: Tensor  # [B, K+1] int64, accepted draft tokens, then the verifier's own; junk after
    lengths: Tensor  # [B] int64, emitted tokens after the cuts, 0 for inactive rows
    num_accepted: Tensor  # [B] int64, how many of these were drafted
    ended: Tensor  # [B] bool, the last emitted token is eos
    full: Tensor  # [B] bool, the row holds max_len tokens and did not end


def loop_end(ids: Sequence[int], begin: int = 0) -> int | None:
    """The length of the shortest text in which a few tokens stand many times in a row, or None.

    ids: a text, of which the first `begin` tokens are known to be none. What was drafted has no
    influence: the length is that at which a token more each time would have shown it.
    """
    for stop in range(max(begin, _MOST_TIMES) + 1, len(ids) + 1):
        for period in range(1, min(_LONGEST_PERIOD, stop // (_MOST_TIMES + 1)) + 1):
            first = stop - _MOST_TIMES * period
            is_alike = ids[stop - 1] == ids[stop - 1 - period]
            if is_alike and ids[first:stop] == ids[first - period : stop - period]:
                return stop
    return None


def fitting(
    wanted: Tensor, prefix: Prefix, max_len: Tensor, num_own: int, max_positions: int | None
) -> Tensor:
    """Cap the `wanted` [B] tokens at what the row and the drafter have room for.

    num_own: tokens that the verifier adds to each draft. Returns [B] int64, 0 for inactive rows.
    """
    most = torch.iinfo(torch.int64).max if max_positions is None else max_positions
    room = (max_len - num_own).clamp(max=most) - (prefix.lengths - 1)  # without the start token
    return torch.minimum(wanted, room).clamp(min=0) * prefix.active


def until_eos(tokens: Tensor, lengths: Tensor, eos: int) -> tuple[Tensor, Tensor]:
    """The number of tokens of each row up to and including its first eos, and whether it has one.

    tokens: [B, N] int64, N > 0, of which `lengths` [B] int64 count. Returns [B] int64, [B] bool.
    """
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    is_end = (tokens == eos) & (columns < lengths[:, None])
    has_end = is_end.any(1)
    # argmax gives the first True; a row without eos keeps everything
    return torch.where(has_end, is_end.int().argmax(1) + 1, lengths), has_end


def extend(
    prefix: Prefix, draft: Draft, verdict: Verdict, params: RowParams, eos: int
) -> Extension:
    """Extend `prefix` in place and mark finished rows inactive.

    Row b appends draft[b, :n] and next_tokens[b], where n = num_accepted[b]. Example: draft
    [5, 6, 7], n = 2, next 9 appends [5, 6, 9]; with 6 = eos it appends [5, 6].

    `prefix.width` stays as it is: the caller updates it from its one copy a round.
    """
    num_drafted = draft.tokens.shape[1]
    columns = torch.arange(num_drafted + 1, device=draft.tokens.device)  # [K+1]
    num_accepted = verdict.num_accepted[:, None]  # [B, 1]
    padded = pad(draft.tokens, (0, 1))  # [B, K+1]
    tokens = torch.where(columns == num_accepted, verdict.next_tokens[:, None], padded)

    until, has_end = until_eos(tokens, verdict.num_accepted + 1, eos)  # [B]
    room = params.max_len - (prefix.lengths - 1)
    lengths = torch.minimum(until, room) * prefix.active
    ended = has_end & (until <= room) & prefix.active
    full = prefix.active & ~ended & (lengths == room)

    append(prefix, tokens, lengths)
    prefix.active &= ~(ended | full)
    return Extension(tokens, lengths, torch.minimum(verdict.num_accepted, lengths), ended, full)


def append(prefix: Prefix, tokens: Tensor, lengths: Tensor) -> None:
    """Write tokens[b, :lengths[b]] ([B, n] int64, [B] int64) after row b, in place."""
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    at = prefix.lengths[:, None] + columns  # [B, n]
    kept = columns < lengths[:, None]
    # Entries that are not kept rewrite the row's column 0 with itself. Boolean indexing would make
    # the host wait for the size of its result.
    start = prefix.tokens[:, :1]
    prefix.tokens.scatter_(1, torch.where(kept, at, 0), torch.where(kept, tokens, start))
    prefix.lengths += lengths
