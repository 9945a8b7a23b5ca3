"""What leaves the training text because a dev or test set has it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from specdec_plugins.corpus import decontaminate
from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs
from specdec_plugins.corpus.resume import locked
from tests.corpus.conftest import write_tsv
from tests.refusals import refused, told


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """Dev and test sets, samples with a third column, and training files beside them."""
    write_tsv(tmp_path / "dev.tsv", [("Old.", "Alt."), ("A dog.", "Ein Hund."), ("Two.", "Zwei.")])
    write_tsv(tmp_path / "test.tsv.xz", [("The end!", "Das Ende!")])
    write_tsv(tmp_path / "samples.tsv", [("Hello you.", "Hallo du.", "chat")])
    pairs = [("a dog", "Der Hund."), ("Fine.", "ein hund"), ("Old.", "Alt."), ("Good.", "Gut.")]
    write_tsv(tmp_path / "train.one.en-de.tsv.xz", [*pairs, ("Some end.", "Das  Ende")])
    write_tsv(tmp_path / "train.multi30k.en-de.tsv", [("A man.", "Ein Mann.")])
    write_tsv(tmp_path / "train.other.en-ro.tsv", [("A man.", "Un om.")])
    return tmp_path


def run(corpora: Path, *flags: object, valid: str = "dev.tsv:2-") -> list[str]:
    """The lines of the mix."""
    command = ["--test", corpora / "test.tsv.xz", "--also", corpora / "samples.tsv", *flags]
    return run_mix(corpora, *command, valid=valid)


def run_mix(folder: Path, *flags: object, valid: str = "dev.tsv") -> list[str]:
    command = ["--pair", "en-de", "--valid", folder / valid, "--out", folder / "mix", *flags]
    decontaminate.COMMAND(*command)
    return (folder / "mix" / "train.tsv").read_text(encoding="utf-8").splitlines()


def test_either_side_counts_and_case_and_punctuation_do_not(corpora: Path) -> None:
    # Line 1 of dev.tsv is no part of the dev set, so that training may have it.
    assert run(corpora, "--train", corpora) == ["Old.\tAlt.", "Good.\tGut."]
    report = json.loads((corpora / "mix" / "report.json").read_text())
    assert list(report["training"].values()) == [
        {"kept": 2, "source is held out": 1, "target is held out": 2}
    ]
    assert report["held_out_pairs"] == 4
    assert [Path(name).name for name in report["left_out"]] == ["train.multi30k.en-de.tsv"]
    # The sets are written as they are.
    mix = corpora / "mix"
    assert (mix / "valid.tsv").read_text() == "A dog.\tEin Hund.\nTwo.\tZwei.\n"
    assert (mix / "test.tsv").read_text() == "The end!\tDas Ende!\n"


def test_an_interrupted_mix_leaves_the_last_one(
    corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> dict[Path, str]:
        return {path: path.read_text() for path in (corpora / "mix").rglob("*")}

    run(corpora, "--train", corpora)
    before = files()
    monkeypatch.setattr(decontaminate.Mix, "_verdict", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(corpora, "--train", corpora, valid="dev.tsv:1-1")
    assert files() == before


def test_two_mixes_cannot_share_a_folder(corpora: Path) -> None:
    with locked(corpora / "mix"):
        refused("another run is writing here", run, corpora, "--train", corpora)
    assert run(corpora, "--train", corpora)


def test_a_full_disk_is_said_in_a_sentence(
    corpora: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(path: Path, rows: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(decontaminate, "_write", fill)
    words = ["--pair", "en-de", "--train", corpora, "--valid", corpora / "dev.tsv"]
    words = [*map(str, words), "--out", str(corpora / "mix")]
    said = told(capsys, decontaminate.COMMAND.run, words)
    assert said.endswith("No space left on device; make room, and run the same command again\n")
    assert not (corpora / "mix").exists()


def test_somebody_s_file_is_not_replaced(corpora: Path) -> None:
    (corpora / "mix").mkdir()
    mine = write_tsv(corpora / "mix" / "valid.tsv", [("Mine", "Meins")])
    refused("valid.tsv: exists, and was not written by", run, corpora, "--train", corpora)
    assert mine.read_text() == "Mine\tMeins\n"
    assert list((corpora / "mix").iterdir()) == [mine]


def test_a_corpus_given_twice_and_skipped_lines_are_said(
    corpora: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = corpora / "train.one.en-de.tsv.xz"
    assert len(run(corpora, "--train", corpora, path)) == 4
    assert f"{path}: given twice, so each of its pairs counts twice" in caplog.text
    (corpora / "bad.tsv").write_bytes(b"a\tb\n\xff\tc\n")
    refused("--bad-lines skip", run, corpora, "--train", corpora / "bad.tsv")
    assert run(corpora, "--train", corpora / "bad.tsv", "--bad-lines", "skip") == ["a\tb"]
    assert "1 bad lines skipped; the first: " in caplog.text


def test_a_mix_of_nothing_is_refused(corpora: Path) -> None:
    same = corpora / "dev.tsv"
    message = r"no training pair is left \(3 source is held out\)"
    refused(message, run, corpora, "--train", same, valid="dev.tsv")
    assert not (corpora / "mix").exists()


def test_research_data_is_left_out_of_folders_and_refused_by_name(corpora: Path) -> None:
    by_name = corpora / "train.multi30k.en-de.tsv"
    refused("research and education only", run, corpora, "--train", by_name)
    assert run(corpora, "--train", by_name, "--research-data") == ["A man.\tEin Mann."]
    assert "A man.\tEin Mann." in run(corpora, "--train", corpora, "--research-data")


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ("none.tsv", "none.tsv: no such file"),
        ("dev.tsv:9-10", "the file has fewer lines"),
        ("dev.tsv:3-2", "empty line range"),
    ],
)
def test_parts_that_are_not_there(corpora: Path, item: str, sentence: str) -> None:
    refused(sentence, run, corpora, "--train", corpora / item)
    refused(sentence, run, corpora, "--train", corpora, valid=item)


def test_two_sides_of_a_corpus_and_a_part_of_them(tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / side).write_text("".join(f"{side} {i}\n" for i in range(1, 6)))
    corpus = ParallelFile.parse(f"{tmp_path}/en,{tmp_path}/de:2-3")
    assert list(read_pairs(corpus, BadLines())) == [("en 2", "de 2"), ("en 3", "de 3")]


def test_a_clean_mix_with_weights_and_sets_of_its_own(tmp_path: Path) -> None:
    names = [f"{a}{b}" for a in "abcdefghij" for b in "klm"]
    chat = [(f"My name is {name}.", f"Ich heiße {name}.") for name in names]
    more = [("A name: ZZ.", "Er hei&szlig;t ZZ."), ("The end", "Das ENDE"), ("Da!", "")]
    write_tsv(tmp_path / "train.chat.en-de.tsv.xz", [*chat, *more])
    write_tsv(tmp_path / "news.tsv", [("Page 1", "Seite 1"), ("PAGE 2", "Seite 2"), ("Ok", "Gut")])
    write_tsv(tmp_path / "dev.tsv", [("The end!", "Das Ende!")])
    corpora = [tmp_path / "train.chat.en-de.tsv.xz", f"{tmp_path}/news.tsv:1-2"]
    flags = ["--weights", "chat=2", "news=3", "--split-off", "chat=5,3", "--clean"]
    mix = run_mix(tmp_path, "--train", *corpora, *flags)
    assert mix[-3:] == ["Page 1\tSeite 1"] * 3
    files = (tmp_path / f"mix/chat.{split}.tsv" for split in ("test", "dev"))
    taken = [line for file in files for line in file.read_text().splitlines()]
    assert len(taken) == 8
    kept = ["\t".join(pair) for pair in chat if "\t".join(pair) not in taken]
    assert mix[:-3] == [line for line in [*kept, "A name: ZZ.\tEr heißt ZZ."] for _ in "12"]
    report = json.loads((tmp_path / "mix/report.json").read_text())
    chat_counts, news_counts = (report["training"][str(corpus)] for corpus in corpora)
    assert news_counts == {"kept": 1, "near-duplicate": 1}
    assert chat_counts == {"kept": 23, "source is held out": 9, "empty": 1}
    assert report["chosen"] == {"chat.test": 5, "chat.dev": 3}


def test_clean_text_in_another_script(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ("Open the window.", "Открой окно.")
    write_tsv(tmp_path / "text.tsv", [kept, ("A fish.", "一条鱼在这里"), ("Two.", "两个")])
    write_tsv(tmp_path / "dev.tsv", [("The end!", "Вот и всё!")])
    flags = ["--pair", "en-ru", "--clean"]
    assert run_mix(tmp_path, "--train", tmp_path / "text.tsv", *flags) == ["\t".join(kept)]
    assert "most pairs were dropped (other script)" in caplog.text


def test_a_weight_that_is_no_whole_number(tmp_path: Path) -> None:
    pairs = [(f"Line {number}.", f"Zeile {number}.") for number in range(400)]
    write_tsv(tmp_path / "text.tsv", pairs)
    write_tsv(tmp_path / "dev.tsv", [("The end!", "Das Ende!")])
    counts = {}
    for weight in ("0.3", "2.3"):
        mix = run_mix(tmp_path, "--train", tmp_path / "text.tsv", "--weights", f"text={weight}")
        counts[weight] = [mix.count("\t".join(pair)) for pair in pairs]
    # Three tenths of the pairs, spread over the text, and the same ones in both mixes.
    assert counts["2.3"] == [2 + count for count in counts["0.3"]]
    assert set(counts["0.3"]) == {0, 1}
    for half in (counts["0.3"][:200], counts["0.3"][200:]):
        assert 40 < sum(half) < 80


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--pair", "ende"], "--pair ende: expected two languages, such as en-de"),
        (["--weights", "chat=3"], "0 corpora are named 'chat', expected one: one"),
        (["--weights", "one=0"], "expected NAME=N with numbers above 0"),
        (["--weights", "one=inf"], "expected NAME=N with numbers above 0"),
        (["--clean", "--per-source", "one=1.5"], "expected NAME=N with whole numbers above 0"),
        (["--clean", "--split-off", "one=3"], "expected NAME=N,N"),
        (["--split-off", "one=3,1"], "add --clean"),
        (["--max-words", "9"], "add --clean"),
    ],
)
def test_impossible_mixes(corpora: Path, flags: list[str], sentence: str) -> None:
    refused(sentence, run, corpora, "--train", corpora, *flags)
    assert not (corpora / "mix").exists()


def test_neighbours_are_joined_too(corpora: Path) -> None:
    pairs = [(f"Sentence {n}.", f"Satz {n}.") for n in range(200)]
    write_tsv(corpora / "long.tsv", pairs)
    lines = run(corpora, "--train", corpora / "long.tsv", "--joined", "0.1")
    joined = [line for line in lines if line.count("Sentence") > 1]
    assert [line for line in lines if line not in joined] == ["\t".join(pair) for pair in pairs]
    assert 10 <= len(joined) <= 30
    for line in joined:
        source, target = line.split("\t")
        numbers = [int(word.rstrip(".")) for word in source.split() if word[0].isdigit()]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert target == " ".join(f"Satz {n}." for n in numbers)
    assert {line.count("Sentence") for line in joined} == {2, 3}
