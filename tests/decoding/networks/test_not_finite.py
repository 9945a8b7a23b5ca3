"""Networks that compute NaN or overflow: the row ends with an error, whatever computes it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.networks.cpu.products import with_fast_products
from specdec_plugins.decoding.requests import FinishReason, RowResult
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.networks.toys import randomise, sentences, transformer
from tests.decoding.toys import SPECIAL, method_of

# The second source alone contains this type.
OWN = 22
JOBS = [
    replace(job, source_ids=[OWN if i == 1 else 4, *[t for t in job.source_ids if t != OWN]])
    for i, job in enumerate(sentences(3, block_size=0, max_len=12, min_len=8))
]
COMPUTED = {
    "float32": lambda network: with_fast_products(network.float()),
    "int8": lambda network: with_fast_products(network.float(), int8=True),
    "float32 by torch": lambda network: with_fast_products(network.float(), kernels="torch"),
    "bfloat16": lambda network: network.bfloat16(),
}
SOURCES, TARGETS = "encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight"
# What is set to which value, and where; everywhere = None. A norm's gain of 3e38 makes the next
# product overflow.
FAULTS = {
    "a NaN for the first token": (TARGETS, (SPECIAL.start, 3), math.nan),
    "an overflow in the encoder": ("encoder.layers.0.ffn_norm.weight", None, 3e38),
    "an overflow in the decoder": ("decoder.layers.0.ffn_norm.weight", None, 3e38),
    "a NaN weight of the encoder": ("encoder.layers.0.up.weight", (5, 3), math.nan),
    "a NaN weight of the decoder": ("decoder.layers.1.down.weight", (5, 3), math.nan),
    "an infinite weight": ("decoder.layers.0.self_attention.qkv.weight", (0, 5), math.inf),
    "a NaN weight of the projection": ("decoder.output.weight", (5, 3), math.nan),
}


def spoilt(before: bool, name: str, where: tuple[int, int] | None, value: float) -> Transformer:
    """A network with that value; `before`: with norms before each block and a final one."""
    config = transformer().config
    both = {"normalize_before": before, "final_norm": before}
    encoder, decoder = replace(config.encoder, **both), replace(config.decoder, **both)
    network = Transformer(replace(config, encoder=encoder, decoder=decoder))
    randomise(network, 0)
    network.get_parameter(name)[where or ...] = value
    return network


def decoded(network: Transformer, computed: str) -> list[RowResult]:
    verifier = TransformerVerifier(COMPUTED[computed](network), SPECIAL)
    return SpeculativeDecoder(verifier, method_of(None), EngineConfig(3)).decode(JOBS)


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("before", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_of_no_numbers_ends_with_an_error(fault: str, before: bool, computed: str) -> None:
    for result in decoded(spoilt(before, *FAULTS[fault]), computed):
        assert (result.finish_reason, result.token_ids) == (FinishReason.ERROR, [])


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("value", [math.nan, 3e38])
def test_a_source_of_no_numbers_fails_alone(value: float, computed: str) -> None:
    network = spoilt(False, SOURCES, (OWN, 0), value)
    healthy = decoded(spoilt(False, SOURCES, (OWN, 0), 0.0), computed)
    for i, (result, expected) in enumerate(zip(decoded(network, computed), healthy, strict=True)):
        if i == 1:
            assert (result.finish_reason, result.token_ids) == (FinishReason.ERROR, [])
        else:
            assert result.token_ids == expected.token_ids
