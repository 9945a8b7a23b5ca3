"""The loss of all exits against one exit at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from specdec_plugins.errors import UserError

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


def criterion(scale: float = 0.2, smoothing: float = 0.1) -> Any:
    from specdec_plugins.criterions.early_exit_loss import EarlyExitLoss

    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: 1))
    return EarlyExitLoss(task, False, smoothing, scale, report_accuracy=True)


def model(**changes: Any) -> Any:
    from tests.fairseq_models import build_early_exit

    return build_early_exit(decoder_layers=3, **changes).eval()


def test_weights_grow_with_depth_and_sum_to_one() -> None:
    from specdec_plugins.criterions.early_exit_loss import exit_weights

    # scale * (1, 1 + 2), and L - 1 more than the one before for the whole decoder
    assert exit_weights(3, 0.2) == pytest.approx([w / 3.4 for w in (0.2, 0.6, 2.6)])
    assert exit_weights(3, 0) == [0, 0, 1]
    assert exit_weights(1, 0.2) == [1]


@pytest.mark.parametrize("normalize_before", [False, True])
def test_the_loss_is_the_weighted_sum_of_every_exits(normalize_before: bool) -> None:
    from specdec_plugins.criterions.early_exit_loss import exit_weights

    it = model(decoder_normalize_before=normalize_before)
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
    want = sum(w * nll for w, nll in zip(exit_weights(3, 0.2), each, strict=True))
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(log["nll_loss"], each[-1])
    torch.testing.assert_close([log["nll_exit_1"], log["nll_exit_2"]], each[:-1])
    assert (size, log["total"]) == (7, 7)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in it.parameters())


def test_without_weight_for_exits_it_is_the_stock_loss() -> None:
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: 1))
    it = model()
    stock, _, _ = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)(it, SAMPLE)
    torch.testing.assert_close(criterion(scale=0.0)(it, SAMPLE)[0], stock)


def test_what_it_refuses() -> None:
    from tests.fairseq_models import build_verifier

    with pytest.raises(UserError, match="--exit-scale is -1, expected 0 or more"):
        criterion(scale=-1)
    with pytest.raises(UserError, match="needs --arch early_exit_transformer"):
        criterion()(build_verifier()[0], SAMPLE)
