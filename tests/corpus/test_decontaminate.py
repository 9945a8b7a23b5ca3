"""What leaves the training text because a dev or test set has it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec_plugins.corpus import decontaminate
from specdec_plugins.corpus.decontaminate import HeldOutSentences, key
from specdec_plugins.corpus.reading import Faults, ParallelFile, read_pairs
from specdec_plugins.errors import UserError


def write(path: Path, pairs: Sequence[tuple[str, ...]]) -> Path:
    text = "".join("\t".join(pair) + "\n" for pair in pairs)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """Dev and test sets, samples with a third column, and training files beside them."""
    write(tmp_path / "dev.tsv", [("Old.", "Alt."), ("A dog.", "Ein Hund."), ("Two.", "Zwei.")])
    write(tmp_path / "test.tsv.xz", [("The end!", "Das Ende!")])
    write(tmp_path / "samples.tsv", [("Hello you.", "Hallo du.", "chat")])
    pairs = [("a dog", "Der Hund."), ("Fine.", "ein hund"), ("Old.", "Alt."), ("Good.", "Gut.")]
    write(tmp_path / "train.one.en-de.tsv.xz", [*pairs, ("Some end.", "Das  Ende")])
    write(tmp_path / "train.multi30k.en-de.tsv", [("A man.", "Ein Mann.")])
    write(tmp_path / "train.other.en-ro.tsv", [("A man.", "Un om.")])
    return tmp_path


def run(corpora: Path, *flags: object, valid: str = "dev.tsv:2-") -> list[str]:
    """The lines of the mix."""
    command = ["--pair", "en-de", "--valid", corpora / valid, "--test", corpora / "test.tsv.xz"]
    command += ["--also", corpora / "samples.tsv", "--out", corpora / "mix", *flags]
    args = decontaminate._parser().parse_args([str(word) for word in command])
    decontaminate.main(args)
    return (corpora / "mix" / "train.tsv").read_text(encoding="utf-8").splitlines()


def test_either_side_counts_and_case_and_punctuation_do_not(corpora: Path) -> None:
    # Line 1 of dev.tsv is no part of the dev set, so that training may have it.
    assert run(corpora, "--train", corpora) == ["Old.\tAlt.", "Good.\tGut."]
    report = json.loads((corpora / "mix" / "report.json").read_text())
    assert list(report["training"].values()) == [
        {"kept": 2, "source is held out": 1, "target is held out": 2}
    ]
    assert report["held_out_pairs"] == 4
    assert [Path(name).name for name in report["left_out"]] == ["train.multi30k.en-de.tsv"]


def test_the_sets_are_written_as_they_are(corpora: Path) -> None:
    run(corpora, "--train", corpora)
    mix = corpora / "mix"
    assert (mix / "valid.tsv").read_text() == "A dog.\tEin Hund.\nTwo.\tZwei.\n"
    assert (mix / "test.tsv").read_text() == "The end!\tDas Ende!\n"


def test_research_data_is_left_out_of_folders_and_refused_by_name(corpora: Path) -> None:
    by_name = corpora / "train.multi30k.en-de.tsv"
    with pytest.raises(UserError, match="research and education only"):
        run(corpora, "--train", by_name)
    assert run(corpora, "--train", by_name, "--research-data") == ["A man.\tEin Mann."]
    assert "A man.\tEin Mann." in run(corpora, "--train", corpora, "--research-data")


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ("none.tsv", "none.tsv: no such file"),
        ("dev.tsv:9-10", "the file has fewer lines"),
        ("dev.tsv:3-2", "the part is empty"),
    ],
)
def test_parts_that_are_not_there(corpora: Path, item: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run(corpora, "--train", corpora / item)
    with pytest.raises(UserError, match=sentence):
        run(corpora, "--train", corpora, valid=item)


def test_two_sides_of_a_corpus_and_a_part_of_them(tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / side).write_text("".join(f"{side} {i}\n" for i in range(1, 6)))
    corpus = ParallelFile.parse(f"{tmp_path}/en,{tmp_path}/de:2-3")
    assert list(read_pairs(corpus, Faults())) == [("en 2", "de 2"), ("en 3", "de 3")]


def test_a_sentence_without_letters_contaminates_nothing() -> None:
    held = HeldOutSentences([("...", "!"), ("Ja?", "Yes")])
    assert key("...") == ""
    assert held.verdict(("?!", "-")) == "kept"
    assert held.verdict(("JA", "no")) == "source is held out"
