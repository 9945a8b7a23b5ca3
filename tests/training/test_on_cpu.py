"""The quick operations of training on a CPU against those that they replace."""

from __future__ import annotations

from math import inf, sqrt
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.optim import adam
from torch import Tensor, nn
from torch.nn import functional

from specdec_plugins.training import on_cpu
from tests.fairseq_models import build_verifier

PAD = 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_the_mean_and_its_gradient_has_the_same_mask(dtype: torch.dtype) -> None:
    module, p = FairseqDropout(0.3), 77 / 256
    x = torch.ones(999, 101, dtype=dtype, requires_grad=True)
    # FairseqDropout takes no generator.
    with torch.random.fork_rng(devices=[]), on_cpu.quick(bfloat16=True):
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


def test_the_projected_loss_is_fairseq_s() -> None:
    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: PAD))
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    model, _ = build_verifier()
    model.eval()
    targets = torch.tensor([[5, 6, 7, 2], [8, 9, 2, PAD]])
    given = {
        "src_tokens": targets,
        "src_lengths": torch.tensor([4, 3]),
        "prev_output_tokens": torch.tensor([[2, 5, 6, 7], [2, 8, 9, PAD]]),
    }
    sample = {"net_input": given, "target": targets, "ntokens": 7}
    found = []
    for compute in (LabelSmoothedCrossEntropyCriterion.forward, on_cpu.projected_loss):
        model.zero_grad()
        loss, size, log = compute(criterion, model, sample)
        (3 * loss).backward()
        found.append((loss.detach(), size, log, [w.grad for w in model.parameters()]))
    assert type(loss.grad_fn).__name__ == "ProjectedLossBackward"
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("masked", [None, (3, 1, 1, 7), (1, 1, 5, 7), (3, 2, 5, 7)])
def test_attention_is_torch_s(
    masked: tuple[int, ...] | None, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = ((3, 2, 5, 4), (3, 2, 7, 4), (3, 2, 7, 4), (3, 2, 5, 4))
    *given, slope = (torch.randn(s, generator=generator).double().mT.mT for s in sizes)
    mask = None
    if masked is not None:
        mask = torch.randn(masked, generator=generator).double()
        mask[..., 1:3] = -inf
    kept = (torch.rand(3, 2, 5, 7, generator=generator) > share).double() / (1 - share)
    monkeypatch.setattr(on_cpu, "dropout_mask", lambda p, share: kept.view_as(p))

    def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / 2 + (0 if mask is None else mask)
        return (scores.softmax(-1) * kept) @ v

    def mine(*given: Tensor) -> Tensor:
        mixed: Tensor = on_cpu.Attention.apply(*given, mask, share)
        return mixed

    found = []
    for compute in (by_torch, mine):
        inputs = [x.clone().requires_grad_() for x in given]
        mixed = compute(*inputs)
        found.append([mixed.detach(), *torch.autograd.grad(mixed, inputs, slope)])
    torch.testing.assert_close(found[1], found[0])


def test_attention_is_replaced_in_bfloat16_alone() -> None:
    q = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(1))
    with on_cpu.quick(bfloat16=True):
        for dtype, differs in ((torch.float32, False), (torch.bfloat16, True)):
            x = q.to(dtype).requires_grad_()
            mixed = functional.scaled_dot_product_attention(x, x, x)
            assert (type(mixed.grad_fn).__name__ == "AttentionBackward") == differs
            assert mixed.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adam_is_fairseq_s_and_goes_on_with_its_state(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    settings = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-3, "weight_decay": 0.1}
    begun = torch.randn(9, 5, generator=generator).to(dtype)
    steps = 0.01 * torch.randn(6, 9, 5, generator=generator)
    weights = [nn.Parameter(begun.clone()) for _ in range(2)]
    theirs, mine = adam.Adam(weights[:1], **settings), on_cpu.Adam(weights[1:], **settings)
    for number, gradient in enumerate(steps):
        if number == 3:  # each goes on from the other's state
            states = theirs.state_dict(), mine.state_dict()
            theirs.load_state_dict(states[1])
            mine.load_state_dict(states[0])
        weights[0].grad, weights[1].grad = gradient.to(dtype) / 2, gradient.to(dtype)
        theirs.step()
        mine.step(scale=2.0)
        torch.testing.assert_close(
            weights[1], weights[0], rtol=1e-5 if dtype is torch.float32 else 8e-3, atol=1e-6
        )
    assert mine.state[weights[1]]["step"] == 6
