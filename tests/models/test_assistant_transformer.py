"""A small decoder on a verifier's encoder, which training leaves as it is."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec_plugins.errors import UserError

pytestmark = pytest.mark.fairseq


def verifier() -> Any:
    from tests.fairseq_models import build_verifier

    model, _ = build_verifier(decoder_layers=3)
    return model


def assistant(monkeypatch: pytest.MonkeyPatch, teacher: Any, **changes: Any) -> Any:
    """Built on a verifier that stands for what its checkpoint would hold."""
    from fairseq import checkpoint_utils

    from tests.fairseq_models import build_assistant

    model = Namespace(encoder_layers=2, encoder_embed_dim=16, encoder_ffn_embed_dim=24)
    model.encoder_attention_heads, model.decoder_layers = 2, 3
    found = ([teacher], SimpleNamespace(model=model))
    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble", lambda *_, **__: found)
    return build_assistant(__file__, **changes)


def test_layers_are_evenly_spaced() -> None:
    from specdec_plugins.models.assistant_transformer import spaced_layers

    assert [spaced_layers(n, 6) for n in (1, 2, 3, 6)] == [
        [5],
        [0, 5],
        [0, 2, 5],
        [0, 1, 2, 3, 4, 5],
    ]
    assert spaced_layers(3, 1) == [0, 0, 0]


def test_it_begins_as_the_verifier_and_its_encoder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = verifier()
    model = assistant(monkeypatch, teacher, decoder_layers=2)
    given, begun = teacher.decoder.layers, model.decoder.layers
    assert torch.equal(begun[0].fc1.weight, given[0].fc1.weight)
    assert torch.equal(begun[1].fc1.weight, given[2].fc1.weight)
    assert torch.equal(model.decoder.embed_tokens.weight, teacher.decoder.embed_tokens.weight)
    assert not any(p.requires_grad for p in model.encoder.parameters())
    assert all(p.requires_grad for n, p in model.decoder.named_parameters() if "layers" in n)


def test_it_reads_what_it_will_read_in_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = verifier()
    model = assistant(monkeypatch, teacher).train()
    source, lengths = torch.tensor([[5, 6, 7, 2]]), torch.tensor([4])
    states = [m.encoder(source, lengths)["encoder_out"][0] for m in (model, teacher.eval())]
    assert torch.equal(*states)  # no dropout, though dropout is on
    assert model.decoder.training


def test_a_decoder_of_another_width_begins_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    model = assistant(monkeypatch, verifier(), decoder_embed_dim=8, decoder_ffn_embed_dim=8)
    assert model.decoder.layers[0].encoder_attn.kdim == 16
    source, target = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8]])
    assert model(source, torch.tensor([4]), target)[0].shape == (1, 2, 30)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fairseq_models import build_assistant

    with pytest.raises(UserError, match="--verifier-path is None"):
        build_assistant()
    with pytest.raises(UserError, match="--share-all-embeddings would change"):
        assistant(monkeypatch, verifier(), share_all_embeddings=True)
