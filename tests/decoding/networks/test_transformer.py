"""The inference networks against fairseq's own modules, switch by switch, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.formats.dictionaries import Dictionary
from tests import fairseq_checkpoints
from tests.decoding.networks.toys import block_drafter, full_logits, trained_pair, transformer
from tests.refusals import refused

CASES: list[dict[str, Any]] = [
    *fairseq_checkpoints.SHAPES.values(),
    {"encoder_normalize_before": True},
    {"decoder_learned_pos": True},
    {"no_scale_embedding": True, "share_all_embeddings": True},
    {"activation_fn": "gelu_accurate", "decoder_normalize_before": True},
    {"activation_fn": "tanh"},
    {"activation_fn": "linear"},
    {"activation_fn": "relu_squared"},
    {"encoder_embed_dim": 12, "encoder_layers": 1, "decoder_layers": 3},
    {"decoder_input_dim": 8, "decoder_output_dim": 8},
    {"decoder_input_dim": 8, "decoder_output_dim": 8, "share_decoder_input_output_embed": True},
    {"encoder_embed_dim": 15, "encoder_attention_heads": 3},  # sinusoids of an odd width
]
PAD = Dictionary.pad


def _name(case: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in case.items()) or "default"


def _sources(left_pad: bool = False) -> Tensor:
    tokens = torch.randint(3, 30, (3, 9), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((9, 4, 6)):
        tokens[row, length - 1] = Dictionary.eos
        tokens[row, length:] = PAD
        if left_pad:
            tokens[row] = tokens[row].roll(9 - length)
    return tokens


@pytest.mark.fairseq
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_equals_fairseq_in_one_pass(case: dict[str, Any], tmp_path: Path) -> None:
    """Whichever side of a source fairseq pads."""
    model, network = trained_pair("transformer", Transformer, case, tmp_path)
    target = torch.randint(3, 25, (3, 11), generator=torch.Generator().manual_seed(2))
    logits = full_logits(network, _sources(), target)
    for source in (_sources(), _sources(left_pad=True)):
        with torch.no_grad(), fairseq_checkpoints.double_precision():
            expected, _ = model(source, (source != PAD).sum(1), target)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_runs_in_lower_precision(dtype: torch.dtype) -> None:
    network = transformer()
    generator = torch.Generator().manual_seed(4)
    source = torch.randint(3, 23, (2, 6), generator=generator)
    source[1, 3:] = PAD
    target = torch.randint(3, 23, (2, 8), generator=generator)
    expected = full_logits(network, source, target)
    logits = full_logits(network.to(dtype), source, target)
    assert logits.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("network", "change", "message"),
    [
        (transformer, {"encoder": {"num_heads": 3}}, "cannot be split over 3 attention heads"),
        (transformer, {"activation": "mish"}, "no activation 'mish'; choose one of: gelu"),
        (block_drafter, {"block_size": 0}, "block_size must be 1 or more, not 0"),
        (
            block_drafter,
            {"decoder_input_dim": 8, "share_embeddings": False, "tie_output": False},
            "no projection",
        ),
    ],
)
def test_configs_survive_a_round_trip_and_impossible_ones_are_refused(
    network: Callable[[], Any], change: dict[str, Any], message: str
) -> None:
    config = network().config
    values = config.to_dict()
    assert type(config).from_dict(values) == config
    stacks = {side: {**values[side], **change.get(side, {})} for side in ("encoder", "decoder")}
    refused(message, type(config).from_dict, {**values, **change, **stacks})
