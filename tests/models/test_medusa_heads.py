"""Heads on a frozen verifier, and their twin for inference."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch

from specdec_plugins.decoding.networks import MedusaHeads
from specdec_plugins.errors import UserError

pytestmark = pytest.mark.fairseq

SOURCE, TARGET = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9]])


def heads() -> Any:
    from tests.fairseq_models import build_heads

    return build_heads()


def test_training_and_inference_compute_the_same() -> None:
    model = heads()
    hidden, _ = model.verifier(SOURCE, torch.tensor([4]), TARGET, features_only=True)
    state = model.state_dict()
    twin = MedusaHeads.read(MedusaHeads.described({}, state), state)
    states = model(SOURCE, torch.tensor([4]), TARGET)  # in training mode, and yet no dropout
    assert states.shape == (1, 3, 3, 16)
    torch.testing.assert_close(states[0], twin(hidden[0], 3))
    torch.testing.assert_close(
        model.project(hidden), model.verifier(SOURCE, torch.tensor([4]), TARGET)[0]
    )


def test_only_the_heads_are_trained_and_saved() -> None:
    model = heads()
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == list(model.state_dict()) == ["blocks.weight", "blocks.bias"]
    assert list(model.state_dict(prefix="m.")) == ["m.blocks.weight", "m.blocks.bias"]


def test_its_own_state_loads_and_leaves_the_verifier_alone() -> None:
    model, other = heads(), heads()
    before = {n: t.clone() for n, t in model.verifier.state_dict().items()}
    other.blocks.weight.data += 1
    model.load_state_dict(other.state_dict())
    assert torch.equal(model.blocks.weight, other.blocks.weight)
    assert all(torch.equal(t, before[n]) for n, t in model.verifier.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"verifier_path": None, "num_heads": 2}, "--verifier-path is None, expected the"),
        ({"verifier_path": "nowhere.pt", "num_heads": 2}, "--verifier-path is nowhere.pt"),
        ({"verifier_path": __file__, "num_heads": 0}, "--num-heads is 0, expected 1 or more"),
    ],
)
def test_what_it_refuses(settings: dict[str, Any], message: str) -> None:
    from specdec_plugins.models.medusa_heads import MedusaHeads

    with pytest.raises(UserError, match=message):
        MedusaHeads.build_model(Namespace(**settings), None)
