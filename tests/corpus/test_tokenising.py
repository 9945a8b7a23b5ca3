"""The corpus is tokenised by the very pipeline that decoding uses, on any number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.corpus import tokenising
from specdec_plugins.corpus.cleaning import LengthRules
from specdec_plugins.corpus.tokenising import TextSettings, Work, learn_codes, write_clean
from tests.refusals import refused

PAIRS = [(f'It\'s house {i}, "ok".', f"Das ist Haus {i}, bzw. Nr. {i}.") for i in range(25)]
SETTINGS = TextSettings("en", "de", lowercase=True)


def write_sides(folder: Path, pairs: list[tuple[str, str]]) -> list[Path]:
    paths = [folder / "train.en", folder / "train.de"]
    for side, path in enumerate(paths):
        path.write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return paths


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    path = tmp_path / "codes"
    learn_codes(write_sides(tmp_path, PAIRS), path, 20)
    return path


def test_two_passes_equal_the_pipeline_to_the_character(codes: Path) -> None:
    words = list(Work(SETTINGS, None, 1).over(PAIRS, len(PAIRS), ""))
    tokens = list(Work(SETTINGS, codes, 1).over(words, len(PAIRS), ""))
    pipeline = SETTINGS.pipeline(codes)
    assert tokens == [(pipeline.encode(s), pipeline.encode_target(t)) for s, t in PAIRS]
    assert any("@@" in source for source, _ in tokens)


def test_workers_change_nothing(codes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(Work(SETTINGS, codes, 1).over(PAIRS, len(PAIRS), ""))
    monkeypatch.setattr(tokenising, "CHUNK", 2)  # many chunks, so that order is at risk
    assert list(Work(SETTINGS, codes, 2).over(PAIRS, len(PAIRS), "")) == expected


def test_codes_do_not_depend_on_the_order_of_the_corpus(tmp_path: Path, codes: Path) -> None:
    other = tmp_path / "other"
    learn_codes(write_sides(tmp_path, PAIRS[::-1]), other, 20)
    assert other.read_text() == codes.read_text()
    assert len(codes.read_text().splitlines()) == 21
    wordless = write_sides(tmp_path, [("a", "b")])
    refused("no words to learn BPE", learn_codes, wordless, tmp_path / "none", 20)


def test_cleaning_counts_what_it_drops_and_keeps_tests_whole(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    pairs = [("a b", "c d"), ("", ""), ("a", "b c d e")]
    counts = write_clean(paths, pairs, LengthRules(1, 9, 3.0))
    assert paths[0].read_text() == "a b\n"
    assert counts["empty"] == 1
    write_clean(paths, pairs, None)
    assert paths[1].read_text() == "c d\n\nb c d e\n"
    refused("cleaning kept no training pair", write_clean, paths, pairs[1:], LengthRules(1, 9, 3.0))
