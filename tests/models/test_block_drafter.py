"""The block drafter: its parameters, its forward pass against others, glancing, learning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec_plugins.decoding.networks.cache import SourceMemory
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.formats.models import read_model
from specdec_plugins.models.block_drafter import Glance
from tests.fairseq_models import build_drafter, drafter_args
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

PAD, EOS, MASK = 1, 2, 3


SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
LENGTHS = torch.tensor([5, 3])
# Row 0 has a committed <unk>; row 1 a shorter prefix and block, hence padding.
INPUT = torch.tensor([[11, MASK, 12, MASK, MASK], [13, MASK, MASK, PAD, PAD]])
TARGET = torch.tensor([[11, MASK, 12, 14, EOS], [13, 15, EOS, PAD, PAD]])
SCORED = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)


def test_parameter_names_are_the_published_ones() -> None:
    names = set(build_drafter(encoder_layers=1, decoder_layers=1).state_dict())
    attention = [f"{p}_proj.{w}" for p in ("k", "v", "q", "out") for w in ("weight", "bias")]
    norm_and_ffn = [
        f"{part}.{w}"
        for part in ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")
        for w in ("weight", "bias")
    ]
    expected = {
        f"{side}.layers.0.{part}" for side in ("encoder", "decoder") for part in norm_and_ffn
    }
    for side in ("encoder", "decoder"):
        expected |= {f"{side}.layers.0.self_attn.{part}" for part in attention}
        expected |= {f"{side}.{n}" for n in ("version", "embed_tokens.weight")}
        expected |= {f"{side}.embed_positions.weight"}
    expected |= {f"decoder.layers.0.encoder_attn.{part}" for part in attention}
    expected |= {f"decoder.layers.0.encoder_attn_layer_norm.{w}" for w in ("weight", "bias")}
    expected |= {"decoder.output_projection.weight", "decoder.copy_attn.weight"}
    assert names == expected


def _attend(module: nn.Module, query: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
    """Multi-head attention of one row by its formula: query [W, D], memory [S, D].

    hidden: [S], or [W, S] where not all see the same.
    """
    heads, width = module.num_heads, query.size(1)
    q, k, v = (
        projection(x).view(len(x), heads, width // heads).transpose(0, 1)
        for projection, x in (
            (module.q_proj, query),
            (module.k_proj, memory),
            (module.v_proj, memory),
        )
    )
    scores = q @ k.transpose(1, 2) / math.sqrt(width // heads)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return module.out_proj((weights @ v).transpose(0, 1).reshape(len(query), width))


def _layer(layer: nn.Module, x: Tensor, hidden: Tensor, *memory: Tensor) -> Tensor:
    x = layer.self_attn_layer_norm(x + _attend(layer.self_attn, x, x, hidden))
    if memory:
        x = layer.encoder_attn_layer_norm(x + _attend(layer.encoder_attn, x, *memory))
    inner = functional.gelu(layer.fc1(x))
    return layer.final_layer_norm(x + layer.fc2(inner))


def _positions(table: Tensor, tokens: Tensor) -> Tensor:
    """Learned positions count from padding index + 1; padding has the row of zeros."""
    rows = [PAD if t == PAD else PAD + 1 + i for i, t in enumerate(tokens.tolist())]
    return table[rows]


def _plain_logits(model: nn.Module, source: Tensor, tokens: Tensor, scale: float) -> Tensor:
    """One row of the network written out, as the description has it; [W, V]."""
    encoder, decoder = model.encoder, model.decoder
    table = encoder.embed_tokens.weight
    embedded = table[source]
    keys = scale * embedded + _positions(encoder.embed_positions.weight, source)
    padding = source.eq(PAD)
    states = keys * ~padding[:, None]
    for layer in encoder.layers:
        states = _layer(layer, states, padding)
    positions = _positions(decoder.embed_positions.weight, tokens)
    scores = (positions @ decoder.copy_attn.weight.T) @ keys.T
    mixture = scores.masked_fill(padding, -math.inf).softmax(-1) @ embedded
    x = torch.where(tokens.eq(MASK)[:, None], mixture, table[tokens])
    hidden = tokens.eq(PAD).repeat(len(tokens), 1)
    for layer in decoder.layers:
        x = _layer(layer, x + positions, hidden, states, padding)
    return x @ table.T


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_forward_is_what_the_description_says(scaled: bool, training: bool) -> None:
    changes = {"scale_encoder_embedding": scaled}
    model = build_drafter(apply_bert_init=False, **changes).double()
    model.train(training)
    with torch.no_grad():
        out = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED)
        scale = 4.0 if scaled else 1.0  # sqrt of the width, 16
        expected = [
            _plain_logits(model, SOURCE[row], INPUT[row], scale)[SCORED[row]] for row in range(2)
        ]
    # In float64, but fairseq computes its GELU in float32.
    torch.testing.assert_close(out.logits, torch.cat(expected), rtol=0, atol=1e-6)
    assert out.targets.tolist() == [14, EOS, 15, EOS]
    assert out.num_masked == 4


def test_without_the_copy_masks_are_the_unk_embedding() -> None:
    model = build_drafter(src_embedding_copy=False).eval()
    assert "decoder.copy_attn.weight" not in model.state_dict()
    with torch.no_grad():
        before = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED).logits
        model.decoder.embed_tokens.weight[MASK] += 1
        after = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED).logits
    assert (before - after).abs().max() > 1e-3


def test_rows_do_not_depend_on_their_padding() -> None:
    model = build_drafter(apply_bert_init=False).double().eval()
    with torch.no_grad():
        both = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED).logits[2:]
        alone = model(
            SOURCE[1:, :3], LENGTHS[1:], INPUT[1:, :3], TARGET[1:, :3], SCORED[1:, :3]
        ).logits
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-6)


def _glance(context_p: float) -> Glance:
    return Glance(context_p, torch.Generator().manual_seed(3))


def test_both_passes_use_the_same_dropout() -> None:
    """With nothing to reveal, the glancing pass must leave no trace in the random numbers."""
    model = build_drafter(dropout=0.5).train()
    torch.manual_seed(5)
    plain = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED)
    torch.manual_seed(5)
    glanced = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED, _glance(0.0))
    assert torch.equal(plain.logits, glanced.logits)
    # What was predicted right while glancing is what the scored pass predicts right.
    assert glanced.num_right == glanced.logits.argmax(-1).eq(glanced.targets).sum()


def test_revealed_positions_are_not_scored_and_every_parameter_has_a_gradient() -> None:
    model = build_drafter().train()
    out = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED, _glance(0.5))
    assert (out.num_right, out.targets.numel(), out.num_masked) == (0, 2, 4)  # fresh weights
    out = model(SOURCE, LENGTHS, INPUT, TARGET, SCORED, _glance(1.0))
    assert (out.num_right, out.logits.shape) == (0, (0, 30))
    out.logits.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_normalize_before": True}, "--decoder-normalize-before is not supported"),
        ({"adaptive_input": True}, "--adaptive-input"),
        ({"decoder_attention_heads": 3}, "--decoder-attention-heads is 3, which does not divide"),
    ],
)
def test_networks_that_it_is_not_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(message, build_drafter, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_encoder_embedding": True},
        {"src_embedding_copy": False},
        {"share_all_embeddings": False},
        {"scale_decoder_embedding": True},
        {"encoder_learned_pos": False, "decoder_learned_pos": False, "activation_fn": "relu"},
    ],
)
def test_the_network_that_decodes_gives_the_same_logits(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = build_drafter(apply_bert_init=False, **changes).eval()
    settings = drafter_args(apply_bert_init=False, block_size=2, **changes)
    save_checkpoint({"model": model.state_dict(), "args": settings}, tmp_path / "drafter.pt")
    twin: Any = read_model(tmp_path / "drafter.pt").network(torch.float32, torch.device("cpu"))
    with torch.no_grad():
        expected = model(SOURCE, LENGTHS, INPUT, INPUT, SCORED).logits
        states, padding_mask = twin.encoder(SOURCE)
        memory = SourceMemory(
            lengths=LENGTHS,
            padding_mask=padding_mask,
            keys_values=twin.decoder.keys_values(states),
            extras=twin.copied(SOURCE),
        ).trimmed()
        states = twin.decoder(INPUT, memory, prefix_lengths=torch.tensor([3, 1]))
        actual = twin.decoder.logits(states[SCORED])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
