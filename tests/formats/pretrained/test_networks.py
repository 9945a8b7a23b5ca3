"""Folders of transformers say here what they say there: logits, and texts of every drafter."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specdec_plugins.decoding.contract import Drafter
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import (
    BlockDrafter,
    MedusaConfig,
    MedusaHeads,
    Transformer,
    with_fast_products,
)
from specdec_plugins.decoding.networks.cpu import products
from specdec_plugins.decoding.requests import FinishReason
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.training.networks import drafter_config
from tests.decoding.networks.toys import full_logits, randomise
from tests.formats.pretrained.random_models import (
    CASES,
    CONFIGS,
    VOCAB,
    Pair,
    language_of,
    load,
    save,
)

Folders = Callable[[str, int], Pair]

# What generation asks for beside the model's own settings, by the seed of the weights.
_PHRASES = [[VOCAB - 1], [9], *([a, b] for a in range(10, 40, 2) for b in range(10, 40, 3))]
ASKED: dict[int, dict[str, Any]] = {
    0: {},
    1: {
        **{"no_repeat_ngram_size": 2, "bad_words_ids": [*_PHRASES, [11, 12, 13]], "min_length": 9},
        **{"repetition_penalty": 1.1, "begin_suppress_tokens": [*range(4, 50, 2)]},
    },
    2: {
        **{"max_new_tokens": 17, "min_new_tokens": 6, "no_repeat_ngram_size": 1},
        **{"suppress_tokens": [*range(5, 50, 7)], "begin_suppress_tokens": [*range(4, 40)]},
    },
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made: dict[tuple[str, int], Pair] = {}

    def pair(case: str, seed: int) -> Pair:
        if (case, seed) not in made:
            name, changes = CASES[case]
            folder: Path = tmp_path_factory.mktemp("folder")
            save(folder, name, seed, asked=ASKED[seed], **changes)
            made[case, seed] = load(folder, language_of(case))
        return made[case, seed]

    return pair


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_theirs(case: str, seed: int, pairs: Folders) -> None:
    pair = pairs(case, seed)
    source = pair.sources(3)
    target = torch.randint(3, 50, (3, 9), generator=torch.Generator().manual_seed(seed))
    target[:, 0] = pair.config.decoder_start_token_id
    with torch.inference_mode():
        theirs = pair.theirs(
            input_ids=source,
            attention_mask=source != pair.config.pad_token_id,
            decoder_input_ids=target,
        ).logits
    tokens = pair.our_ids(pair.target_order, target)
    tokens[:, 0] = pair.generation.start
    found = full_logits(pair.network, pair.our_ids(pair.source_order, source), tokens)
    wanted = theirs[..., pair.target_order]
    if len(pair.target_order) > theirs.shape[-1]:
        assert found[..., 0].max() < -1000  # a copy, which may not be emitted
        found, wanted = found[..., 1:], wanted[..., 1:]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def block_network(pair: Pair, is_fast: bool) -> BlockDrafter:
    """A random block drafter that reads the verifier's encoder."""
    shape = drafter_config(pair.network.config, block_size=8)
    if not is_fast:
        shape = replace(shape, cached_prefix=False, sequential_head=0, head_attention=0)
    network = BlockDrafter(shape)
    randomise(network, seed=1)
    network.encoder.load_state_dict(pair.network.encoder.state_dict())
    assert TransformerVerifier(pair.network, pair.special).encodes_like(network.encoder)
    return network


def heads(pair: Pair) -> MedusaHeads:
    network = MedusaHeads(MedusaConfig(num_heads=6, dim=pair.network.config.decoder.dim))
    randomise(network, seed=2)
    return network


def assistant(pair: Pair) -> Transformer:
    """The verifier with noise, so that some of what it says is right."""
    network = deepcopy(pair.network)
    generator = torch.Generator().manual_seed(3)
    for tensor in network.parameters():
        tensor += 0.03 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    return network


DRAFTERS_OF: dict[str, Callable[[Pair], tuple[str, nn.Module | None]]] = {
    "lookup": lambda pair: ("lookup", None),
    "early_exit": lambda pair: ("early_exit", None),
    "assistant": lambda pair: ("assistant", assistant(pair)),
    "medusa": lambda pair: ("medusa", heads(pair)),
    "block": lambda pair: ("block", block_network(pair, False)),
    "fast block": lambda pair: ("block", block_network(pair, True)),
}


