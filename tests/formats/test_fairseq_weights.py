from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks.fairseq_names import network_state
from specdec_plugins.decoding.networks.trained import fill
from specdec_plugins.errors import UserError
from specdec_plugins.formats.models import upgrade


def test_old_names_become_new_ones() -> None:
    weight = torch.arange(6.0)[:, None]
    state = {
        "encoder.version": torch.tensor([3.0]),
        "encoder.embed_positions._float_tensor": torch.tensor([1.0]),
        "decoder.embed_positions.weights": torch.zeros(9, 1),
        "decoder.embed_out": weight,
        "encoder.layers.0.layer_norms.1.weight": weight,
        "decoder.layers.0.layer_norms.1.bias": weight,
        "decoder.layers.0.encoder_attn.in_proj_weight": weight,
        "decoder.layers.0.fc1.bias": weight,
    }
    upgraded = upgrade(state)
    assert set(upgraded) == {
        "decoder.output_projection.weight",
        "encoder.layers.0.final_layer_norm.weight",
        "decoder.layers.0.encoder_attn_layer_norm.bias",
        "decoder.layers.0.encoder_attn.q_proj.weight",
        "decoder.layers.0.encoder_attn.k_proj.weight",
        "decoder.layers.0.encoder_attn.v_proj.weight",
        "decoder.layers.0.fc1.bias",
    }
    assert upgraded["decoder.layers.0.encoder_attn.k_proj.weight"].tolist() == [[2.0], [3.0]]


def test_products_of_one_input_are_fused_in_order() -> None:
    names = [f"decoder.layers.1.self_attn.{letter}_proj.bias" for letter in "kvq"]
    state: dict[str, Tensor] = {n: torch.tensor([float(i)]) for i, n in enumerate(names)}
    fused = network_state(state, bidirectional=False)
    assert fused["decoder.layers.1.self_attention.qkv.bias"].tolist() == [2.0, 0.0, 1.0]
    assert len(fused) == 1


def test_weights_that_do_not_fit_are_named() -> None:
    network = nn.Linear(2, 3)
    fits = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
    fill(network, fits)
    with pytest.raises(UserError, match="the checkpoint lacks the weights bias;"):
        fill(network, {"weight": fits["weight"]})
    with pytest.raises(UserError, match="weights of another kind of model, gate;"):
        fill(network, {**fits, "gate": torch.zeros(1)})
    with pytest.raises(UserError, match="weights of unexpected size, bias;"):
        fill(network, {**fits, "bias": torch.zeros(4)})
    with pytest.raises(UserError, match="a, b, c and 2 more"):
        fill(network, {**fits, **dict.fromkeys("abcde", torch.zeros(1))})
