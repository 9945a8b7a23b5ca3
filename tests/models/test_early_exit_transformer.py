"""Layers that are skipped in training, and a model that is stock in everything else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from specdec_plugins.errors import UserError
from specdec_plugins.models.early_exit_transformer import skip_probability
from tests.fairseq_models import build_early_exit, build_verifier

pytestmark = pytest.mark.fairseq

SOURCE = torch.tensor([[5, 6, 7, 2]] * 200)
TARGET = torch.tensor([[2, 8, 9]] * 200)


def build(**changes: Any) -> Any:
    return build_early_exit(decoder_layers=3, **changes)


def states(model: nn.Module) -> list[torch.Tensor]:
    """What left each layer, T x B x C, the embeddings first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        _, extra = model(SOURCE, torch.full((200,), 4), TARGET)
    kept: list[torch.Tensor] = extra["inner_states"]
    return kept


def test_skipping_grows_with_depth() -> None:
    assert [skip_probability(i, 3, 0.2) for i in range(3)] == pytest.approx(
        [0.0, 0.2 * (2**0.5 - 1), 0.2]
    )
    assert skip_probability(0, 1, 0.2) == 0


@pytest.mark.parametrize("last", [0.0, 0.4, 1.0])
def test_sentences_skip_layers_in_training_as_often_as_asked(last: float) -> None:
    inner = states(build(max_layer_skip=last))
    shares = [
        float((before == after).flatten(2).all(2).all(0).float().mean())
        for before, after in zip(inner, inner[1:], strict=False)
    ]
    assert shares == pytest.approx([0.0, last * (2**0.5 - 1), last], abs=0.1)


def test_nothing_is_skipped_outside_training() -> None:
    inner = states(build(max_layer_skip=1.0).eval())
    assert not any(
        torch.equal(before, after) for before, after in zip(inner, inner[1:], strict=False)
    )


def test_parameters_have_the_names_of_the_stock_model() -> None:
    stock, _ = build_verifier(decoder_layers=3)
    assert build().state_dict().keys() == stock.state_dict().keys()


@pytest.mark.parametrize("changes", [{}, {"decoder_normalize_before": True}])
def test_the_last_exit_is_the_model_itself(changes: dict[str, Any]) -> None:
    model = build(**changes).eval()
    logits, extra = model(SOURCE[:2], torch.full((2,), 4), TARGET[:2])
    # The last norm of the model is applied where there is one, and not twice.
    torch.testing.assert_close(model.decoder.exit_logits(extra["inner_states"][-1]), logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_layerdrop": 0.1}, "--decoder-layerdrop is not supported"),
        ({"adaptive_softmax_cutoff": "9"}, "--adaptive-softmax-cutoff is not supported"),
        ({"max_layer_skip": 1.5}, "--max-layer-skip is 1.5, expected 0 to 1"),
    ],
)
def test_what_it_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**changes)