def decoder_of(
    pair: Pair, drafter: str | None, rule: str = "exact", network: Transformer | None = None
) -> SpeculativeDecoder:
    verifier = TransformerVerifier(network or pair.network, pair.special)
    built: Drafter | None = None
    if drafter is not None:
        name, weights = DRAFTERS_OF[drafter](pair)
        weights = weights if network is None or weights is None else weights.float()
        built = DRAFTERS.build(name, DraftContext(verifier, weights))
    method = Method(built, RULES.get(rule)(), SCHEDULES.build("constant"))
    config = EngineConfig(max_rows=4, constraints=pair.generation.constraints)
    return SpeculativeDecoder(verifier, method, config)


@pytest.mark.parametrize("case", CASES)
def test_texts_are_theirs_with_every_drafter(case: str, pairs: Folders) -> None:
    """With each of the settings half of the drafters, so that each two meet in some case."""
    num_accepted, reasons = 0, set()
    for seed in ASKED:
        pair = pairs(case, seed)
        source = pair.sources()
        wanted = pair.generate(source)
        half = [*DRAFTERS_OF][([*CASES].index(case) + seed) % 2 :: 2]
        for drafter in (None, *half) if case in CONFIGS else (None, half[-1]):
            jobs = pair.requests(source, block_size=6)
            decoder = decoder_of(pair, drafter, "top_beta" if seed == 1 else "exact")
            results = decoder.decode(jobs)
            assert [pair.their_ids(r.token_ids) for r in results] == wanted, (drafter, seed)
            num_accepted += decoder.stats.accepted
            reasons |= {r.finish_reason for r in results}
    assert num_accepted > 50 or case not in CONFIGS
    assert FinishReason.EOS in reasons


@pytest.mark.parametrize("case", CONFIGS)
def test_the_kernels_say_it_in_float32_and_their_own_in_8_bits(
    case: str, pairs: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pairs(case, 1)
    source = pair.sources()
    jobs, wanted = pair.requests(source, block_size=6), pair.generate(source)
    for int8, large in ((False, 0), (True, products.LARGE_TABLE), (True, 0)):
        monkeypatch.setattr(products, "LARGE_TABLE", large)
        network = with_fast_products(deepcopy(pair.network).float(), int8)
        alone = [r.token_ids for r in decoder_of(pair, None, network=network).decode(jobs)]
        if not int8:
            assert list(map(pair.their_ids, alone)) == wanted
        for drafter in ("lookup", "early_exit", "fast block"):
            found = decoder_of(pair, drafter, network=network).decode(jobs)
            assert [r.token_ids for r in found] == alone


LENGTHS = (1024, 3, 700, 1023, 64, 2, 1000)  # of sources; BART's positions are 1,024


@pytest.fixture(scope="module")
def summariser(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, torch.Tensor]:
    """A BART with all of its positions, and articles of these lengths that repeat themselves."""
    folder = tmp_path_factory.mktemp("summariser")
    save(folder, "bart-large-cnn", seed=0, max_position_embeddings=max(LENGTHS))
    pair = load(folder)
    source = torch.full((len(LENGTHS), max(LENGTHS)), Dictionary.pad)
    generator = torch.Generator().manual_seed(1)
    for row, length in zip(source, LENGTHS, strict=True):
        phrases = torch.randint(4, 50, (40, 5), generator=generator)
        text = phrases[torch.randint(40, (length // 5 + 1,), generator=generator)].flatten()
        row[:length] = torch.cat([text[: length - 1], torch.tensor([Dictionary.eos])])
    return pair, source


@pytest.mark.parametrize("drafter", [None, "lookup", "block", "fast block"])
def test_summaries_of_long_articles_are_theirs(
    drafter: str | None, summariser: tuple[Pair, torch.Tensor]
) -> None:
    """In a batch of four, which the others join and leave as they end."""
    pair, source = summariser
    wanted = pair.generate(source)
    assert len(set(map(tuple, wanted))) == len(wanted)
    jobs = pair.requests(source, block_size=6)
    fast = with_fast_products(deepcopy(pair.network).float(), False, "native")
    for network in (None, fast):
        decoder = decoder_of(pair, drafter, network=network)
        results = decoder.decode(jobs)
        assert [pair.their_ids(r.token_ids) for r in results] == wanted
        assert decoder.stats.accepted > 0 or drafter is None
