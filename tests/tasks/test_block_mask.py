"""The block mask against a loop over rows and positions, and at its edges."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.tasks.block_mask import draw_prefix_lengths, fixed_prefix_lengths, mask_blocks

PAD, EOS, MASK = 1, 2, 3


def _targets(lengths: list[int]) -> torch.Tensor:
    """Rows of distinct tokens, the first <unk>, each ending in </s>, right-padded."""
    rows = [torch.tensor([*range(MASK, MASK + length - 1), EOS]) for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def _loop(
    targets: list[list[int]], prefixes: list[int], block_size: int
) -> list[list[tuple[int, int, bool]]]:
    """Input token, answer, scored: for each row up to the end of its block."""
    rows = []
    for target, prefix in zip(targets, prefixes, strict=True):
        row = []
        for i in range(prefix + block_size):
            answer = target[i] if i < len(target) else PAD
            masked = i >= prefix
            row.append((MASK if masked else answer, answer, masked and answer != PAD))
        rows.append(row)
    return rows


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_agrees_with_a_loop(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    prefixes = [data.draw(st.integers(0, length - 1)) for length in lengths]
    block_size = data.draw(st.integers(1, 12))
    targets = _targets(lengths)
    masked = mask_blocks(targets, torch.tensor(prefixes), block_size, mask=MASK, pad=PAD)
    assert masked.input_tokens.size(1) == max(prefixes) + block_size
    for row, expected in enumerate(_loop(targets.tolist(), prefixes, block_size)):
        actual = list(zip(*(field[row].tolist() for field in masked[:3]), strict=True))
        assert actual[: len(expected)] == expected
        assert all(rest == (PAD, PAD, False) for rest in actual[len(expected) :])


def test_positions_past_the_model_are_cut_and_no_answer_with_them() -> None:
    masked = mask_blocks(_targets([4, 6]), torch.tensor([3, 5]), 8, mask=MASK, pad=PAD, max_width=6)
    assert masked.input_tokens.shape == (2, 6)
    assert masked.scored_mask.sum(dim=1).tolist() == [1, 1]


def test_drawn_prefixes_are_uniform_leave_one_token_and_follow_the_generator() -> None:
    lengths = torch.tensor([1, 4]).repeat(8000)
    drawn, again, other = (
        draw_prefix_lengths(lengths, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, other)
    assert drawn[lengths == 1].max() == 0
    counts = torch.bincount(drawn[lengths == 4], minlength=5)
    assert counts[4] == 0
    # 8,000 draws over 4 values: five standard deviations of a count are 194.
    assert (counts[:4] - 2000).abs().max() < 194


def test_fixed_prefixes_belong_to_the_sentence_not_to_the_batch() -> None:
    ids, lengths = torch.arange(50), torch.arange(50) % 13 + 1
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    whole = fixed_prefix_lengths(lengths, ids, seed=1)
    assert torch.equal(fixed_prefix_lengths(lengths[order], ids[order], seed=1), whole[order])
    assert torch.equal(fixed_prefix_lengths(lengths[7:8], ids[7:8], seed=1), whole[7:8])
    assert not torch.equal(fixed_prefix_lengths(lengths, ids, seed=2), whole)
    # Spread evenly.
    lengths = torch.full((1000,), 5)
    counts = torch.bincount(fixed_prefix_lengths(lengths, torch.arange(1000), seed=1), minlength=6)
    assert counts[5] == 0
    assert (counts[:5] - 200).abs().max() <= 5
