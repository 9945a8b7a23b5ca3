"""A beam search finds the texts of transformers' `generate(num_beams=N)`."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.engine import EngineConfig
from specdec_plugins.decoding.networks import with_fast_products
from specdec_plugins.decoding.requests import BeamParams, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.formats.pretrained.random_models import (
    CASES,
    CONFIGS,
    LARGER,
    Pair,
    language_of,
    load,
    save,
)

# What a search is asked for beside the model's own settings; each with its size.
ASKED: list[tuple[int, dict[str, Any]]] = [
    (2, {"length_penalty": 1.0, "early_stopping": False}),
    (5, {"length_penalty": 0.0, "early_stopping": True}),
    (4, {"length_penalty": 1.6, "early_stopping": "never"}),
    (8, {"length_penalty": 0.6, "early_stopping": False, "no_repeat_ngram_size": 2}),
    (3, {"min_length": 7, "repetition_penalty": 1.3, "bad_words_ids": [[9], [11, 12], [55]]}),
    (3, {"renormalize_logits": True, "suppress_tokens": [*range(5, 50, 5)], "max_length": 15}),
    (1, {}),
]


@pytest.fixture(scope="module", params=(*CONFIGS, *LARGER))
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, tmp_path_factory.mktemp("folder")


def searches(pair: Pair, jobs: list[Request], size: int, num_best: int) -> list[list[int]]:
    own = pair.generation
    beam = BeamParams(size, num_best, own.length_penalty, finishing=own.finishing)
    jobs = [replace(job, params=replace(job.params, beam=beam)) for job in jobs]
    verifier = TransformerVerifier(pair.network, pair.special)
    config = EngineConfig(max_rows=3, constraints=own.constraints)
    found = BeamDecoder(verifier, config).decode(jobs)
    return [pair.their_ids(h.token_ids) for result in found for h in result.hypotheses]


def test_texts_are_those_of_generate(folder: tuple[str, Path]) -> None:
    """All hypotheses, of a ragged batch that sentences join as others leave."""
    (case, path), lengths = folder, set()
    name, changes = CASES[case]
    for seed, (size, asked) in enumerate(ASKED if case in CONFIGS else ASKED[2:5]):
        save(path, name, seed, asked=asked, ends=3, **changes)
        pair = load(path, language_of(case))
        source = pair.sources()
        found = searches(pair, pair.requests(source, block_size=0), size, num_best=size)
        wanted = pair.generate(source, num_beams=size, num_return_sequences=size)
        assert found == wanted, asked
        lengths |= set(map(len, found))
    assert len(lengths) > 4


@pytest.mark.parametrize("name", ["madlad400-3b-mt", "umt5-small"])
def test_the_kernels_find_the_texts_of_relative_positions(name: str, tmp_path: Path) -> None:
    """A hypothesis has its tokens at any places of the cache."""
    save(tmp_path, name, seed=1, ends=3)
    pair = load(tmp_path)
    source = pair.sources()
    wanted = pair.generate(source, num_beams=4, num_return_sequences=4)
    fast = replace(pair, network=with_fast_products(deepcopy(pair.network).float()))
    assert searches(fast, fast.requests(source, block_size=0), 4, num_best=4) == wanted


def test_a_beginning_that_the_caller_forces_is_not_scored(tmp_path: Path) -> None:
    save(tmp_path, "opus-mt-en-de", ends=3)
    pair = load(tmp_path)
    source, forced = pair.sources(4), [13, 17]
    jobs = pair.requests(source, block_size=0)
    jobs = [
        replace(job, forced_ids=[pair.target_order.index(token) for token in forced])
        for job in jobs
    ]
    start = pair.config.decoder_start_token_id
    begun = source.new_tensor([[start, *forced]] * 4)
    options = {"num_beams": 4, "num_return_sequences": 4, "decoder_input_ids": begun}
    assert searches(pair, jobs, 4, num_best=4) == pair.generate(source, **options)
