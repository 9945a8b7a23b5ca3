"""Preparation as a whole: what a run writes, that it goes on, and what it refuses."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from specdec_plugins.corpus import prepare, tokenising
from specdec_plugins.corpus.prepare import Preparation
from specdec_plugins.corpus.reading import ParallelFile
from specdec_plugins.formats.text import TextPipeline
from tests.corpus.conftest import write_tsv
from tests.programs import run, specdec
from tests.refusals import refused

ANIMALS = ["dog", "cat", "horse", "bird", "cow", "pig"]
TIERE = ["Hund", "Katze", "Pferd", "Vogel", "Kuh", "Schwein"]
TRAIN = [
    (f"The {a} is {i} years old, isn't it?", f"Das {b}-Tier ist {i} Jahre alt, oder?")
    for i in range(1, 7)
    for a, b in zip(ANIMALS, TIERE, strict=True)
]
TEST = [("A dog & a cat.", "Ein Hund & eine Katze."), ("", ""), ("x " * 30, "y"), ("\u2028", "")]


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    train = write_tsv(tmp_path / "train.tsv", [*TRAIN, ("long " * 9, "kurz"), ("", "leer")])
    test = write_tsv(tmp_path / "test.tsv", TEST)
    arguments = ["--src", "en", "--tgt", "de", "--train", train, "--valid", test, "--test", test]
    arguments += ["--test", test, test, "--merges", 30, "--out", tmp_path / "out", "--workers", 1]
    arguments += ["--force"]  # some test sentences have other letters
    return [str(argument) for argument in arguments]


def without_merges(flags: list[str]) -> list[str]:
    at = flags.index("--merges")
    return flags[:at] + flags[at + 2 :]


def lines(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def binarised(folder: Path, split: str, language: str) -> list[str]:
    from fairseq.data import Dictionary, indexed_dataset

    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    dataset = indexed_dataset.make_dataset(str(folder / f"{split}.en-de.{language}"), impl="mmap")
    return [dictionary.string(dataset[i]) for i in range(len(dataset))]


@pytest.mark.fairseq
@pytest.mark.integration
def test_from_raw_text_to_a_data_bin_and_again(flags: list[str], tmp_path: Path) -> None:
    done = specdec("prepare", *flags, cwd=tmp_path)
    assert "test1.en: 4 lines, 48 tokens, 72.9 % unknown to the dictionary; check" in done.stderr
    assert "train pairs: 1 empty, 36 kept, 1 lengths too unlike" in done.stderr
    out, data = tmp_path / "out", tmp_path / "out" / "data-bin"

    pipeline = TextPipeline("en", "de", codes=data / "bpe.codes")
    assert binarised(data, "train", "en") == [pipeline.encode(source) for source, _ in TRAIN]
    assert binarised(data, "train", "de") == [pipeline.encode_target(target) for _, target in TRAIN]
    for split in ("valid", "test", "test1"):
        assert lines(out / "raw" / f"{split}.de") == [target for _, target in TEST]
        assert len(binarised(data, split, "de")) == len(TEST)
        assert binarised(data, split, "en")[1] == ""
    assert (data / "dict.en.txt").read_bytes() == (data / "dict.de.txt").read_bytes()

    before = {path: path.stat().st_mtime_ns for path in data.iterdir()}
    again = specdec("prepare", *flags, cwd=tmp_path)
    assert again.stderr.count("done already") == 3 * 5 + 2
    assert {path: path.stat().st_mtime_ns for path in data.iterdir()} == before

    # Reuse of codes and dictionary: the same tokens, and the dictionary unchanged.
    reuse = ["--codes", "out/bpe.codes", "--dict", "out/data-bin/dict.en.txt", "--out", "second"]
    specdec("prepare", *without_merges(flags), *reuse, cwd=tmp_path)
    for path in data.iterdir():
        assert (tmp_path / "second" / "data-bin" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("percent", "force", "level"),
    [
        (2.0, False, "INFO"),
        (2.1, False, "WARNING"),
        (20.0, False, "WARNING"),
        (20.1, False, None),
        (94.7, True, "WARNING"),
    ],
)
def test_text_that_the_dictionary_does_not_know(
    percent: float, force: bool, level: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    given = ("valid.de: 5 lines", percent, "de", force)
    if level is None:
        told = rf"valid.de: .* {percent} % unknown to .*text in de.*; --force"
        refused(told, tokenising.say_unknown, *given)
    else:
        tokenising.say_unknown(*given)
        assert [record.levelname for record in caplog.records] == [level]
        assert f"valid.de: 5 lines, {percent} % unknown" in caplog.text


@pytest.mark.fairseq
@pytest.mark.parametrize("given", [0, 1, 2])
def test_binary_data_is_fairseq_s_to_the_byte(given: int, flags: list[str], tmp_path: Path) -> None:
    prepare.COMMAND(*flags)
    text, ours, theirs = (tmp_path / "out" / "bpe", tmp_path / "ours", tmp_path / "theirs")
    splits = {
        s: [text / f"{s}.{side}" for side in ("en", "de")] for s in ("train", "valid", "test")
    }
    dictionaries = [tmp_path / name for name in ("source", "target")][:given]
    for path in dictionaries:
        path.write_text("e@@ 9\nn@@ 7\n")
    tokenising.binarise(splits, ("en", "de"), dictionaries, ours, force=True)
    words = [f"--{split}pref {text / split}" for split in splits]
    named = zip(("--srcdict", "--tgtdict"), dictionaries, strict=False)
    words += [f"{flag} {path}" for flag, path in named]
    words += [] if given == 2 else ["--joined-dictionary"]
    command = f"-m fairseq_cli.preprocess -s en -t de --destdir {theirs} {' '.join(words)}"
    run(sys.executable, *command.split(), cwd=tmp_path)
    for path in ours.iterdir():
        assert (theirs / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_stop_in_the_middle_costs_one_step(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TextPipeline, "segment", _fail_after(20))
        with pytest.raises(KeyboardInterrupt):
            prepare.COMMAND(*flags)
    out = tmp_path / "out"
    assert not (out / "bpe").exists()
    tokenised = (out / "tok" / "train.en").stat().st_mtime_ns
    prepare.COMMAND(*flags)
    assert (out / "tok" / "train.en").stat().st_mtime_ns == tokenised
    assert len(lines(out / "bpe" / "train.en")) == len(lines(out / "bpe" / "train.de")) == 36


def _fail_after(number: int) -> object:
    count = iter(range(number))

    def segment(self: TextPipeline, words: str) -> str:
        if next(count, None) is None:
            raise KeyboardInterrupt
        return words

    return segment


def test_another_setting_or_text_is_refused_and_what_is_there_stays(
    flags: list[str], tmp_path: Path
) -> None:
    prepare.COMMAND(*flags)
    before = (tmp_path / "out" / "bpe" / "train.de").read_bytes()
    told = (
        r"tokenise train: .*tok/train.de was made by another command \(--max-ratio 3 -> 20\); use "
    )
    refused(
        told + r"its flags and inputs, or give another folder$",
        prepare.COMMAND,
        *flags,
        "--max-ratio",
        "20",
    )
    write_tsv(tmp_path / "train.tsv", TRAIN[:9])
    refused("another content of train.tsv", prepare.COMMAND, *flags)
    assert (tmp_path / "out" / "bpe" / "train.de").read_bytes() == before
    shutil.rmtree(tmp_path / "out" / "data-bin")
    write_tsv(tmp_path / "train.tsv", [*TRAIN, ("long " * 9, "kurz"), ("", "leer")])
    refused("data-bin: is gone; remove", prepare.COMMAND, *flags)


def test_a_vocabulary_that_can_spell_latin(flags: list[str], tmp_path: Path) -> None:
    odd = [("日 " * 19 + "語 " * 20 + "Ω", "x " * 40)] + [("Žürich", "Zürich")] * 5
    more = write_tsv(tmp_path / "more.tsv", [*odd, ("word " * 30, "Wort " * 30)])
    flags += ["--train", str(more)]
    prepare.COMMAND(*flags, "--cover-latin", "--max-subwords", "60")
    out = tmp_path / "out" / "bpe"
    found = dict(line.split(" ") for line in lines(out / "dict.txt"))
    numbers = [int(number) for number in found.values()]
    assert numbers == sorted(numbers, reverse=True)
    assert {"é", "é@@", "ſ", "ß@@", "€", "„@@", "Ș", "~@@"} <= found.keys()
    assert "語" in found  # twenty times; what is rarer and no Latin is left out
    assert not {"日", "Ω"} & found.keys()
    assert found["Ē"] == "1"
    # The long pair is not in the text, and counts for the vocabulary all the same.
    assert not any("word" in line.replace("@@ ", "") for line in lines(out / "train.en"))


def test_repeated_pairs_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    tokenize = TextPipeline.tokenize
    monkeypatch.setattr(
        TextPipeline, "tokenize", lambda *given: asked.append(given[1]) or tokenize(*given)
    )
    train = write_tsv(tmp_path / "weighted.tsv", [pair for pair in TRAIN for _ in range(3)])
    flags = ["--src", "en", "--tgt", "de", "--train", train, "--valid", f"{train}:1-3"]
    prepare.COMMAND(*flags, "--out", tmp_path / "out", "--workers", 1)
    assert len(lines(tmp_path / "out" / "tok" / "train.en")) == 3 * len(TRAIN)
    assert len(asked) == 2 * len(TRAIN) + 2


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--tgt", "en"], "--src and --tgt are both 'en'"),
        (["--tgt", "no language"], "--tgt no language: expected the code of a language, such as"),
        (["--src", "en-GB"], "--src en-GB: .*; write en_GB"),
        (["--train", "a,b,c"], "expected one TSV file, or SOURCE_FILE,TARGET_FILE"),
        (["--codes", "none"], "none: the BPE codes cannot be read"),
        (["--codes", "none", "--bpe", "none"], "give either --codes or --bpe none"),
        (["--train", "."], "a folder; expected a text file: a TSV, or two files with a comma"),
        (["--valid", "dev.en,."], "dev.en: no such file; expected a text file: one side"),
        (["--dict", "."], r"the dictionary cannot be read \(Is a directory\)"),
        (["--dict-tgt", "none"], "--dict-tgt needs --dict"),
        (["--cover-latin", "--dict", "none"], "either --cover-latin or --dict"),
        (["--min-length", "9", "--max-length", "8"], "must not exceed"),
        (["--columns", "0,x"], "expected two different numbers from 1"),
        (["--codes", "none", "--merges", "9"], "--merges is for codes that are learnt here"),
        (["--tokenizer", "none", "--dash-splits", "yes"], "--dash-splits is for text that is tok"),
    ],
)
def test_impossible_settings(
    flags: list[str], more: list[str], sentence: str, tmp_path: Path
) -> None:
    refused(sentence, prepare.COMMAND, *without_merges(flags), *more)
    assert not (tmp_path / "out").exists()


def test_a_corpus_that_cannot_be_read_leaves_nothing_behind(
    flags: list[str], tmp_path: Path
) -> None:
    corpus = write_tsv(tmp_path / "bad.tsv", [("a", "b"), ("c", "d", "e")])
    words = [*flags, "--train", corpus, "--out", tmp_path / "new" / "out"]
    refused("line 2: expected 2 columns", prepare.COMMAND, *words)
    assert not (tmp_path / "new").exists()
    (tmp_path / "new" / "out").mkdir(parents=True)
    refused("line 2: expected 2 columns", prepare.COMMAND, *words)
    assert not list((tmp_path / "new" / "out").iterdir())


@pytest.mark.parametrize(
    ("split", "ending"),
    [("train", "damaged.tsv, line 1: .*, or skip such lines with --bad-l.* skip$"), ("test", None)],
)
def test_only_bad_lines_of_the_training_text_can_be_skipped(
    split: str, ending: str | None, flags: list[str], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.tsv"
    damaged.write_bytes(b"a\xff\tb\n")
    ending = ending or r"damaged.tsv, line 1: (?!.*--bad-lines)"
    refused(ending, prepare.COMMAND, *flags, f"--{split}", damaged, "--bad-lines", "refuse")


def test_columns_of_corpora_that_have_none(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a", TRAIN)
    words = ["--src", "en", "--tgt", "de", "--out", tmp_path / "out", "--columns", "2,1"]
    words += ["--train", f"{corpus},{corpus}", "--valid", f"{corpus},{corpus}"]
    refused("--columns is for TSV files", prepare.COMMAND, *words)


def test_a_flag_that_is_repeated_adds_to_its_list() -> None:
    words = ["--src", "en", "--tgt", "de", "--out", "o", "--valid", "v"]
    words += ["--train", "a", "b", "--train", "c"]
    args = prepare.COMMAND.parse(*words)
    assert (args.train, args.test) == (["a", "b", "c"], ())
    assert prepare.COMMAND.parse(*words).train == ["a", "b", "c"]  # nothing is left of before


def test_lines_that_are_given_twice_are_said(
    flags: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    shared = ["--src", "en", "--tgt", "de", "--merges", 30, "--workers", 1, "--test", test]
    shared += ["--out", tmp_path / "out", "--train", f"{train}:1-29", "--force"]
    prepare.COMMAND(*shared, "--valid", f"{train}:30-")
    assert "given twice" not in caplog.text
    assert "both trained on" not in caplog.text
    other = tmp_path / "other"
    prepare.COMMAND(*shared, "--valid", f"{train}:29-", "--train", train, "--out", other)
    assert f"{train}: given twice" in caplog.text
    assert f"{train}:29-: is both trained on and a dev or test set" in caplog.text


def test_codes_in_place_of_a_dictionary_are_known(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("#version: 0.2\nÄ h</w>\n", encoding="utf-8")
    message = "codes, line 1: .*; these are BPE codes"
    refused(message, prepare.COMMAND, *flags, "--dict", tmp_path / "codes")
    assert not (tmp_path / "out").exists()


def test_a_language_without_rules_is_said(
    flags: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name, warned in (("de_AT", False), ("tr", True)):
        caplog.clear()
        args = prepare.COMMAND.parse(*flags, "--tgt", name)
        corpus = [ParallelFile(Path(args.train[0]))]
        assert Preparation(args, corpus, corpus, []).text.target_lang == name
        assert ("--tgt tr: the tokeniser has no abbreviations" in caplog.text) == warned


def test_dashes_are_split_where_the_dictionary_shows_it(flags: list[str], tmp_path: Path) -> None:
    dictionary = tmp_path / "dict.txt"
    for content, expected in (("der 9\n@-@ 5\n", True), ("der 9\na@-@ 5\n", False)):
        dictionary.write_text(content)
        args = prepare.COMMAND.parse(*flags, "--dict", dictionary)
        corpus = [ParallelFile(tmp_path / "train.tsv")]
        assert Preparation(args, corpus, corpus, []).text.dash_splits is expected
