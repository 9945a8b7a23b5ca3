"""A larger model is the same function: logits equal in double precision, new words never win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.larger import Size, enlarged
from specdec_plugins.decoding.networks import BlockConfig, BlockDrafter, Transformer
from specdec_plugins.decoding.networks.fairseq_names import network_state
from specdec_plugins.decoding.networks.heads import SequentialHead
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.formats.models import read_model
from tests import fairseq_checkpoints
from tests.decoding.networks.toys import PAD, UNK, full_logits, remember
from tests.fairseq_checkpoints import LEARNED, PRE_NORM
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

SIZE = Size(encoder_layers=5, decoder_layers=4, width=32, types=50)
SHARED = {"share_all_embeddings": True}
DRAFTER = {"arch": "block", "block_size": 4}


def model_of(folder: Path, arch: str = "transformer", seed: int = 0, **case: Any) -> Model:
    """A random one, two layers deep and 16 wide."""
    data = fairseq_checkpoints.dictionaries(
        folder, 30, 30 if "share_all_embeddings" in case else 25
    )
    return read_model(fairseq_checkpoints.write(data, arch, seed, **case))


def with_head(model: Model, attention: int) -> Model:
    """The same drafter with a sequential head of 12."""
    config = replace(model.config, sequential_head=12, head_attention=attention)
    head = SequentialHead(config.decoder.dim, 12, attention, config.encoder.dim)
    chance = torch.Generator().manual_seed(0)
    state = {
        f"decoder.head.{name}": torch.randn(tensor.shape, generator=chance)
        for name, tensor in head.state_dict().items()
    }
    return replace(model, config=config, state=model.state | state)


def in_double(model: Model) -> Any:
    """Its network, no weight rounded to single precision on the way."""
    kind = BlockDrafter if isinstance(model.config, BlockConfig) else Transformer
    network = kind(model.config).double().eval().requires_grad_(False)
    network.load_state_dict(network_state(model.state, kind.bidirectional))
    return network


def sources() -> tuple[Tensor, Tensor]:
    """Ragged sources, and targets, every token among them."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(UNK, 29, (6, 9), generator=generator)
    source[1, 4:] = PAD
    return source, torch.randint(2, 28, (6, 12), generator=generator)


def check_logits(old: Tensor, new: Tensor, tolerance: float = 1e-11) -> None:
    """The same for the old words; the new ones far below, so that no probability moves either."""
    words = old.shape[-1]
    assert old.std() > 0.1
    torch.testing.assert_close(new[..., :words], old, rtol=0, atol=tolerance)
    assert (new[..., words:] < old.amax(-1, keepdim=True) - 40).all()
    assert torch.equal(new.argmax(-1), old.argmax(-1))
    torch.testing.assert_close(new.logsumexp(-1), old.logsumexp(-1), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "case",
    [
        {},
        SHARED,
        {**SHARED, **PRE_NORM},
        {**PRE_NORM, **LEARNED},
        {"encoder_normalize_before": True, "share_decoder_input_output_embed": True},
        {"no_scale_embedding": True, "layernorm_embedding": True, **SHARED},
        {"activation_fn": "gelu", "no_token_positional_embeddings": True, **SHARED},
    ],
    ids=lambda case: ",".join(case) or "default",
)
@pytest.mark.parametrize("width", [32, 48])
def test_a_larger_verifier_gives_the_same_logits(
    case: dict[str, Any], width: int, tmp_path: Path
) -> None:
    model = model_of(tmp_path, **case)
    larger = enlarged(model, replace(SIZE, width=width))
    network: Transformer = in_double(larger)
    encoder, decoder = network.config.encoder, network.config.decoder
    assert (len(network.encoder.layers), len(network.decoder.layers)) == (5, 4)
    assert (decoder.dim, decoder.head_dim) == (width, 8)
    assert decoder.vocab_size == encoder.vocab_size == 50
    check_logits(full_logits(in_double(model), *sources()), full_logits(network, *sources()))


@pytest.mark.parametrize(
    "case",
    [
        {"src_embedding_copy": True, **LEARNED, **SHARED},
        {"src_embedding_copy": True, **LEARNED},
        {**SHARED, "scale_encoder_embedding": True, "scale_decoder_embedding": True},
        {"activation_fn": "tanh", "share_decoder_input_output_embed": True},
    ],
    ids=lambda case: ",".join(case),
)
def test_a_larger_drafter_gives_the_same_logits(case: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(tmp_path, "block", block_size=6, **case)
    source, target = sources()
    target[:, 5:] = UNK  # the masks

    def logits(model: Model) -> Tensor:
        network: BlockDrafter = in_double(model)
        return network.decoder.logits(network.decoder(target, remember(network, source)))

    check_logits(logits(model), logits(enlarged(model, replace(SIZE, decoder_layers=2))))


@pytest.mark.parametrize("head_attention", [0, 2])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_larger_head_drafts_the_same(scaled: bool, head_attention: int, tmp_path: Path) -> None:
    case = {"scale_encoder_embedding": scaled, "scale_decoder_embedding": scaled, **SHARED}
    model = with_head(model_of(tmp_path, "block", block_size=6, **case), head_attention)
    generator = torch.Generator().manual_seed(0)
    for name in ("weight", "bias"):  # zeros, before any training
        out = model.state[f"decoder.head.out.{name}"]
        out.copy_(torch.randn(out.shape, generator=generator))
    source, target = sources()
    target[:, 5:] = UNK

    def drafts(model: Model) -> Tensor:
        decoder = in_double(model).decoder
        memory = remember(in_double(model), source)
        states = decoder(target, memory)[:, 5:]
        logits = decoder.logits(states)[..., :30]
        return decoder.head.draft(states, logits, target[:, 4], decoder.tokens.weight, 8, memory)[0]

    found = drafts(enlarged(model, replace(SIZE, decoder_layers=2)))
    assert torch.equal(found, drafts(model))
    assert len(found.unique()) > 3
    model.state["decoder.head.out.bias"].zero_()
    model.state["decoder.head.out.weight"].zero_()
    assert not torch.equal(found, drafts(model))  # the head has a say


@pytest.mark.parametrize(
    ("case", "size", "message"),
    [
        ({}, replace(SIZE, width=16), "is 16 wide"),
        ({}, replace(SIZE, encoder_layers=1), "already has 2 encoder layers"),
        ({}, replace(SIZE, types=20), "already has 34 types"),
        ({"decoder_input_dim": 8}, SIZE, "several widths"),
        ({**PRE_NORM, "no_decoder_final_norm": True}, SIZE, "ends without a norm"),
        (DRAFTER, SIZE, "stays as deep"),
        (
            {**DRAFTER, "scale_encoder_embedding": True},
            replace(SIZE, decoder_layers=2),
            "one stack",
        ),
    ],
)
def test_what_cannot_be_larger_is_refused(
    case: dict[str, Any], size: Size, message: str, tmp_path: Path
) -> None:
    refused(message, enlarged, model_of(tmp_path, **case), size)
