"""What is trained on a verifier: early exits, heads on its states, an assistant on its encoder."""

from __future__ import annotations

from argparse import Namespace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from torch import nn

from specdec_plugins.decoding.networks import MedusaHeads
from specdec_plugins.models import medusa_heads
from specdec_plugins.models.assistant_transformer import spaced_layers
from tests.fairseq_models import build_assistant, build_early_exit, build_heads, build_verifier
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

SOURCE = torch.tensor([[5, 6, 7, 2]] * 200)
TARGET = torch.tensor([[2, 8, 9]] * 200)


def states(model: nn.Module) -> list[torch.Tensor]:
    """What left each layer, T x B x C, the embeddings first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        _, extra = model(SOURCE, torch.full((200,), 4), TARGET)
    kept: list[torch.Tensor] = extra["inner_states"]
    return kept


@pytest.mark.parametrize(
    ("last", "is_training", "expected"),
    [
        (0.0, True, [0, 0, 0]),
        (0.4, True, [0, 0.4 * (2**0.5 - 1), 0.4]),
        (1.0, True, [0, 2**0.5 - 1, 1]),
        (1.0, False, [0, 0, 0]),
        (1.0, True, [0]),  # an only layer
    ],
)
def test_sentences_skip_layers_in_training_as_often_as_asked(
    last: float, is_training: bool, expected: list[float]
) -> None:
    model = build_early_exit(decoder_layers=len(expected), max_layer_skip=last)
    shares = [
        float((before == after).flatten(2).all(2).all(0).float().mean())
        for before, after in pairwise(states(model.train(is_training)))
    ]
    assert shares == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_layerdrop": 0.1}, "--decoder-layerdrop is not supported"),
        ({"adaptive_softmax_cutoff": "9"}, "--adaptive-softmax-cutoff is not supported"),
        ({"max_layer_skip": 1.5}, "--max-layer-skip is 1.5, expected 0 to 1"),
    ],
)
def test_what_early_exits_refuse(changes: dict[str, Any], message: str) -> None:
    refused(message, build_early_exit, **changes)


SENTENCE, BEGUN = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9]])


def test_training_and_inference_compute_the_same() -> None:
    model = build_heads()
    hidden, _ = model.verifier(SENTENCE, torch.tensor([4]), BEGUN, features_only=True)
    state = model.state_dict()
    twin = MedusaHeads.read(MedusaHeads.described({}, state), state)
    states = model(SENTENCE, torch.tensor([4]), BEGUN)  # in training mode, and yet no dropout
    assert states.shape == (1, 3, 3, 16)
    torch.testing.assert_close(states[0], twin(hidden[0], 3))
    torch.testing.assert_close(
        model.project(hidden), model.verifier(SENTENCE, torch.tensor([4]), BEGUN)[0]
    )


def test_only_the_heads_are_trained_and_saved() -> None:
    model = build_heads()
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == list(model.state_dict()) == ["blocks.weight", "blocks.bias"]
    assert list(model.state_dict(prefix="m.")) == ["m.blocks.weight", "m.blocks.bias"]


def test_its_own_state_loads_and_leaves_the_verifier_alone() -> None:
    model, other = build_heads(), build_heads()
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
def test_what_heads_refuse(settings: dict[str, Any], message: str) -> None:
    refused(message, medusa_heads.MedusaHeads.build_model, Namespace(**settings), None)


def assistant(monkeypatch: pytest.MonkeyPatch, teacher: Any, **changes: Any) -> Any:
    """Built on a verifier that stands for what its checkpoint would hold."""
    model = Namespace(encoder_layers=2, encoder_embed_dim=16, encoder_ffn_embed_dim=24)
    model.encoder_attention_heads, model.decoder_layers = 4, 3
    found = ([teacher], SimpleNamespace(model=model))
    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble", lambda *_, **__: found)
    return build_assistant(__file__, **changes)


def test_layers_are_evenly_spaced() -> None:
    expected = [[5], [0, 5], [0, 2, 5], [0, 1, 2, 3, 4, 5]]
    assert [spaced_layers(n, 6) for n in (1, 2, 3, 6)] == expected
    assert spaced_layers(3, 1) == [0, 0, 0]


def test_it_begins_as_the_verifier_and_its_encoder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, _ = build_verifier(decoder_layers=3)
    model = assistant(monkeypatch, teacher, decoder_layers=2)
    given, begun = teacher.decoder.layers, model.decoder.layers
    assert torch.equal(begun[0].fc1.weight, given[0].fc1.weight)
    assert torch.equal(begun[1].fc1.weight, given[2].fc1.weight)
    assert torch.equal(model.decoder.embed_tokens.weight, teacher.decoder.embed_tokens.weight)
    assert not any(p.requires_grad for p in model.encoder.parameters())
    assert all(p.requires_grad for n, p in model.decoder.named_parameters() if "layers" in n)


def test_it_reads_what_it_will_read_in_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, _ = build_verifier(decoder_layers=3)
    model = assistant(monkeypatch, teacher).train()
    source, lengths = torch.tensor([[5, 6, 7, 2]]), torch.tensor([4])
    states = [m.encoder(source, lengths)["encoder_out"][0] for m in (model, teacher.eval())]
    assert torch.equal(*states)  # no dropout, though dropout is on
    assert model.decoder.training


def test_a_decoder_of_another_width_begins_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    model = assistant(
        monkeypatch,
        build_verifier(decoder_layers=3)[0],
        decoder_embed_dim=8,
        decoder_ffn_embed_dim=8,
    )
    assert model.decoder.layers[0].encoder_attn.kdim == 16
    source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8]])
    assert model(source, torch.tensor([4]), target)[0].shape == (1, 2, 30)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("--verifier-path is None", build_assistant, share_all_embeddings=False)
    refused("--share-all-embeddings would", assistant, monkeypatch, None, share_all_embeddings=True)
