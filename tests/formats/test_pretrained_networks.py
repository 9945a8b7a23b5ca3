"""Folders of transformers say here what they say there: logits, and texts of every drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decoding.networks.toys import full_logits
from tests.formats.pretrained_models import CONFIGS, LANGUAGES, VARIANTS, Pair, load, save

CASES = {name: (name, dict[str, Any]()) for name in CONFIGS} | VARIANTS
Folders = Callable[[str, int], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made: dict[tuple[str, int], Pair] = {}

    def pair(case: str, seed: int) -> Pair:
        if (case, seed) not in made:
            name, changes = CASES[case]
            folder: Path = tmp_path_factory.mktemp("folder")
            save(folder, name, seed, **changes)
            made[case, seed] = load(folder, LANGUAGES.get(name))
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
