"""Every engine on one small pair: the same words from all that decode greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import ASSISTANT, CTRANSLATE2, MARIAN, Job, Lengths, Output, convert, load
from benchmarks.engines.ours import Ours
from benchmarks.pair import Pair, Sentence
from benchmarks.random_pair import Shape, random_pair, random_sentences
from benchmarks.systems import ASSISTED, PROMPT_LOOKUP, System
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.bundles import CAPTIONS, ROOT, captions
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

LINES = (
    "Two dogs run across the grass.",
    "A man in a red shirt is climbing a wall.",
    "Children are playing.",
)
SHAPE = Shape.parse("1x64x50")
GREEDY, EXACT = (System("ours", role, "float32") for role in ("greedy", "exact"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def pair(work: Path) -> Pair:
    pair = Pair.of(CAPTIONS, "en", "de")
    convert(pair, (CTRANSLATE2, MARIAN, ASSISTANT), work)
    return pair


@pytest.fixture(scope="module")
def sentences(pair: Pair) -> list[Sentence]:
    text, dictionary = pair.text(), pair.dictionaries().source
    lines = [text.encode(line) for line in LINES]
    return [Sentence(n, s.split(), dictionary.encode_line(s)) for n, s in enumerate(lines, 1)]


def translate(
    system: System,
    pair: Pair,
    work: Path,
    sentences: Sequence[Sentence],
    lengths: Lengths | None = None,
) -> Output:
    job = Job(system, pair, lengths or Lengths(), "cpu", str(work), len(sentences), sentences)
    return load(job, threads=1).translate(sentences)


@pytest.fixture(scope="module")
def expected(pair: Pair, work: Path, sentences: list[Sentence]) -> list[list[str]]:
    """One token at a time, one sentence at a time."""
    return [translate(GREEDY, pair, work, [sentence]).tokens[0] for sentence in sentences]


@pytest.mark.parametrize(
    "system",
    [
        System("fairseq", "greedy", "float32"),
        System("ctranslate2", "greedy", "float32"),
        System("transformers", "greedy", "float32"),
        System("published", "exact", "float32"),
        EXACT,
        System("ours", "exact", "float32", {"k": 2}),
        System("ours", "scripted", "float32", {"acceptance": 0.5}),
    ],
    ids=lambda system: system.name,
)
def test_greedy_engines_agree_word_for_word(
    system: System, pair: Pair, work: Path, sentences: list[Sentence], expected: list[list[str]]
) -> None:
    assert translate(system, pair, work, sentences).tokens == expected
    assert len({len(tokens) for tokens in expected}) == len(LINES)


def test_the_published_program_encodes_twice_and_keeps_nothing(tmp_path: Path) -> None:
    """Whatever the pair's drafter was trained for; the bundled one needs neither."""
    pair = Pair.of(ROOT / "data" / "models" / "en-de", None, None)
    line = pair.text().encode("Click the button to continue.")
    sentence = Sentence(1, line.split(), pair.dictionaries().source.encode_line(line))
    job = Job(System("published", "exact", "float32"), pair, Lengths(), "cpu", "", 1, [sentence])
    engine = load(job, threads=1)
    assert isinstance(engine, Ours)
    drafter = engine.decoder.method.drafter
    assert isinstance(drafter, BlockNatDrafter)
    verifier = engine.decoder.verifier
    assert isinstance(verifier, TransformerVerifier)
    encoded: list[int] = []
    widths: dict[Any, list[int]] = {drafter.network.decoder: [], verifier.network.decoder: []}
    drafter.network.encoder.register_forward_hook(lambda *_: encoded.append(1))
    for module, seen in widths.items():
        module.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0].shape))
    output = engine.translate([sentence])
    assert len(encoded) == 2  # the verifier has the same encoder
    assert output.stats is not None
    for seen in widths.values():
        assert len(seen) == output.stats.rounds > 1
        # The last pass reads all that came before it.
        assert seen[-1][1] > len(output.tokens[0]) > seen[0][1]
    assert output.tokens == translate(GREEDY, pair, tmp_path, [sentence]).tokens


