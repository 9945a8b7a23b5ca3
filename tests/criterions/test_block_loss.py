"""The loss as a pure function: its value, its gradient, and the empty block."""

from __future__ import annotations

import math

import pytest
import torch

from specdec_plugins.criterions.block_loss import block_loss


def _case() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=random)
    return logits.requires_grad_(), torch.randint(7, (5,), generator=random)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_agrees_with_the_definition(smoothing: float) -> None:
    logits, targets = _case()
    expected, expected_nll = [], []
    for row, target in zip(logits.detach().double().tolist(), targets.tolist(), strict=True):
        normaliser = math.log(sum(math.exp(x) for x in row))
        losses = [normaliser - x for x in row]
        expected_nll.append(losses[target])
        mean = sum(losses) / len(losses)
        expected.append((1 - smoothing) * losses[target] + smoothing * mean)
    each = block_loss(logits, targets, smoothing, reduce=False)
    assert each.loss.tolist() == pytest.approx(expected, abs=1e-5)
    assert each.nll.tolist() == pytest.approx(expected_nll, abs=1e-5)
    mean_loss = block_loss(logits, targets, smoothing)
    assert mean_loss.loss.item() == pytest.approx(sum(expected) / 5, abs=1e-5)
    assert mean_loss.nll.item() == pytest.approx(sum(expected_nll) / 5, abs=1e-5)


def test_gradient_agrees_with_torch() -> None:
    logits, targets = _case()
    block_loss(logits, targets, 0.1).loss.backward()
    twin = logits.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(twin, targets, label_smoothing=0.1).backward()
    torch.testing.assert_close(logits.grad, twin.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nothing_to_score_is_a_zero_with_a_gradient(smoothing: float) -> None:
    logits, targets = _case()
    loss = block_loss(logits[:0], targets[:0], smoothing).loss
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_half_precision_is_computed_in_float32() -> None:
    logits, targets = _case()
    half = block_loss(logits.detach().bfloat16(), targets, 0.1).loss
    assert half.dtype == torch.float32
