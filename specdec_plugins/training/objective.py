"""What a block drafter learns in an update: blocks of targets, and their loss.

Several blocks are drawn from each target. They share its tokens as their prefix, so that each adds
little to the cost. None is revealed: the blocks give enough signal without glancing. Half of what a
position is to predict is the target's token, half what the verifier found likely there (knowledge
distillation, Hinton et al. 2015; for drafters Zhou et al. 2024).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.networks.block import BlockDrafter
from specdec_plugins.decoding.networks.cache import KVCache, SourceMemory
from specdec_plugins.decoding.networks.cpu.ops import additive
from specdec_plugins.decoding.networks.layers import LayerStack

LIKELY = 8  # tokens of the verifier at a position
PLAIN = 0.2  # weight of the loss of the logits before the head, which give its candidates
BLOCKS = 4  # of a sentence in an update
_LOGITS = {"cpu": 2**26, "cuda": 0}  # at once, at least as many as the rows below have
_ROWS = {"cpu": 32, "cuda": 1024}  # of logits whose loss is computed at once, on a CPU in its cache


class Blocks(NamedTuple):
    """The drafter's input: P columns of a prefix, then N blocks of K columns that share it."""

    tokens: Tensor  # [B, P + N * K] int64: the prefix, then masks
    positions: Tensor  # [B, P + N * K] int64, in the target
    seen_mask: Tensor  # [B, P + N * K, P + N * K] bool, by query column, then key column
    answers: Tensor  # [B, N * K] int64; padding past the end of the target
    before: Tensor  # [B, N * K] int64: the true token before each
    # Places among all B * N * K answers, of those that are no padding, and of those of first blocks
    # alone. Their number depends on data, so they are made on the host, which then waits for none.
    scored: Tensor  # [M] int64
    scored_first: Tensor  # [M'] int64


class Likely(NamedTuple):
    """What the verifier says at some positions, with the true tokens before them."""

    types: Tensor  # [..., LIKELY] int64
    chances: Tensor  # [..., LIKELY] float32, which sum to 1


class Teacher:
    """A verifier that reads targets."""

    def __init__(self, network: Transformer, start: int) -> None:
        """start: the token that opens its input. The network is in eval mode."""
        self.network, self._start = network, start

    @torch.no_grad()
    def __call__(self, encoded: tuple[Tensor, Tensor], targets: Tensor) -> Likely:
        """At each position of targets [B, T] int64; encoded: what the encoder made of sources."""
        decoder, (states, padding_mask) = self.network.decoder, encoded
        dtype = decoder.layers.attention_dtype
        keys_values = decoder.layers.keys_values(states.to(dtype))
        memory = SourceMemory((~padding_mask).sum(1), padding_mask, keys_values).trimmed()
        cache = KVCache(self.network.config.decoder, len(targets), targets.device, dtype)
        before = pad(targets[:, :-1], (1, 0), value=self._start)
        x = decoder(before, cache.window(targets.shape[1], width=0), memory)  # [B, T, D]
        size = self.network.config.decoder.vocab_size
        rows = x.flatten(0, 1).split(_at_once(size, x.device.type))
        best = [decoder.logits(some).topk(min(LIKELY, size)) for some in rows]
        parts = (torch.cat(part) for part in zip(*best, strict=True))
        scores, types = (part.unflatten(0, targets.shape) for part in parts)
        return Likely(types, scores.float().softmax(-1))


