"""The losses that train a verifier's exits and heads, against one exit or one head at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from torch.nn import functional

from specdec_plugins.criterions.verifier_losses import EarlyExitLoss, MedusaLoss, exit_weights
from tests.fairseq_models import build_early_exit, build_heads, build_verifier
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

TARGET = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]])
SAMPLE = {
    "net_input": {
        "src_tokens": TARGET,
        "src_lengths": torch.tensor([4, 3]),
        "prev_output_tokens": torch.tensor([[2, 5, 6, 7], [2, 8, 9, 1]]),
    },
    "target": TARGET,
    "ntokens": 7,
    "nsentences": 2,
}


TASK = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: 1))


def criterion(scale: float = 0.2, smoothing: float = 0.1) -> Any:
    return EarlyExitLoss(TASK, False, smoothing, scale, report_accuracy=True)


@pytest.mark.parametrize("normalize_before", [False, True])
def test_the_loss_is_the_weighted_sum_of_every_exits(normalize_before: bool) -> None:
    it = build_early_exit(decoder_layers=3, decoder_normalize_before=normalize_before).eval()
    loss, size, log = criterion(smoothing=0.0)(it, SAMPLE)
    _, extra = it(**SAMPLE["net_input"])
    each = [
        functional.cross_entropy(
            it.decoder.exit_logits(state).flatten(0, 1),
            TARGET.flatten(),
            ignore_index=1,
            reduction="sum",
        )
        for state in extra["inner_states"][1:]
    ]
    # 0.2 * (1, 1 + 2), and L - 1 more than the one before for the whole decoder
    torch.testing.assert_close(loss, (0.2 * each[0] + 0.6 * each[1] + 2.6 * each[2]) / 3.4)
    assert exit_weights(1, 0.2) == [1]
    torch.testing.assert_close(log["nll_loss"], each[-1])
    torch.testing.assert_close([log["nll_exit_1"], log["nll_exit_2"]], each[:-1])
    assert (size, log["total"]) == (7, 7)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in it.parameters())


def test_without_weight_for_exits_it_is_the_stock_loss() -> None:
    it = build_early_exit(decoder_layers=3).eval()
    stock, _, _ = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(it, SAMPLE)
    torch.testing.assert_close(criterion(scale=0.0)(it, SAMPLE)[0], stock)


def medusa_loss(head_decay: float = 0.5) -> Any:
    return MedusaLoss(TASK, head_decay)


def test_the_loss_is_that_of_a_loop_over_heads_and_places() -> None:
    model = build_heads(6)  # more than any place has tokens behind it
    loss, size, log = medusa_loss()(model, SAMPLE)
    states = model(**SAMPLE["net_input"])
    want = torch.tensor(0.0)
    right = dict.fromkeys(range(1, 7), 0)
    for row, length in ((0, 4), (1, 3)):
        for place in range(length):
            for head in right:
                if place + head < length:
                    log_probs = model.project(states[row, place, head - 1]).log_softmax(-1)
                    token = int(TARGET[row, place + head])
                    want = want - 0.5**head * log_probs[token]
                    right[head] += int(log_probs.argmax()) == token
    torch.testing.assert_close(loss, want)
    assert size == log["ntokens"] == 7
    assert [int(log[f"scored_{head}"]) for head in right] == [5, 3, 1, 0, 0, 0]
    assert {head: int(log[f"right_{head}"]) for head in right} == right


def test_gradients_reach_the_heads_only() -> None:
    model = build_heads()
    medusa_loss()(model, SAMPLE)[0].backward()
    assert model.blocks.weight.grad.unflatten(0, (3, 16)).abs().sum((1, 2)).gt(0).all()
    assert all(p.grad is None for p in model.verifier.parameters())


def test_what_both_refuse() -> None:
    stock, _ = build_verifier()
    refused("--exit-scale is -1, expected 0 or more", criterion, scale=-1)
    refused("needs --arch early_exit_transformer", criterion(), stock, SAMPLE)
    refused("--head-decay is 0, expected above 0", medusa_loss, 0)
    refused("needs --arch medusa_heads", medusa_loss(), stock, SAMPLE)
