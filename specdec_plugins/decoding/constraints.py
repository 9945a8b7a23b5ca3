"""Banned, penalised and forced tokens: the verifier's scores are changed before they are judged.

Row i of the scores is for the token after the prefix and i drafted tokens, and is constrained by
exactly that text. So a block is judged as if its tokens had come one at a time, whatever was
drafted and whatever the rule. Without constraints nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.contract import Draft, Prefix
from specdec_plugins.decoding.networks.cpu.ops import on_device
from specdec_plugins.decoding.requests import DecodeParams, RowParams

TokenIds = tuple[int, ...]


class Bans(NamedTuple):
    """Banned tokens on a device, int64."""

    single: Tensor  # [N], banned everywhere
    phrases: list[tuple[Tensor, Tensor]]  # of each length: first tokens [N, L-1] and last [N]
    first: Tensor  # [N], banned directly after the opening


@dataclass(frozen=True)
class Constraints:
    """Constraints of a model; a request may have its own in `DecodeParams`.

    They work as in `generate` of transformers, where the start token is part of the text.
    """

    bad_words: tuple[TokenIds, ...] = ()  # the last token of each is banned after the others
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice in a text; 0 = any may
    forced_last: int | None = None  # the last token of a text that reaches max_len
    banned_first: TokenIds = ()  # tokens banned directly after the opening
    num_opening: int = 1  # length of the opening: the start token, and what a model forces
    repetition_penalty: float = 1.0  # above 1, tokens of the text become less likely (CTRL, 2019)
    renormalizes: bool = False  # probabilities in a beam search are those of tokens not banned

    def banning(self, token: int) -> Constraints:
        """These, with one more token that is never emitted."""
        return replace(self, bad_words=(*sorted({*self.bad_words, (token,)}),))

    @cached_property
    def _bans(self) -> dict[torch.device, Bans]:
        return {}

    def bans(self, device: torch.device) -> Bans:
        """Uploaded once, to where they stay: a recorded round reads them there."""
        if device not in self._bans:
            self._bans[device] = _bans_on(device, self.bad_words, self.banned_first)
        return self._bans[device]

    def forces_last(self, width: int, num_drafted: int, requested: Sequence[DecodeParams]) -> bool:
        """True if a row may reach its limit, where the last token is forced, in this round."""
        least = min((p.max_len for p in requested), default=0)
        return self.forced_last is not None and width + num_drafted >= least


FREE = Constraints()


def constrain(
    logits: Tensor,  # [B, K+1, V]
    prefix: Prefix,
    draft: Draft,
    params: RowParams,
    eos: int,
    constraints: Constraints = FREE,
) -> None:
    """Set logits of banned tokens to minus infinity, in place; `min_len` of `params` bans eos.

    Tokens that the text contains are penalised first.
    """
    if not any(map(has_own, params.requested)):
        _constrain(logits, prefix, draft, params, eos, constraints)
        return
    alike: dict[Constraints, list[int]] = {}
    for row, asked in enumerate(params.requested):
        alike.setdefault(_of_request(constraints, asked), []).append(row)
    for own, some in alike.items():
        rows = on_device(some, logits.device)
        theirs = logits[rows]
        texts = Prefix(prefix.tokens[rows], prefix.lengths[rows], prefix.active[rows], prefix.width)
        drafts = replace(draft, tokens=draft.tokens[rows], lengths=draft.lengths[rows])
        _constrain(theirs, texts, drafts, params.select(some, rows), eos, own)
        logits[rows] = theirs


def has_own(asked: DecodeParams) -> bool:
    """True if a request has constraints of its own."""
    own = (asked.no_repeat_ngram_size, asked.repetition_penalty, asked.banned)
    return own != (0, 1.0, ())


@lru_cache(maxsize=16)
def _of_request(constraints: Constraints, asked: DecodeParams) -> Constraints:
    """The constraints of a row: the model's, with those of its request in their place."""
    penalty = asked.repetition_penalty
    return replace(
        constraints,
        bad_words=(*constraints.bad_words, *((token,) for token in asked.banned)),
        no_repeat_ngram_size=asked.no_repeat_ngram_size or constraints.no_repeat_ngram_size,
        repetition_penalty=constraints.repetition_penalty if penalty == 1.0 else penalty,
    )


