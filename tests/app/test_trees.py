"""`--tree N` from the settings to the text, with the bundled pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specdec_plugins.app.main import parse_options
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.types import Case, Guarantee, Verdict
from specdec_plugins.serving.model import load_model
from specdec_plugins.serving.settings import ModelOptions
from tests.bundles import captions
from tests.refusals import refused

LINES = ["Restart the server after the update.", "Who is there?", "The garden is full of birds."]
SAMPLING = {"rule": "speculative_sampling", "temperature": 0.8, "seed": 5, "block_size": 8}


def decoded(**settings: object) -> tuple[list[list[str]], SpeculativeTranslator]:
    translator = SpeculativeTranslator.from_pretrained(device="cpu", **settings)
    return [t.tokens for t in translator.translate(LINES)], translator


def test_a_seed_gives_the_text_that_it_gives_without_a_drafter() -> None:
    plain = SAMPLING | {"strategy": "AR"}
    del plain["block_size"]
    expected, _ = decoded(**plain)
    for tree in (1, 6, 24):
        assert decoded(tree=tree, batch=2, **SAMPLING)[0] == expected


def test_larger_trees_take_fewer_rounds_and_tolerant_rules_fewer_still() -> None:
    rounds = [decoded(tree=tree)[1].stats.rounds for tree in (1, 4, 24)]
    rounds.append(decoded(tree=24, beta=5, tau=2.0)[1].stats.rounds)
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[0] > rounds[2]


def test_the_command_line_and_the_server_take_it() -> None:
    settings, _ = parse_options(["--tree", "8"])
    assert settings.tree == 8
    expected, translator = decoded()
    model = load_model(ModelOptions(tree=8, device="cpu"))
    jobs = [translator.prepare(sentence) for sentence in number_sentences(LINES)]
    greedy = [replace(job, params=replace(job.params, top_k=1)) for job in jobs]
    results = model.decoder.decode(greedy)
    assert [model.codec.tokens(result.token_ids) for result in results] == expected
    assert isinstance(model.decoder.method.drafter, BlockNatDrafter)
    assert model.decoder.method.drafter.tree_size == 8


def test_what_cannot_draft_or_judge_trees_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headless = str(captions(tmp_path / "captions"))
    message = "--tree needs a drafter with a sequential head .* and this one has none; omit it"
    refused(message, SpeculativeTranslator.from_pretrained, headless, tree=4, device="cpu")

    @dataclass(frozen=True)
    class ChainsOnly:
        samples: bool = False

        def guarantee(self, beta: int) -> Guarantee:
            return Guarantee.NONE

        def judge(self, case: Case) -> Verdict:
            raise NotImplementedError

    monkeypatch.setitem(RULES._entries, "chains", ChainsOnly)
    models = {"data": "d", "verifier": "v", "drafter_checkpoint": "p"}
    refused(
        "--rule chains judges chains only; omit --tree", Settings, **models, rule="chains", tree=4
    )