@pytest.mark.parametrize("role", [PROMPT_LOOKUP, ASSISTED])
def test_assisted_generation_changes_nothing(
    role: str, pair: Pair, work: Path, sentences: list[Sentence], expected: list[list[str]]
) -> None:
    system = System("transformers", role, "float32")
    for sentence, tokens in zip(sentences, expected, strict=True):
        assert translate(system, pair, work, [sentence]).tokens == [tokens]


def test_a_bundle_is_a_pair(
    tmp_path: Path, sentences: list[Sentence], expected: list[list[str]]
) -> None:
    pair = Pair.of(captions(tmp_path / "en-de", defaults={"beta": 3, "tau": 1.0}), None, None)
    assert (pair.name, pair.drafter) == ("en-de", "block")
    assert "4+4 layers, 128 wide, 7,952 types" in pair.describe()["verifier"]
    assert pair.text().encode(LINES[0]).split() == sentences[0].tokens
    convert(pair, [CTRANSLATE2], tmp_path)
    # What the bundle says of beta is no matter of exact systems.
    for engine, role in (("fairseq", "greedy"), ("ctranslate2", "greedy"), ("ours", "exact")):
        output = translate(System(engine, role, "float32"), pair, tmp_path, sentences)
        assert output.tokens == expected


def test_beams_agree(pair: Pair, work: Path, sentences: list[Sentence]) -> None:
    fairseq, ctranslate2 = (
        translate(System(engine, "beam 5", "float32"), pair, work, sentences).tokens
        for engine in ("fairseq", "ctranslate2")
    )
    assert fairseq == ctranslate2


def test_relaxed_decoding_takes_no_more_rounds(
    pair: Pair, work: Path, sentences: list[Sentence]
) -> None:
    relaxed = System("ours", "relaxed", "float32", {"beta": 5, "tau": 3.0})
    loose, exact, plain = (
        translate(system, pair, work, sentences).stats.rounds  # type: ignore[union-attr]
        for system in (relaxed, EXACT, GREEDY)
    )
    assert loose <= exact < plain


def test_int8_speculates_without_changing_a_word(
    pair: Pair, work: Path, sentences: list[Sentence]
) -> None:
    exact, plain, peer = (
        translate(System(engine, role, "int8"), pair, work, sentences).tokens
        for engine, role in (("ours", "exact"), ("ours", "greedy"), ("ctranslate2", "greedy"))
    )
    assert exact == plain
    assert all(exact)
    assert all(peer)


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_scripted_acceptance_never_and_always(
    acceptance: float, pair: Pair, work: Path, sentences: list[Sentence]
) -> None:
    system = System("ours", "scripted", "float32", {"acceptance": acceptance})
    stats = translate(system, pair, work, sentences).stats
    assert stats is not None
    # Later positions may lie behind the end of the sentence.
    assert stats.acceptance_by_position[0] == acceptance


def test_random_weights_are_decoded_to_one_length(tmp_path: Path) -> None:
    pair = random_pair(SHAPE, tmp_path)
    convert(pair, (CTRANSLATE2, MARIAN), tmp_path)
    lengths = Lengths(min_len=6, max_len=7)
    assert lengths.fixed
    sentences = random_sentences(SHAPE, 2).sentences
    for engine in ("fairseq", "ctranslate2", "transformers", "ours"):
        system = System(engine, "greedy", "float32")
        found = translate(system, pair, tmp_path, sentences, lengths).tokens
        assert {len(tokens) for tokens in found} == {6 if engine == "fairseq" else 7}, engine


def test_systems_that_draft_want_a_drafter(tmp_path: Path) -> None:
    pair = random_pair(SHAPE, tmp_path)
    alone = replace(pair, settings=replace(pair.settings, strategy="AR"))
    given = (EXACT, alone, tmp_path, random_sentences(SHAPE, 1).sentences)
    refused("holds no drafter, which 'ours exact' needs", translate, *given)


@pytest.mark.parametrize("text", ["6x512", "0x64x50", "2x100x50", "2x64x3"])
def test_shapes_that_cannot_be_are_refused(text: str) -> None:
    refused(f"--random-weights {text}", Shape.parse, text)
