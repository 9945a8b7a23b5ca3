"""The block drafter: dropout, glancing, learning, and networks that it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec_plugins.models.block_drafter import Glance
from tests.fairseq_models import build_drafter
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

PAD, EOS, MASK = 1, 2, 3
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
LENGTHS = torch.tensor([5, 3])
# Row 0 has a committed <unk>; row 1 a shorter prefix and block, hence padding.
INPUT = torch.tensor([[11, MASK, 12, MASK, MASK], [13, MASK, MASK, PAD, PAD]])
TARGET = torch.tensor([[11, MASK, 12, 14, EOS], [13, 15, EOS, PAD, PAD]])
SCORED = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)


def _glance(context_p: float) -> Glance:
    return Glance(context_p, torch.Generator().manual_seed(3))


def test_both_passes_use_the_same_dropout() -> None:
    """With nothing to reveal, the glancing pass must leave no trace in the random numbers."""
    model = build_drafter(dropout=0.5).train()
    torch.manual_seed(5)
    plain = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED)
    torch.manual_seed(5)
    glanced = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED, _glance(0.0))
    assert torch.equal(plain.logits, glanced.logits)
    # What was predicted right while glancing is what the scored pass predicts right.
    assert glanced.num_right == glanced.logits.argmax(-1).eq(glanced.targets).sum()


def test_revealed_positions_are_not_scored_and_every_parameter_has_a_gradient() -> None:
    model = build_drafter().train()
    out = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED, _glance(0.5))
    assert (out.num_right, out.targets.numel(), out.num_masked) == (0, 2, 4)  # fresh weights
    out = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED, _glance(1.0))
    assert (out.num_right, out.logits.shape) == (0, (0, 30))
    out.logits.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_normalize_before": True}, "--decoder-normalize-before is not supported"),
        ({"adaptive_input": True}, "--adaptive-input"),
        ({"decoder_attention_heads": 3}, "--decoder-attention-heads is 3, which does not divide"),
    ],
)
def test_networks_that_it_is_not_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(message, build_drafter, **changes)
