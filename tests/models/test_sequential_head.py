"""The sequential head, and blocks that share a prefix, against one block at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_plugins.tasks.block_mask import mask_blocks, share_prefix
from tests.fairseq_models import build_drafter

pytestmark = pytest.mark.fairseq

PAD, EOS, MASK = 1, 2, 3
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
LENGTHS = torch.tensor([5, 3])
TARGET = torch.tensor([[11, 12, 13, 14, 15, EOS], [16, 17, EOS, PAD, PAD, PAD]])
STARTS = torch.tensor([[0, 2, 5], [2, 1, 0]])
SIZE = 3


def drafter(**changes: Any) -> Any:
    model = build_drafter(arch="block_fast", **changes).double().eval()
    head = model.decoder.head
    if head is not None:
        # Zero at first, so that it changes nothing: not what a test wants.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            torch.nn.init.normal_(head.out.weight, std=0.3)
    return model


def one_by_one(model: Any, row: int, start: int) -> Tensor:
    """Logits of one block of one sentence, alone in its batch."""
    target = TARGET[row][TARGET[row] != PAD][None]
    blocks = mask_blocks(target, torch.tensor([start]), SIZE, mask=MASK, pad=PAD)
    source = SOURCE[row][SOURCE[row] != PAD][None]
    length = torch.tensor([source.shape[1]])
    out = model(source, length, blocks.input_tokens, blocks.target_tokens, blocks.scored_mask)
    return out.logits


@pytest.mark.parametrize(("sequential_head", "head_attention"), [(0, 0), (24, 0), (24, 2)])
@pytest.mark.parametrize("learned", [False, True])
def test_blocks_behind_one_prefix_are_those_of_separate_passes(
    sequential_head: int, head_attention: int, learned: bool
) -> None:
    sizes = {"sequential_head": sequential_head, "head_attention": head_attention}
    model = drafter(**sizes, decoder_learned_pos=learned)
    blocks = share_prefix(TARGET, STARTS, SIZE, mask=MASK, pad=PAD)
    out = model(SOURCE, LENGTHS, *blocks[:2], blocks.scored_mask, starts=blocks.starts)
    expected = [one_by_one(model, row, int(s)) for row in range(2) for s in STARTS[row]]
    torch.testing.assert_close(out.logits, torch.cat(expected), rtol=0, atol=1e-12)
    places = [place for logits in expected for place in range(len(logits))]
    assert out.places.tolist() == places
    assert int(out.first.sum()) == sum(len(expected[i]) for i in (0, 3))


def test_masks_behind_the_last_position_are_no_error() -> None:
    """A block may reach past the model's positions; no answer lies there."""
    model = drafter(max_target_positions=6)
    blocks = share_prefix(TARGET, STARTS, SIZE, mask=MASK, pad=PAD)
    out = model(SOURCE, LENGTHS, *blocks[:2], blocks.scored_mask, starts=blocks.starts)
    assert out.logits.isfinite().all()
    assert len(out.logits) == blocks.scored_mask.sum()


def test_the_head_by_its_formula() -> None:
    head = drafter(sequential_head=8).decoder.head
    states, before = torch.randn(2, 1, 5, 16, dtype=torch.float64)
    normed = (before - before.mean(-1, True)) / (before.var(-1, False, True) + 1e-5).sqrt()
    hidden = states @ head.state.weight.T + head.state.bias + normed @ head.token.weight.T
    expected = states + hidden.clamp(min=0) @ head.out.weight.T + head.out.bias
    source, hidden = torch.empty(1, 0, 16), torch.empty(1, 0, dtype=torch.bool)
    torch.testing.assert_close(head(states, before, source, hidden), expected)


def test_the_head_reads_the_source_by_the_token_before() -> None:
    """With torch's own attention; the second source is shorter."""
    head = drafter(sequential_head=8, head_attention=2).decoder.head
    states, before, source = torch.randn(3, 2, 5, 16, dtype=torch.float64)
    padding_mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    told = head.state(states) + head.token(head.norm(before))
    keys, values = head.key_value(source).chunk(2, -1)
    read = torch.nn.functional.scaled_dot_product_attention(
        *(x.unflatten(-1, (2, 8)).transpose(1, 2) for x in (told[..., 8:], keys, values)),
        attn_mask=~padding_mask[:, None, None],
    )
    hidden = told[..., :8] + head.context(read.transpose(1, 2).flatten(2))
    expected = states + head.out(hidden.clamp(min=0))
    torch.testing.assert_close(head(states, before, source, padding_mask), expected)


def test_a_fresh_head_changes_nothing() -> None:
    model = build_drafter(arch="block_fast").eval()
    blocks = mask_blocks(TARGET, torch.tensor([1, 0]), SIZE, mask=MASK, pad=PAD)
    inputs = (SOURCE, LENGTHS, *blocks[:2], blocks.scored_mask)
    with_head = model(*inputs).logits
    assert model.decoder.head.hidden_dim == 2 * 16
    assert model.decoder.head.num_heads == 2
    model.decoder.head = None
    torch.testing.assert_close(model(*inputs).logits, with_head)


def test_the_published_shape_has_no_head_unless_asked() -> None:
    assert build_drafter(arch="block").decoder.head is None
    assert build_drafter(arch="block", sequential_head=4).decoder.head is not None
    assert build_drafter(arch="block_fast", sequential_head=0).decoder.head is None


@pytest.mark.parametrize(("start_token", "opened_by"), [(None, EOS), (0, 0), (7, 7)])
def test_the_head_is_told_what_opens_the_verifiers_input(
    start_token: int | None, opened_by: int
) -> None:
    """As when it decodes, where the token before the first one is that of the prefix."""
    model = drafter(start_token=start_token)
    told: list[Tensor] = []
    model.decoder.head.register_forward_hook(lambda _, inputs, __: told.append(inputs[1]))
    one_by_one(model, row=0, start=0)
    before = torch.tensor([opened_by, *TARGET[0, : SIZE - 1].tolist()])
    assert torch.equal(told[0][0], model.decoder.embed_tokens(before))
