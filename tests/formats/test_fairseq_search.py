from __future__ import annotations

from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.decoding.batch import collate
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.greedy import greedy
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.types import DecodeParams, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.fairseq_search import FairseqSearch, SearchConfig, load_fairseq_search
from specdec_plugins.formats.models import load_network
from tests import fairseq_checkpoints
from tests.decoding.networks.toys import random_ids
from tests.refusals import refused

pytestmark = pytest.mark.fairseq


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = fairseq_checkpoints.dictionaries(tmp_path_factory.mktemp("data"))
    fairseq_checkpoints.write(data, share_all_embeddings=True).rename(data / "model.pt")
    return data


def load(folder: Path, **options: Any) -> FairseqSearch:
    config = SearchConfig(**{"max_len_b": 12, **options})
    return load_fairseq_search(folder / "model.pt", folder, config, dtype=torch.float64)


def sources(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [[*random_ids(generator, 1 + i % 7), Dictionary.eos] for i in range(count)]


def has_repeated_pair(ids: list[int]) -> bool:
    return len(set(pairwise(ids))) < len(ids) - 1


@pytest.mark.parametrize("count", [1, 7, 20])
def test_every_sentence_comes_back_in_its_place(count: int, folder: Path) -> None:
    search = load(folder, beam=2)
    rows = sources(count)
    together = search.search(rows)
    assert len(together) == count
    for row, hypotheses in zip(rows, together, strict=True):
        [alone] = search.search([row])
        assert [h.token_ids for h in hypotheses] == [h.token_ids for h in alone]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone])
        assert hypotheses[0].score == max(h.score for h in hypotheses)


def test_beam_1_is_greedy_under_the_same_bans(folder: Path) -> None:
    dictionary = Dictionary.load(folder / "dict.en.txt")
    network = load_network(
        Transformer, folder / "model.pt", dictionary, dictionary, dtype=torch.float64
    )
    # fairseq does not count eos in its limit
    params = DecodeParams(max_len=13, min_len=1)
    requests = [Request(str(i), row, params) for i, row in enumerate(sources(9))]
    device = torch.device("cpu")
    expected = greedy(
        TransformerVerifier(network, dictionary.special),
        collate(requests, dictionary.pad, dictionary.eos, device),
        DecodeParams.stack([params] * 9, device),
        Constraints(((dictionary.pad,),)),
    )
    found = [hypotheses[0].token_ids for hypotheses in load(folder, beam=1).search(sources(9))]
    for mine, theirs in zip(expected, found, strict=True):
        assert mine[:12] == theirs[:12]  # the last one may be eos by force
    assert len({tuple(row) for row in found}) > 1


def test_prefixes_are_forced_row_by_row(folder: Path) -> None:
    search = load(folder, beam=3)
    prefixes = [[7, 8], [], [9]]
    rows = search.search(sources(3), prefixes)
    for prefix, source, hypotheses in zip(prefixes, sources(3), rows, strict=True):
        assert all(h.token_ids[: len(prefix)] == prefix for h in hypotheses)
        [alone] = search.search([source], [prefix])
        assert [h.token_ids for h in alone] == [h.token_ids for h in hypotheses]


def test_limits_count_each_sources_own_length(folder: Path) -> None:
    search = load(folder, beam=1, max_len_a=1.0, max_len_b=1)
    rows = sources(7)
    for row, [hypothesis] in zip(rows, search.search(rows), strict=True):
        assert len(hypothesis.token_ids) <= len(row) + 2  # eos is not counted
        assert hypothesis.token_ids == search.search([row])[0][0].token_ids


def test_flags_reach_the_search(folder: Path) -> None:
    rows = sources(7)
    free = [h[0].token_ids for h in load(folder, beam=1).search(rows)]
    blocked = [h[0].token_ids for h in load(folder, beam=1, no_repeat_ngram_size=2).search(rows)]
    assert any(has_repeated_pair(ids) for ids in free)
    assert not any(has_repeated_pair(ids) for ids in blocked)
    assert all(len(h) == 4 for h in load(folder, beam=4).search(rows))
    long = load(folder, beam=4, min_len=9).search(rows)
    assert all(len(h.token_ids) >= 10 for row in long for h in row)
    plain, total = (load(folder, beam=1, lenpen=p).search(rows)[0][0] for p in (1.0, 0.0))
    assert total.score == pytest.approx(plain.score * len(plain.token_ids))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "--beam must be 1 or more"),
        ({"max_len_b": -1}, "--max-len-b must be 0 or more"),
        ({"max_len_a": -0.5}, "--max-len-a must be 0 or more"),
        ({"min_len": 13}, r"--min-len must be between 0 and --max-len-b \(12\), not 13"),
        ({"no_repeat_ngram_size": 1}, r"--no-repeat-ngram-size must be 0 \(off\) or 2 or more"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    refused(message, SearchConfig, **{"max_len_b": 12, **options})


def test_what_cannot_be_loaded_is_named(folder: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.pt"
    refused("nowhere.pt: no such checkpoint", load_fairseq_search, nowhere, folder, SearchConfig())
    other = fairseq_checkpoints.dictionaries(tmp_path, 12, 12)
    for data in (other, tmp_path / "empty"):
        message = "model.pt: fairseq cannot load it with the dictionaries in"
        refused(message, load_fairseq_search, folder / "model.pt", data, SearchConfig())


def test_a_drafter_and_an_unknown_task_are_refused(folder: Path, tmp_path: Path) -> None:
    settings = Namespace(arch="block_base", task="translation_lev_modified", data="nowhere")
    for arch, message in (("block_base", "is a block drafter"), ("lightconv", "cannot load it")):
        settings.arch = arch
        torch.save({"model": {}, "args": settings}, tmp_path / "other.pt")
        message = f"other.pt: .*{message}"
        refused(message, load_fairseq_search, tmp_path / "other.pt", folder, SearchConfig())
