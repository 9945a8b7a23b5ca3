"""An update of every training on the simulated accelerator: what it makes the host wait for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from specdec_plugins.training.drafter import Plan, Training
from tests.gpu.conftest import SIMULATED
from tests.training.test_drafter import plan

__all__ = ["plan"]  # a fixture
pytestmark = pytest.mark.skipif(not SIMULATED, reason="DEVICE is not simulated")
# The published drafter's loss scores the positions that were not glanced at.
OWN = {"block": "specdec_plugins/models/"}
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def backward(learnt: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Without a GPU torch's CUDA build refuses to go backwards, so there gradients are made up."""
    from tests.gpu.accelerator import KIND

    def made_up(loss: Tensor) -> None:
        for weight in learnt:
            weight.grad = torch.ones_like(weight)

    is_refused = KIND == "cuda" and torch.cuda.device_count() == 0
    return mock.patch.object(Tensor, "backward", made_up) if is_refused else nullcontext()


def built(name: str) -> tuple[nn.Module, Callable[..., Any], dict[str, Any]]:
    """A model of fairseq's, its criterion and a sample."""
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

    from specdec_plugins.criterions.glat_loss import GlatLoss
    from specdec_plugins.criterions.verifier_losses import EarlyExitLoss, MedusaLoss
    from specdec_plugins.models.block_drafter import Glance
    from tests import fairseq_models as models
    from tests.criterions.test_verifier_losses import SAMPLE

    task: Any = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: 1))
    if name == "block":
        given = {"glancing": Glance(0.5, torch.Generator().manual_seed(0))}
        return models.build_drafter(), GlatLoss(task, 0.1), {**models.block_sample(), **given}
    if name == "early exit":
        return models.build_early_exit(), EarlyExitLoss(task, False, 0.1, 0.2), SAMPLE
    if name == "heads":
        return models.build_heads(), MedusaLoss(task, 0.8), SAMPLE
    return models.build_verifier()[0], LabelSmoothedCrossEntropyCriterion(task, False, 0.1), SAMPLE


@pytest.mark.fairseq
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["verifier", "block", "early exit", "heads"])
def test_a_loss_waits_for_nothing(name: str, precision: str) -> None:
    from tests.gpu.accelerator import FOUND, KIND, accelerator

    model, criterion, sample = built(name)
    with accelerator():
        model = model.to(KIND, PRECISIONS[precision])
        there = pytree.tree_map_only(Tensor, lambda x: x.to(KIND), sample)
        learnt = [weight for weight in model.parameters() if weight.requires_grad]
        before = [weight.detach().clone() for weight in learnt]
        FOUND.clear()
        loss = criterion(model, there)[0]
        with backward(learnt):
            loss.backward()
        torch.optim.SGD(learnt, lr=0.1).step()
        waits = [found.place for found in FOUND if "fairseq/" not in found.place]
        waits = [place for place in waits if not place.startswith(OWN.get(name, "-"))]
        assert math.isfinite(loss.item())
        assert not all(map(torch.equal, learnt, before))
    assert not waits, waits


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_update_of_a_drafter(precision: str, plan: Plan) -> None:
    from tests.gpu.accelerator import FOUND, KIND, accelerator

    if KIND != "cuda":
        pytest.skip("what trains in mixed precision on a GPU needs torch's CUDA build")
    with accelerator():
        training = Training(replace(plan, device="cuda", precision=precision))
        with backward(training.learnt.values()):
            training._step()
            FOUND.clear()
            training._step()
        waits = [found for found in FOUND if "torch/" not in found.place]
        assert math.isfinite(training._check())
    assert not waits, waits
