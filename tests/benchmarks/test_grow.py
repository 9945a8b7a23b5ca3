"""A grown pair: the same words from every engine, the same drafts kept, and a label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import grow, run
from benchmarks.engines import CTRANSLATE2, MARIAN, convert
from benchmarks.larger import Size
from benchmarks.pair import NOTE, Pair, Sentence, read_test_set
from benchmarks.systems import System
from specdec_plugins.formats.dictionaries import Dictionary
from tests.benchmarks.test_engines import EXACT, GREEDY, LINES, translate
from tests.bundles import CAPTIONS, ROOT
from tests.fairseq_checkpoints import translating_pair

pytestmark = pytest.mark.fairseq

BUNDLED = ROOT / "data" / "models" / "en-de"


def sentences_of(pair: Pair, folder: Path) -> list[Sentence]:
    path = folder / "lines.tsv"
    path.write_text("".join(f"{line}\t-\n" for line in LINES), encoding="utf-8")
    return list(read_test_set(str(path), pair).sentences)


def grown(pair: Pair, size: Size, folder: Path) -> Pair:
    grow.grow(pair, size, folder)
    return Pair.of(folder, None, None)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (folder := tmp_path / "tiny").mkdir()
    return translating_pair(folder)


def test_the_same_words_with_the_same_drafts_kept(tmp_path: Path) -> None:
    pair, size = Pair.of(BUNDLED, "en", "de"), Size(4, 5, 512, 8400)
    sentences = sentences_of(pair, tmp_path)
    before = translate(EXACT, pair, tmp_path, sentences)
    after = translate(EXACT, grown(pair, size, tmp_path / "grown"), tmp_path, sentences)
    assert after.tokens == before.tokens
    assert before.stats is not None
    assert after.stats is not None
    for name in ("rounds", "drafted", "accepted_at", "emitted"):
        assert getattr(after.stats, name) == getattr(before.stats, name)
    assert before.stats.rounds < before.stats.emitted


def test_every_peer_takes_it(tmp_path: Path) -> None:
    origin = tmp_path / "verifier"
    origin.mkdir()
    for name in ("verifier.pt", "bpe.codes", "dict.en.txt", "dict.de.txt"):
        (origin / name).symlink_to(CAPTIONS / name)
    pair = Pair.of(origin, "en", "de")
    sentences = sentences_of(pair, tmp_path)
    expected = translate(GREEDY, pair, tmp_path, sentences).tokens
    large = grown(pair, Size(5, 6, 256, 8200), tmp_path / "grown")
    convert(large, (CTRANSLATE2, MARIAN), tmp_path)
    for engine in ("ours", "fairseq", "ctranslate2", "transformers"):
        system = System(engine, "greedy", "float32")
        assert translate(system, large, tmp_path, sentences).tokens == expected, engine


def test_results_of_a_grown_pair_say_so(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny / "test.tsv").write_text("s1 s5 s9\ts1\n", encoding="utf-8")
    flags = ["--pair", str(tiny), "--test", str(tiny / "test.tsv"), "-s", "en", "-t", "de"]
    flags += ["--grow", "3x32x50", "--work", str(tmp_path / "work"), "--rows", "ours greedy"]
    flags += ["--dtypes", "float32", "--threads", "1", "--repeats", "1"]
    assert run.main([*flags, "--output", str(tmp_path / "result")]) == 0
    note = "Grown from tiny: its words and its acceptance, at the cost of 3+3 layers, 32 wide, 50"
    assert f"**{note} types.**" in (tmp_path / "result.md").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert record["pair"]["note"].startswith(note)
    assert record["pair"]["verifier"].startswith("3+3 layers, 32 wide, 50 types")
    assert "Grown from tiny" in capsys.readouterr().out


def test_the_command_writes_a_bundle(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "large"
    flags = [str(tiny), "-s", "en", "-t", "de", "--output", str(output)]
    flags += ["--layers", "3x4", "--width", "32", "--vocabulary", "40"]
    assert grow.main(flags) == 0
    assert "3+4 layers, 32 wide, 40 types" in capsys.readouterr().out
    assert (output / NOTE).is_file()
    before, after = (Dictionary.load(f / "dict.de.txt") for f in (tiny, output))
    assert len(after) == 40
    assert after.symbols[: len(before)] == before.symbols
    assert grow.main(flags) == 2
    assert "is there already" in capsys.readouterr().err


def test_added_words_are_new() -> None:
    words = Dictionary(["a", "madeupword00000", "madeupword00002"])
    added = ["madeupword00001", "madeupword00003", "madeupword00004"]
    assert grow.made_up_dictionary(words, 10).symbols[7:] == added


def test_bad_sizes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", str(tmp_path / "out")]
    bundled = ["--pair", str(BUNDLED), "--test", "t"]
    for flags, message in (
        ([*bundled, "--grow", "6x512"], "LAYERSxWIDTHxTYPES"),
        ([*bundled, "--grow", "6x500x32000"], "is 256 wide"),
        (["--random-weights", "1x64x40", "--grow", "6x512x32000"], "about a trained pair"),
    ):
        assert run.main([*flags, "--work", str(tmp_path / "work"), *out]) == 2
        assert message in capsys.readouterr().err
    assert grow.main([str(BUNDLED), "--width", "300", *out]) == 2
    assert "is 256 wide" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        grow.main([str(BUNDLED), "--layers", "6", *out])
    assert not (tmp_path / "out").exists()
