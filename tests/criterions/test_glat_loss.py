"""The loss: its value and gradient; the criterion: figures over several workers, refusals."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from torch.nn.functional import cross_entropy

from specdec_plugins.criterions.glat_loss import (
    GlatLoss,
    SmoothedLoss,
    block_loss,
    count_kept,
    smoothed_losses,
)
from specdec_plugins.models.block_drafter import Glance
from tests.fairseq_models import block_sample, build_drafter
from tests.refusals import refused

pytestmark = pytest.mark.fairseq


def _criterion(label_smoothing: float = 0.1) -> Any:
    return GlatLoss(SimpleNamespace(), label_smoothing)


def _case() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=random)
    return logits.requires_grad_(), torch.randint(7, (5,), generator=random)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_values_and_gradient_agree_with_torch(smoothing: float) -> None:
    logits, targets = _case()
    found = block_loss(logits, targets, smoothing)
    found.loss.backward()
    twin = logits.detach().clone().requires_grad_()
    cross_entropy(twin, targets, label_smoothing=smoothing).backward()
    torch.testing.assert_close(logits.grad, twin.grad)
    for mine, share in ((found.loss, smoothing), (found.nll, 0.0)):
        torch.testing.assert_close(mine, cross_entropy(logits, targets, label_smoothing=share))
    assert block_loss(logits.detach().bfloat16(), targets, smoothing).loss.dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("share", [0.0, 0.1 / 40])
def test_losses_by_parts_are_those_of_torch(
    dtype: torch.dtype, tolerance: float, share: float
) -> None:
    random = torch.Generator().manual_seed(2)
    logits = (3 * torch.randn(300, 40, generator=random)).to(dtype)  # more rows than one part has
    targets = torch.randint(40, (300,), generator=random)
    weights = torch.rand(300, generator=random).to(torch.promote_types(dtype, torch.float32))
    gradients = []
    for losses in (SmoothedLoss.apply, smoothed_losses):
        given = logits.clone().requires_grad_()
        found = losses(given, targets, share)
        (found[0] * weights).sum().backward()
        gradients.append((given.grad, *(loss.detach() for loss in found)))
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)
    assert gradients[0][1].dtype == weights.dtype


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nothing_to_score_is_a_zero_with_a_gradient(smoothing: float) -> None:
    logits, targets = _case()
    loss = block_loss(logits[:0], targets[:0], smoothing).loss
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_a_loss_is_a_mean_and_needs_masked_blocks() -> None:
    model, criterion, sample = build_drafter().eval(), _criterion(), block_sample()
    mean, size, log = criterion(model, sample)
    assert (size, log["loss"]) == (1, mean)
    assert (log["num_masked"], log["context_p"]) == (4, 0)
    glancing = Glance(0.4, torch.Generator().manual_seed(0))
    _, _, log = criterion(model, {**sample, "glancing": glancing})
    assert log["context_p"] == 0.4
    del sample["blocks"]
    refused("translation_lev_modified", criterion, model, sample)


def test_figures_of_workers_are_joined() -> None:
    nothing = {"ntokens": 0, "nsentences": 0}
    names = ("loss", "nll_loss", "sample_size", "num_masked", "num_right", "context_p")
    first = dict(zip(names, (2.0, 1.0, 1, 10, 4, 0.5), strict=True))
    second = dict(zip(names, (4.0, 3.0, 1, 30, 0, 0.3), strict=True))
    summed = {key: first[key] + second[key] for key in first}
    for logs in ([{**first, **nothing}, {**second, **nothing}], [summed]):
        with metrics.aggregate(new_root=True) as values:
            GlatLoss.reduce_metrics(logs)
        figures = values.get_smoothed_values()
        assert figures["loss"] == pytest.approx(3 / math.log(2), abs=1e-3)
        assert figures["nll_loss"] == pytest.approx(2 / math.log(2), abs=1e-3)
        assert figures["glat_accu"] == pytest.approx(0.1)
        assert figures["glat_context_p"] == pytest.approx(0.4)


def test_acceptance_is_counted_up_to_the_first_wrong_position() -> None:
    places = torch.tensor([0, 1, 2, 0, 1, 0])  # blocks of three, two and one answers
    right = torch.tensor([True, False, True, True, True, False])
    counted = {name: int(count) for name, count in count_kept(right, places).items()}
    assert (counted["num_blocks"], counted["kept"]) == (3, 3)
    assert [counted[f"kept_{place}"] for place in (1, 2, 3, 6)] == [2, 1, 0, 0]
    assert [counted[f"reached_{place}"] for place in (1, 2, 3, 6)] == [3, 2, 0, 0]
    log = {"sample_size": 1, "num_blocks": 3, "kept": 3, "kept_1": 2, "reached_1": 3}
    with metrics.aggregate() as logged:
        GlatLoss.reduce_metrics([{**log, "loss": 1.0, "nll_loss": 1.0}] * 2)
    assert logged.get_smoothed_values()["expected_length"] == 2.0
    assert logged.get_smoothed_values()["accept_1"] == pytest.approx(2 / 3, abs=1e-3)


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0])
def test_impossible_settings_are_refused(label_smoothing: float) -> None:
    refused("--label-smoothing", _criterion, label_smoothing)
