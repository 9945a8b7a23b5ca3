"""The quick operations of bfloat16 training against those that they replace."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

from specdec_plugins.training.trainer import quick_bfloat16

PAD = 1


class Logits:
    """As much of a model as the criterion asks for."""

    training = True

    def get_targets(self, sample: Tensor, net_output: object) -> Tensor:
        return sample

    def get_normalized_probs(self, net_output: tuple[Tensor], log_probs: bool) -> Tensor:
        return net_output[0].float().log_softmax(-1)


def _loss(logits: Tensor, targets: Tensor, **settings: int) -> tuple[Tensor, Tensor, Tensor]:
    criterion = LabelSmoothedCrossEntropyCriterion.__new__(LabelSmoothedCrossEntropyCriterion)
    torch.nn.Module.__init__(criterion)
    criterion.eps, criterion.padding_idx, criterion.ignore_prefix_size = 0.1, PAD, 0
    for name, value in settings.items():
        setattr(criterion, name, value)
    logits = logits.clone().requires_grad_()
    smoothed, plain = criterion.compute_loss(Logits(), (logits,), targets)
    (3 * smoothed).backward()
    assert logits.grad is not None
    return smoothed.detach(), plain.detach(), logits.grad


@pytest.mark.parametrize("settings", [{}, {"ignore_prefix_size": 2}])
def test_loss_and_gradient_are_fairseq_s(settings: dict[str, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(30, 23, 40, generator=generator)  # more rows than one part has
    targets = torch.randint(PAD, 40, (30, 23), generator=generator)
    assert (targets == PAD).any()
    before = _loss(logits, targets, **settings)
    with quick_bfloat16():
        after = _loss(logits, targets, **settings)
    for mine, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_the_mean_and_its_gradient_has_the_same_mask(dtype: torch.dtype) -> None:
    module, p = FairseqDropout(0.3), 77 / 256
    x = torch.ones(999, 101, dtype=dtype, requires_grad=True)
    # FairseqDropout takes no generator.
    with torch.random.fork_rng(devices=[]), quick_bfloat16():
        torch.manual_seed(1)
        y = module(x)
        y.sum().backward()
        torch.manual_seed(1)
        assert torch.equal(module(x), y)
        assert not torch.equal(module(x), y)
        module.eval()
        assert module(x) is x
    assert y.dtype == dtype
    assert x.grad is not None
    assert torch.equal(x.grad, y)
    kept = y.detach() != 0
    torch.testing.assert_close(y[kept].float().mean().item(), 1 / (1 - p), rtol=4e-3, atol=0)
    share = 1 - kept.float().mean().item()
    assert abs(share - p) < 5 * sqrt(p * (1 - p) / x.numel())
    # Neighbours fall independently of each other.
    both = (~kept[:, 1:] & ~kept[:, :-1]).float().mean().item()
    assert abs(both - p * p) < 5 * sqrt(p * p * (1 - p * p) / x.numel())
