"""The sample sentences: their shape, and no slip that a machine can see."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs

DATA = Path(__file__).resolve().parents[2] / "data"
PATH, SAMPLE = DATA / "samples" / "en-de.tsv", DATA / "sample"
CELLS = [line.split("\t") for line in PATH.read_text(encoding="utf-8").splitlines()]
SENTENCES = [sentence for cells in CELLS for sentence in cells[:2]]


def test_there_are_enough_over_several_domains() -> None:
    domains = Counter(domain for _, _, domain in CELLS)
    assert len(CELLS) >= 100
    assert len(domains) >= 8
    assert min(domains.values()) >= 8


def test_no_sentence_occurs_twice_on_either_side() -> None:
    for side in (0, 1):
        assert len({cells[side].casefold() for cells in CELLS}) == len(CELLS)


def test_preparation_reads_them_as_a_corpus() -> None:
    pairs = list(read_pairs(ParallelFile(PATH, columns=(1, 2)), BadLines()))
    assert pairs == [(english, german) for english, german, _ in CELLS]


def test_the_sample_corpus_keeps_its_test_sentences_out_of_training() -> None:
    splits = ("train", "dev", "test")
    for side in ("en", "de"):
        texts = [(SAMPLE / f"{split}.{side}").read_text("utf-8").splitlines() for split in splits]
        assert [len(lines) for lines in texts] == [20_000, 1000, 500]
        sentences = {sentence for lines in texts for sentence in lines}
        assert len(sentences) == 21_500
        assert all(re.fullmatch(r"[A-ZÄÖÜ][^\t]*[.?]", sentence) for sentence in sentences)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_tidy(sentence: str) -> None:
    assert 4 <= len(sentence.split()) <= 16
    assert sentence == " ".join(sentence.split())
    assert re.fullmatch(r"[A-ZÄÖÜ].*[.?!]", sentence)
    assert not re.search(r"\b(\w+) \1\b", sentence.replace("had had", ""), re.IGNORECASE)
    assert not re.search(r"\s[.,?!]|[.,?!]{2}|[^\w\s.,?!']", sentence)


@pytest.mark.parametrize(("english", "german", "domain"), CELLS)
def test_the_sides_are_their_languages_and_end_alike(
    english: str, german: str, domain: str
) -> None:
    assert english.isascii()
    assert (english[-1] == "?") == (german[-1] == "?"), domain
    numbers = [re.findall(r"\d+", side) for side in (english, german)]
    assert sorted(numbers[0]) == sorted(numbers[1])
