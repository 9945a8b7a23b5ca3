"""Every engine on one small pair: the same words from all that decode greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import Output, Workload, convert, load
from benchmarks.engines.ours import Ours
from benchmarks.pair import Pair, Sentence
from benchmarks.systems import ASSISTED, PROMPT_LOOKUP, System
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.bundles import BUNDLED, CAPTIONS, captions
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

LINES = (
    "Two dogs run across the grass.",
    "A man in a red shirt is climbing a wall.",
    "Children are playing.",
)
GREEDY, EXACT = (System("ours", role, "float32") for role in ("greedy", "exact"))
PEERS = ("ctranslate2", "transformers")


def encoded(pair: Pair, lines: Sequence[str] = LINES) -> list[Sentence]:
    text, dictionary = pair.text(), pair.dictionaries().source
    tokens = [text.encode(line) for line in lines]
    return [Sentence(n, s.split(), dictionary.encode_line(s)) for n, s in enumerate(tokens, 1)]


def translate(system: System, workload: Workload) -> Output:
    """All sentences at once."""
    together = replace(workload, max_batch=len(workload.sentences))
    return load(system, together, threads=1).translate(workload.sentences)


def scripted(acceptance: float) -> System:
    return System("ours", "scripted", "float32", {"acceptance": acceptance})


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    pair, work = Pair.of(CAPTIONS, "en", "de"), tmp_path_factory.mktemp("work")
    made = Workload(pair, encoded(pair), work=str(work))
    convert(made, (*PEERS, ASSISTED))
    return made


@pytest.fixture(scope="module")
def expected(workload: Workload) -> list[list[str]]:
    """One token at a time, one sentence at a time."""
    alone = [replace(workload, sentences=[sentence]) for sentence in workload.sentences]
    return [translate(GREEDY, one).tokens[0] for one in alone]


@pytest.mark.parametrize(
    "system",
    [
        System("fairseq", "greedy", "float32"),
        *(System(engine, "greedy", "float32") for engine in PEERS),
        System("ctranslate2", "greedy", "float32", {"workers": 2}),
        System("published", "exact", "float32"),
        EXACT,
        System("ours", "exact", "float32", {"k": 2}),
        scripted(0.5),
    ],
    ids=lambda system: system.name,
)
def test_greedy_engines_agree_word_for_word(
    system: System, workload: Workload, expected: list[list[str]]
) -> None:
    assert translate(system, workload).tokens == expected
    assert len({len(tokens) for tokens in expected}) == len(LINES)


def test_the_published_program_encodes_twice_and_keeps_nothing() -> None:
    """Whatever the pair's drafter was trained for; the bundled one needs neither."""
    pair = Pair.of(BUNDLED, None, None)
    workload = Workload(pair, encoded(pair, ["Click the button to continue."]))
    engine = load(System("published", "exact", "float32"), workload, threads=1)
    assert isinstance(engine, Ours)
    drafter = engine.decoder.method.drafter
    assert isinstance(drafter, BlockNatDrafter)
    verifier = engine.decoder.verifier
    assert isinstance(verifier, TransformerVerifier)
    times: list[int] = []
    widths: dict[Any, list[int]] = {drafter.network.decoder: [], verifier.network.decoder: []}
    drafter.network.encoder.register_forward_hook(lambda *_: times.append(1))
    for module, seen in widths.items():
        module.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0].shape))
    output = engine.translate(workload.sentences)
    assert len(times) == 2  # the verifier has the same encoder
    assert output.stats is not None
    for seen in widths.values():
        assert len(seen) == output.stats.rounds > 1
        # The last pass reads all that came before it.
        assert seen[-1][1] > len(output.tokens[0]) > seen[0][1]
    assert output.tokens == translate(GREEDY, workload).tokens


@pytest.mark.parametrize("role", [PROMPT_LOOKUP, ASSISTED])
def test_assisted_generation_changes_nothing(
    role: str, workload: Workload, expected: list[list[str]]
) -> None:
    system = System("transformers", role, "float32")
    for sentence, tokens in zip(workload.sentences, expected, strict=True):
        assert translate(system, replace(workload, sentences=[sentence])).tokens == [tokens]


def test_a_bundle_is_a_pair(tmp_path: Path, workload: Workload, expected: list[list[str]]) -> None:
    pair = Pair.of(captions(tmp_path / "en-de", defaults={"beta": 3, "tau": 1.0}), None, None)
    assert (pair.name, pair.drafter) == ("en-de", "block")
    assert "4+4 layers, 128 wide, 7,952 types" in pair.describe()["verifier"]
    assert encoded(pair) == workload.sentences
    bundled = replace(workload, pair=pair, work=str(tmp_path))
    convert(bundled, ["ctranslate2"])
    # What the bundle says of beta is no matter of exact systems.
    for engine, role in (("fairseq", "greedy"), ("ctranslate2", "greedy"), ("ours", "exact")):
        assert translate(System(engine, role, "float32"), bundled).tokens == expected


def test_beams_agree(workload: Workload) -> None:
    fairseq, ctranslate2, ours = (
        translate(System(engine, "beam 5", "float32"), workload).tokens
        for engine in ("fairseq", "ctranslate2", "ours")
    )
    assert fairseq == ctranslate2 == ours


def test_rounds_follow_what_is_accepted(workload: Workload) -> None:
    relaxed = System("ours", "relaxed", "float32", {"beta": 5, "tau": 3.0})
    systems = (relaxed, EXACT, GREEDY, *map(scripted, (0.0, 0.6, 1.0)))
    found: list[Any] = [translate(system, workload).stats for system in systems]
    loose, exact, plain, never, often, always = found
    assert loose.rounds <= exact.rounds < plain.rounds
    # Later positions may lie behind the end of the sentence.
    assert (never.acceptance_by_position[0], always.acceptance_by_position[0]) == (0.0, 1.0)
    assert 0 < often.acceptance_by_position[0] < 1


def test_int8_speculates_without_changing_a_word(workload: Workload) -> None:
    exact, plain, peer = (
        translate(System(engine, role, "int8"), workload).tokens
        for engine, role in (("ours", "exact"), ("ours", "greedy"), ("ctranslate2", "greedy"))
    )
    assert exact == plain
    assert all(exact)
    assert all(peer)


def test_systems_that_draft_want_a_drafter(workload: Workload) -> None:
    pair = replace(workload.pair, settings=replace(workload.pair.settings, strategy="AR"))
    told = "holds no drafter, which 'ours exact' needs"
    refused(told, translate, EXACT, replace(workload, pair=pair))