def _constrain(
    logits: Tensor,
    prefix: Prefix,
    draft: Draft,
    params: RowParams,
    eos: int,
    constraints: Constraints,
) -> None:
    """The same for rows of equal constraints."""
    num_drafted = draft.tokens.shape[1]
    has_least = any(p.min_len for p in params.requested)
    asks = (constraints.bad_words, constraints.banned_first, constraints.no_repeat_ngram_size)
    has_words, penalty = any(asks), constraints.repetition_penalty
    forces_last = constraints.forces_last(prefix.width, num_drafted, params.requested)
    last = constraints.forced_last if forces_last else None
    if not has_least and not has_words and last is None and penalty == 1.0:
        return
    columns = torch.arange(num_drafted + 1, device=logits.device)
    ends = prefix.lengths[:, None] + columns  # [B, K+1] tokens before each, the start included
    if penalty != 1.0:
        _penalise(logits, ends, _text(prefix, draft), penalty)
    if has_least:
        too_early = ends - 1 < params.min_len[:, None]
        logits[..., eos].masked_fill_(too_early, -math.inf)
    if has_words:
        _ban_words(logits, prefix, draft, ends, constraints)
    if last is not None:
        is_last = ends == params.max_len[:, None]
        logits.masked_fill_(is_last[..., None], -math.inf)
        logits[..., last].masked_fill_(is_last, 0.0)


def _penalise(logits: Tensor, ends: Tensor, text: Tensor, penalty: float) -> None:
    """Penalise each token that the text [B, T] contains before each end, once however frequent."""
    stands = torch.arange(text.shape[1], device=text.device) < ends[..., None]  # [B, K+1, T]
    found = torch.zeros_like(logits)
    found.scatter_reduce_(2, text[:, None].expand_as(stands), stands.to(logits.dtype), "amax")
    penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
    logits.copy_(torch.where(found > 0, penalised, logits))


def _ban_words(
    logits: Tensor, prefix: Prefix, draft: Draft, ends: Tensor, constraints: Constraints
) -> None:
    single, phrases, first = constraints.bans(logits.device)
    if len(single):
        logits.index_fill_(-1, single, -math.inf)
    if len(first):
        tokens = first.expand(*ends.shape, -1)
        is_first = ends == constraints.num_opening
        _ban_tokens(logits, tokens, is_first[..., None].expand_as(tokens))
    size = constraints.no_repeat_ngram_size
    if not phrases and not size:
        return
    text = _text(prefix, draft)
    for firsts, lasts in phrases:
        stands = _ends_in(text, ends, firsts)
        _ban_tokens(logits, lasts.expand(*ends.shape, -1), stands)
    if size:
        _ban_tokens(logits, text[:, None].expand(-1, ends.shape[1], -1), _repeats(text, ends, size))


def _bans_on(device: torch.device, bad_words: tuple[TokenIds, ...], banned_first: TokenIds) -> Bans:
    by_length = {n: [w for w in bad_words if len(w) == n] for n in sorted(set(map(len, bad_words)))}
    single = [w[0] for w in by_length.pop(1, [])]
    phrases = [on_device(words, device) for words in by_length.values()]
    return Bans(
        on_device(single, device, torch.int64),
        [(ids[:, :-1], ids[:, -1]) for ids in phrases],
        on_device(banned_first, device, torch.int64),
    )


def _text(prefix: Prefix, draft: Draft) -> Tensor:
    """Each row's prefix followed by its draft: [B, W + K] int64, 0 in place of junk."""
    num_drafted = draft.tokens.shape[1]
    text = pad(prefix.tokens[:, : prefix.width], (0, num_drafted))
    columns = torch.arange(text.shape[1], device=text.device)
    text.scatter_(1, prefix.lengths[:, None] + columns[:num_drafted], draft.tokens)
    return text.masked_fill(columns >= (prefix.lengths + draft.lengths)[:, None], 0)


def _ends_in(text: Tensor, ends: Tensor, phrases: Tensor) -> Tensor:
    """Whether the tokens before each end equal each phrase [N, L] int64: [B, K+1, N] bool."""
    length = phrases.shape[1]
    matched = (ends >= length)[..., None].expand(*ends.shape, len(phrases))
    for back in range(1, length + 1):
        own = text.gather(1, (ends - back).clamp(min=0))
        matched = matched & (own[..., None] == phrases[:, length - back])
    return matched


def _repeats(text: Tensor, ends: Tensor, size: int) -> Tensor:
    """Whether text[b, t], put at the end, would repeat the n-gram it ends: [B, K+1, T] bool.

    That is if the tokens before t equal those before the end. Example: text 7 8 9 7, size 2, end 4:
    True at the 8.
    """
    columns = torch.arange(text.shape[1], device=text.device)
    matched = (columns >= size - 1) & (columns < ends[..., None])
    for back in range(1, size):
        before = pad(text, (back, 0))[:, : text.shape[1]]
        own = text.gather(1, (ends - back).clamp(min=0))
        matched = matched & (before[:, None] == own[..., None])
    return matched


def _ban_tokens(logits: Tensor, tokens: Tensor, is_banned: Tensor) -> None:
    """Ban tokens [B, K+1, N] int64 where `is_banned`, without synchronising the host."""
    least = torch.where(is_banned, -math.inf, math.inf).to(logits.dtype)
    logits.scatter_reduce_(2, tokens, least, "amin")
