"""The inference twin gives the logits of the model in training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.fairseq

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1]])
LENGTHS = torch.tensor([5, 3])
INPUT = torch.tensor([[11, 3, 12, 3, 3], [13, 3, 3, 1, 1]])
SCORED = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_encoder_embedding": True},
        {"src_embedding_copy": False},
        {"share_all_embeddings": False},
        {"cached_prefix": True},
        {"cached_prefix": True, "scale_decoder_embedding": True, "freeze_encoder": True},
        {"encoder_learned_pos": False, "decoder_learned_pos": False, "activation_fn": "relu"},
    ],
)
def test_logits_agree(changes: dict[str, Any]) -> None:
    from specdec_plugins.decoding.cache import SourceMemory
    from specdec_plugins.training.drafter_twin import inference_twin
    from tests.fairseq_models import build_drafter

    model = build_drafter(apply_bert_init=False, **changes).eval()
    twin = inference_twin(model, block_size=2)
    with torch.no_grad():
        expected = model(SOURCE, LENGTHS, INPUT, INPUT, SCORED).logits
        states, padding_mask = twin.encoder(SOURCE)
        memory = SourceMemory(
            lengths=LENGTHS,
            padding_mask=padding_mask,
            keys_values=twin.decoder.keys_values(states),
            extras=twin.copied(SOURCE),
        ).trimmed()
        prefix_lengths = torch.tensor([3, 1])
        states = twin.decoder(INPUT, memory, prefix_lengths=prefix_lengths)
        actual = twin.decoder.logits(states[SCORED])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_the_twin_is_a_float32_copy() -> None:
    from specdec_plugins.training.drafter_twin import inference_twin
    from tests.fairseq_models import build_drafter

    model = build_drafter().bfloat16()
    twin = inference_twin(model, block_size=2)
    assert {weight.dtype for weight in twin.parameters()} == {torch.float32}
    before = twin.encoder.embedding.tokens.weight.clone()
    with torch.no_grad():
        model.encoder.embed_tokens.weight += 1
    assert torch.equal(twin.encoder.embedding.tokens.weight, before)