def _at_once(num_types: int, device: str) -> int:
    """Rows of so many logits that are computed at once."""
    return max(_ROWS[device], _LOGITS[device] // num_types)


def draw_starts(lengths: Tensor, num_blocks: int, generator: torch.Generator) -> Tensor:
    """Prefix lengths [B, N] int64 of the blocks of targets of these lengths [B], </s> included.

    Each is uniform from 0 to the length - 1, which leaves at least one token. One uniform number a
    row is shifted by 1/N from block to block, which spreads the blocks over the sentence.
    """
    first = torch.rand(len(lengths), 1, generator=generator, dtype=torch.float64)
    shifts = torch.arange(num_blocks) / num_blocks
    return (torch.frac(first + shifts) * lengths[:, None]).long()


def cut_blocks(
    targets: Tensor,  # [B, T] int64, right-padded, ending in </s>, no start token
    starts: Tensor,  # [B, N] int64, less than each target's length
    block_size: int,
    mask: int,
    padding: int,
    start: int,  # the token before the first
) -> Blocks:
    """Mask `block_size` positions after each start.

    A prefix position sees the prefix up to itself, a block position the prefix before its block and
    the whole block, as in decoding. Example, target ``a b c </s>``, starts 1 and 2, blocks of 2::

        tokens     a  b  <m> <m>  <m>  <m>      a sees  1 .  . .  . .
        positions  0  1   1   2    2    3       b       1 1  . .  . .
        answers           b   c    c   </s>     m m     1 .  1 1  . .
        before            a   b    b    c       m m     1 1  . .  1 1
    """
    num_rows, num_blocks = starts.shape
    inside = starts[..., None] + torch.arange(block_size, device=starts.device)  # [B, N, K]
    inside = inside.flatten(1)
    shared = torch.arange(int(starts.max()), device=starts.device).expand(num_rows, -1)  # [B, P]
    block = torch.arange(num_blocks, device=starts.device).repeat_interleave(block_size)
    block = pad(block, (shared.shape[1], 0), value=-1)  # [P + N * K]: number of the block
    positions = torch.cat([shared, inside], 1)
    # A column sees the prefix before its own end: itself, or the start of its block.
    ends = torch.cat([shared + 1, starts.repeat_interleave(block_size, 1)], 1)
    in_prefix = (block < 0) & (positions[:, None] < ends[..., None])
    together = (block >= 0) & (block == block[:, None])
    longer = pad(targets, (1, block_size), value=padding)
    longer[:, 0] = start
    before, answers = longer.gather(1, inside), longer.gather(1, inside + 1)
    tokens = torch.cat([targets[:, : shared.shape[1]], torch.full_like(inside, mask)], 1)
    scored = (answers != padding).flatten().nonzero()[:, 0]
    of_first = scored[scored % answers.shape[1] < block_size]
    return Blocks(tokens, positions, in_prefix | together, answers, before, scored, of_first)


class Objective(nn.Module):
    """The loss of a network; what stays the verifier's is frozen, and has no gradient."""

    def __init__(self, network: BlockDrafter, share: float = 0.0) -> None:
        """share: dropout of the decoder."""
        super().__init__()
        self.network = network
        if share:
            _add_dropout(network.decoder.layers, share)

    def forward(
        self, sources: Tensor, encoded: tuple[Tensor, Tensor], blocks: Blocks, likely: Likely
    ) -> Tensor:
        """The mean over all answers, [] float32, of sources [B, S] int64, with what the encoder
        makes of them.

        likely: at the positions of the targets, [B, T, LIKELY].
        """
        network, decoder = self.network, self.network.decoder
        states, padding_mask = encoded
        mask = additive(blocks.seen_mask, states.dtype)[:, None]
        memory = network.memory(sources, (~padding_mask).sum(1), states, padding_mask)
        size, width = blocks.tokens.shape[1], blocks.answers.shape[1]
        last = slice(size - width, size)
        x = decoder.through(blocks.tokens, blocks.positions, mask, memory, last)
        at = blocks.positions[:, last].clamp(max=likely.types.shape[1] - 1)
        likely = Likely(
            *(part[torch.arange(len(at), device=at.device)[:, None], at] for part in likely)
        )
        if decoder.head is None:
            return self._loss(x, blocks.answers, blocks.scored, likely)
        corrected = decoder.head(x, decoder.tokens(blocks.before), memory)
        # The first block of each sentence is enough for its candidates.
        plain = self._loss(x, blocks.answers, blocks.scored_first, likely)
        return self._loss(corrected, blocks.answers, blocks.scored, likely) + PLAIN * plain

    def _loss(self, states: Tensor, answers: Tensor, scored: Tensor, likely: Likely) -> Tensor:
        weight = self.network.decoder.output.weight
        types, chances = (part.flatten(0, 1)[scored] for part in likely)
        true = answers.flatten()[scored][:, None]
        targets, shares = torch.cat([true, types], 1), chances.new_full(true.shape, 0.5)
        chosen = states.flatten(0, 1)[scored], weight, targets, torch.cat([shares, chances / 2], 1)
        loss: Tensor = ProjectedLoss.apply(*chosen, 0.0)[0]
        return loss / len(scored)


class ProjectedLoss(torch.autograd.Function):
    """Cross-entropy with label smoothing (Szegedy et al. 2016, section 7) of states, summed.

    The gradients are computed with the loss, and written in place of the logits: passes over the
    logits of thousands of positions would take as long as the products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # [N, D]
        weight: Tensor,  # [V, D]
        targets: Tensor,  # [N, K] int64
        chances: Tensor,  # [N, K], which sum to 1
        share: float,  # of the probability, for each of the V types; the targets have the rest
    ) -> tuple[Tensor, Tensor]:  # [] each, float32 or better: with smoothing, and without
        device = states.device.type
        if torch.is_autocast_enabled(device):
            states = states.to(torch.get_autocast_dtype(device))
        table, precision = weight.to(states.dtype), torch.promote_types(states.dtype, torch.float32)
        totals = torch.zeros(2, dtype=precision, device=states.device)
        of_states, of_weight = torch.empty_like(states), None
        most = _at_once(len(table), device)
        for x, its, theirs, written in zip(
            *(t.split(most) for t in (states, targets, chances, of_states)), strict=True
        ):
            logits = x @ table.T  # [n, V]
            parts = (t.split(_ROWS[device]) for t in (logits, its, theirs))
            for part, at, chance in zip(*parts, strict=True):
                totals += _losses(part, at, chance, share, precision)
            torch.mm(logits, table, out=written)
            if weight.requires_grad:
                more = logits.T @ x
                if of_weight is None:
                    of_weight = more.to(weight.dtype)
                else:
                    of_weight = of_weight.to(precision).add_(more)
        ctx.save_for_backward(of_states, of_weight)
        smoothed, plain = totals.clone()
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        # Scaled here: in float16 the parts of a mean over thousands would underflow.
        of_states, of_weight = ctx.saved_tensors
        of_weight = None if of_weight is None else of_weight * given[0]
        return of_states * given[0], of_weight, None, None, None


def _losses(
    logits: Tensor, targets: Tensor, chances: Tensor, share: float, precision: torch.dtype
) -> Tensor:
    """Sums [2] of the losses of logits [n, V], which become the gradient of the first; see above.

    targets: [n, K] int64; chances: [n, K].
    """
    log_p, rest = logits.log_softmax(1, dtype=precision), 1 - share * logits.size(1)
    chances = chances.to(log_p.dtype)
    plain, all_types = -(chances * log_p.gather(1, targets)).sum(), -log_p.sum()
    p = log_p.exp_().sub_(share)
    logits.copy_(p.scatter_add_(1, targets, -rest * chances))
    return torch.stack([rest * plain + share * all_types, plain])


def _add_dropout(layers: LayerStack, share: float) -> None:
    """Dropout of what each layer reads, and of what its parts add, as the verifier's had it."""
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, given: (_dropped(given[0], share), *given[1:]))
        for name in ("self_attention.out", "cross_attention.out", "down"):
            part = layer.get_submodule(name)
            part.register_forward_hook(lambda _module, _given, out: _dropped(out, share))


def _dropped(x: Tensor, share: float) -> Tensor:
    return x * dropout_mask(x, share) if x.is_cpu else dropout(x, share)


def dropout_mask(x: Tensor, p: float) -> Tensor:
    """Zero with probability p, to within 1/512, else the factor that keeps the mean; shaped as x.

    Each element takes one byte of the generator's output; torch draws a float64 for it.
    """
    size = x.numel()
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=x.device)
    drawn = words.random_(-(2**63), None).view(torch.uint8)[:size].view(x.shape)
    limit = round(p * 256)
    return (drawn >= limit).to(x.dtype).mul_(256 / (256 - limit))
