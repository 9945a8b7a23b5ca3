"""Bigrams of the verifier's output, for a drafter whose tokens do not depend on each other.

A block is drafted in one pass, so each of its tokens is chosen without knowing the others, and
neighbours contradict each other. Rescoring the most probable tokens of every position with bigram
probabilities, and taking the best path, repairs much of that at next to no cost (Kim et al. 2024,
"Exploring and Improving Drafts in Blockwise Parallel Decoding", section 5). The draft is verified
as ever, so the text does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

_PRIOR = 10.0  # weight k of the prior, frequency alone, in tokens
_SELDOM = 2  # pairs seen less often get no entry
_UNSEEN = 0.1  # added to each token's count
_AT_ONCE = 2**22  # tokens held in memory while counting


def _parts(sentences: Iterable[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Consecutive sentences, many at once: their tokens in a row [N], and their lengths [S]."""
    part: list[Tensor] = []
    num_tokens = 0
    for sentence in sentences:
        part.append(torch.as_tensor(sentence, dtype=torch.int64))
        num_tokens += len(sentence)
        if num_tokens >= _AT_ONCE:
            yield torch.cat(part), torch.tensor(list(map(len, part)))
            part, num_tokens = [], 0
    if part:
        yield torch.cat(part), torch.tensor(list(map(len, part)))


@dataclass(frozen=True)
class Bigrams:
    """log P(token | the token before), smoothed with the token's frequency.

    P(t | p) = (count(p, t) + k P(t)) / (count(p) + k): a Dirichlet prior (MacKay and Peto 1995).
    A sentence begins after the decoder's start token, which also ends it.
    """

    starts: Tensor  # [V + 1] int32: the entries of token p are starts[p] to starts[p + 1]
    tokens: Tensor  # [N] int32, the following tokens, ascending within the entries of a token
    log_probs: Tensor  # [N] float32
    backoffs: Tensor  # [V] float32, added to the frequency of a token without an entry
    frequencies: Tensor  # [V] float32, log P(t)

    @staticmethod
    def count(sentences: Iterable[Sequence[int]], vocab_size: int, start: int) -> Bigrams:
        """Count target sentences, each of token ids below `vocab_size` and ending in eos."""
        keys, counts = torch.empty(2, 0, dtype=torch.int64)
        for tokens, lengths in _parts(sentences):
            before = tokens.roll(1)
            before[lengths.cumsum(0) - lengths] = start
            found, numbers = torch.unique(before * vocab_size + tokens, return_counts=True)
            keys, places = torch.unique(torch.cat([keys, found]), return_inverse=True)
            numbers = torch.cat([counts, numbers])
            counts = torch.zeros_like(keys).index_add_(0, places, numbers)
        tallies = torch.bincount(keys % vocab_size, counts.double(), vocab_size).long()
        share = (tallies + _UNSEEN).double() / (tallies + _UNSEEN).sum()
        firsts = torch.bincount(keys // vocab_size, counts.double(), vocab_size)
        keys, counts = keys[counts >= _SELDOM], counts[counts >= _SELDOM]
        previous, token = keys // vocab_size, keys % vocab_size
        probs = (counts + _PRIOR * share[token]) / (firsts[previous] + _PRIOR)
        num_entries = torch.bincount(previous, minlength=vocab_size).cumsum(0)
        return Bigrams(
            starts=torch.cat([torch.zeros(1, dtype=torch.int64), num_entries]).int(),
            tokens=token.int(),
            log_probs=probs.log().float(),
            backoffs=(_PRIOR / (firsts + _PRIOR)).log().float(),
            frequencies=share.log().float(),
        )

    @property
    def vocab_size(self) -> int:
        return len(self.frequencies)

    def to(self, device: torch.device) -> Bigrams:
        """The same on another device."""
        moved = Bigrams(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})
        moved.__dict__["_keys"] = self._keys.to(device)  # made here, as their number needs data
        return moved

    def log_prob(self, before: Tensor, after: Tensor) -> Tensor:
        """log P(after | before): [...] float32 of two int64 tensors, broadcast to [...]."""
        unseen = self.backoffs[before] + self.frequencies[after]
        if len(self.tokens) == 0:
            return unseen
        wanted = before * self.vocab_size + after
        at = torch.searchsorted(self._keys, wanted).clamp(max=len(self._keys) - 1)
        return torch.where(self._keys[at] == wanted, self.log_probs[at], unseen)

    @cached_property
    def _keys(self) -> Tensor:
        """[N] int64, ascending: the key of each pair that has an entry."""
        before = torch.repeat_interleave(self.starts.diff())
        return before * self.vocab_size + self.tokens

    def best_path(self, logits: Tensor, before: Tensor, weight: float, candidates: int) -> Tensor:
        """The best path of tokens for each block, by logits and bigrams (Viterbi 1967).

        logits: [B, K, V] of a drafter; before: [B] int64, the last committed tokens. The path has
        the largest sum of its logits and of `weight` times log P, of all paths through the
        `candidates` best tokens of each position. Returns [B, K] int64.
        """
        candidates = min(candidates, logits.shape[-1])
        scores, tokens = logits.float().topk(candidates, -1)  # [B, K, C] both
        total = scores[:, 0] + weight * self.log_prob(before[:, None], tokens[:, 0])  # [B, C]
        between = self.log_prob(tokens[:, :-1, :, None], tokens[:, 1:, None, :])  # [B, K-1, C, C]
        origins = []
        for position in range(1, logits.shape[1]):
            reached = total[:, :, None] + weight * between[:, position - 1]  # [B, C, C]
            total, origin = reached.max(1)
            total = total + scores[:, position]
            origins.append(origin)
        chosen = [total.argmax(-1, keepdim=True)]  # [B, 1] each, from the last position backwards
        for origin in reversed(origins):
            chosen.append(origin.gather(1, chosen[-1]))
        path = torch.stack(chosen[::-1], 1)  # [B, K, 1]
        return tokens.gather(-1, path)[..., 0]
