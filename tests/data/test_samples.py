"""The sample sentences and the sample corpus, as programs and the documentation count on them."""

from __future__ import annotations

from pathlib import Path

from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs

DATA = Path(__file__).resolve().parents[2] / "data"
PATH, SAMPLE = DATA / "samples" / "en-de.tsv", DATA / "sample"
CELLS = [line.split("\t") for line in PATH.read_text(encoding="utf-8").splitlines()]


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
