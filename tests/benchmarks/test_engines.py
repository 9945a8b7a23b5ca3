"""Every engine on one small pair: the same words from all that decode greedily."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.engines import load
from benchmarks.engines.base import Job, Lengths, Output
from benchmarks.engines.converted import CTRANSLATE2, MARIAN, convert
from benchmarks.pair import Pair, Sentence
from benchmarks.random_pair import Shape, random_pair, random_sentences
from benchmarks.rows import Row
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import UserError

pytestmark = pytest.mark.fairseq

SHAPE = Shape.parse("2x64x50x1")
SENTENCES = list(random_sentences(SHAPE, 4).sentences)
LENGTHS = Lengths(min_len=1, max_len=12)
GREEDY = Row("ours", "greedy", "float32")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def pair(work: Path) -> Pair:
    pair = random_pair(SHAPE, work)
    convert(pair, (CTRANSLATE2, MARIAN), work)
    return pair


def translate(
    row: Row,
    pair: Pair,
    work: Path,
    sentences: Sequence[Sentence] = SENTENCES,
    lengths: Lengths = LENGTHS,
) -> Output:
    job = Job(row, pair, lengths, "cpu", str(work), len(sentences), SENTENCES)
    return load(job, threads=1).translate(sentences)


@pytest.fixture(scope="module")
def expected(pair: Pair, work: Path) -> list[list[str]]:
    """One token at a time, one sentence at a time."""
    return [translate(GREEDY, pair, work, [s]).tokens[0] for s in SENTENCES]


@pytest.mark.parametrize(
    "row",
    [
        Row("fairseq", "greedy", "float32"),
        Row("ctranslate2", "greedy", "float32"),
        Row("transformers", "greedy", "float32"),
        Row("published", "exact", "float32"),
        Row("ours", "exact", "float32"),
        Row("ours", "exact", "float32", {"k": 2}),
        Row("ours", "scripted", "float32", {"acceptance": 0.5}),
    ],
    ids=lambda row: row.name,
)
def test_greedy_engines_agree_word_for_word(
    row: Row, pair: Pair, work: Path, expected: list[list[str]]
) -> None:
    found = translate(row, pair, work).tokens
    # At the limit fairseq puts the end of the sentence, the others one more token.
    stop = LENGTHS.max_len - 1
    assert [tokens[:stop] for tokens in found] == [tokens[:stop] for tokens in expected]


def test_prompt_lookup_changes_nothing(pair: Pair, work: Path, expected: list[list[str]]) -> None:
    row = Row("transformers", "prompt lookup", "float32")
    assert translate(row, pair, work, SENTENCES[:1]).tokens == expected[:1]


@pytest.mark.parametrize("engine", ["fairseq", "ctranslate2"])
def test_beams_are_wider_than_greedy(engine: str, pair: Pair, work: Path) -> None:
    beam, greedy = (
        translate(Row(engine, role, "float32"), pair, work).tokens for role in ("beam 5", "greedy")
    )
    assert beam != greedy


def test_beams_agree(pair: Pair, work: Path) -> None:
    ours, theirs = (
        translate(Row(engine, "beam 5", "float32"), pair, work).tokens
        for engine in ("fairseq", "ctranslate2")
    )
    assert ours == theirs


@pytest.mark.parametrize("engine", ["fairseq", "ctranslate2", "transformers", "ours"])
def test_a_fixed_length_is_kept(engine: str, pair: Pair, work: Path) -> None:
    lengths = Lengths(min_len=6, max_len=7)
    assert lengths.fixed
    found = translate(Row(engine, "greedy", "float32"), pair, work, lengths=lengths).tokens
    assert {len(tokens) for tokens in found} <= {6, 7}


@pytest.mark.parametrize(("acceptance", "rounds"), [(1.0, 1), (0.0, 12)])
def test_scripted_acceptance_is_what_was_asked_for(
    acceptance: float, rounds: int, pair: Pair, work: Path
) -> None:
    row = Row("ours", "scripted", "float32", {"acceptance": acceptance})
    lengths = Lengths(min_len=11, max_len=12)
    stats = translate(row, pair, work, lengths=lengths).stats
    assert isinstance(stats, DecodeStats)
    assert stats.rounds == rounds * len(SENTENCES)


def test_scripted_acceptance_lies_between(pair: Pair, work: Path) -> None:
    row = Row("ours", "scripted", "float32", {"acceptance": 0.7})
    stats = translate(row, pair, work, lengths=Lengths(39, 40)).stats
    assert stats is not None
    # What follows a wrong token is drafted in vain, so the first position tells.
    assert stats.acceptance_by_position[0] == pytest.approx(0.7, abs=0.15)


def test_rows_that_draft_want_a_drafter(tmp_path: Path) -> None:
    pair = random_pair(SHAPE, tmp_path)
    (Path(pair.settings.data) / "drafter.pt").unlink()
    alone = Pair.of(Path(pair.settings.data), "en", "de")
    with pytest.raises(UserError, match="holds no drafter, which the row 'ours exact' needs"):
        translate(Row("ours", "exact", "float32"), alone, tmp_path)


@pytest.mark.parametrize("text", ["6x512", "0x64x50", "2x100x50", "2x64x3"])
def test_shapes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--random-weights {text}"):
        Shape.parse(text)
