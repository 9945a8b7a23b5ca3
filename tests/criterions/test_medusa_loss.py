"""Each head answers for the token of its place: against a loop over all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec_plugins.errors import UserError
from tests.criterions.test_early_exit_loss import SAMPLE, TARGET

pytestmark = pytest.mark.fairseq


def criterion(head_decay: float = 0.5) -> Any:
    from specdec_plugins.criterions.medusa_loss import MedusaLoss

    return MedusaLoss(SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: 1)), head_decay)


def heads(num_heads: int = 3) -> Any:
    from tests.fairseq_models import build_heads

    return build_heads(num_heads)


def test_the_loss_is_that_of_a_loop_over_heads_and_places() -> None:
    model = heads()
    loss, size, log = criterion()(model, SAMPLE)
    states = model(**SAMPLE["net_input"])
    want = torch.tensor(0.0)
    right = dict.fromkeys(range(1, 4), 0)
    for row, length in ((0, 4), (1, 3)):
        for place in range(length):
            for head in range(1, 4):
                if place + head < length:
                    log_probs = model.project(states[row, place, head - 1]).log_softmax(-1)
                    token = int(TARGET[row, place + head])
                    want = want - 0.5**head * log_probs[token]
                    right[head] += int(log_probs.argmax()) == token
    torch.testing.assert_close(loss, want)
    assert size == log["ntokens"] == 7
    assert [int(log[f"scored_{head}"]) for head in (1, 2, 3)] == [5, 3, 1]
    assert {head: int(log[f"right_{head}"]) for head in right} == right
    each, _, _ = criterion()(model, SAMPLE, reduce=False)
    torch.testing.assert_close(each.sum(), loss)
    assert each.shape == (2,)


def test_gradients_reach_the_heads_only() -> None:
    model = heads()
    criterion()(model, SAMPLE)[0].backward()
    assert model.blocks.weight.grad.unflatten(0, (3, 16)).abs().sum((1, 2)).gt(0).all()
    assert all(p.grad is None for p in model.verifier.parameters())


def test_more_heads_than_tokens() -> None:
    loss, _, log = criterion()(heads(6), SAMPLE)
    assert loss.isfinite()
    assert int(log["scored_6"]) == 0


def test_what_it_refuses() -> None:
    from tests.fairseq_models import build_verifier

    with pytest.raises(UserError, match="--head-decay is 0, expected above 0"):
        criterion(0)
    with pytest.raises(UserError, match="needs --arch medusa_heads"):
        criterion()(build_verifier()[0], SAMPLE)
