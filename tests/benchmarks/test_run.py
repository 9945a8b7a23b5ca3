"""The whole program on the bundled pair: processes, files, and faults."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

from benchmarks.pair import Pair, read_test_set
from benchmarks.reports import shown
from benchmarks.run import COMMAND
from specdec_plugins.formats.dictionaries import Dictionary
from tests.bundles import BUNDLED, ROOT
from tests.fairseq_checkpoints import dictionaries, write
from tests.refusals import told

pytestmark = pytest.mark.fairseq

SAMPLES = ROOT / "data/samples/en-de.tsv"


@pytest.mark.integration
def test_a_run_writes_record_table_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        *("--pair", str(BUNDLED), "--test", str(SAMPLES), "--sentences", "3"),
        *("--threads", "1", "--batches", "1", "2", "--repeats", "2", "--dtypes", "float32"),
        *("--rows", "* greedy", "ours exact", "--work", str(tmp_path / "work")),
    ]
    output = tmp_path / "new" / "run"
    assert COMMAND.run([*flags, "--output", str(output)]) == 0
    record = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    names = [cell["row"]["name"] for cell in record["cells"]]
    engines = ["fairseq greedy", "transformers greedy", "ctranslate2 greedy"]
    assert names == [*engines, "ours greedy", "ours exact"] * 2
    assert len({cell["tokens"] for cell in record["cells"]}) == 1
    for cell in record["cells"]:
        assert (len(cell["seconds"]), cell["num_unstable"]) == (2, 0)
        assert cell["differs_from_fairseq_greedy"] == []
        assert cell["peak_memory_mib"] > 0
    text = output.with_suffix(".md").read_text(encoding="utf-8")
    assert "![run.latency-by-length](run.latency-by-length.png)" in text
    assert output.with_name("run.speed-by-batch.png").is_file()
    assert "ours exact" in capsys.readouterr().out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pair without a drafter, whose dictionary knows a few words."""
    dictionaries(tmp_path)
    write(tmp_path, share_all_embeddings=True).rename(tmp_path / "verifier.pt")
    (tmp_path / "bpe.codes").write_text("#version: 0.2\ns 1</w>\n", encoding="utf-8")
    return tmp_path


def test_every_engine_gets_the_same_tokens(folder: Path) -> None:
    pair = Pair.of(folder, "en", "de")
    assert pair.drafter is None
    path = folder / "test.tsv.xz"
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write("s1 s\tein s\tshort\n\tno source\tshort\ns\ts\tshort\n")
    test = read_test_set(str(path), pair)
    assert [s.number for s in test.sentences] == [1, 3]
    assert test.sentences[0].tokens == ["s1", "<unk>"]  # as the dictionary has them
    assert test.sentences[0].ids == Dictionary.load(folder / "dict.en.txt").encode_line("s1 s")
    assert test.references == ["ein s", "s"]
    assert len(read_test_set(str(path), pair, limit=1).sentences) == 1
    assert test.decode(["e@@", "in"]) == "ein"


def test_the_command_names_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    inside, outside = str(Path(__file__)), "/elsewhere/test.en"
    assert shown(f"{inside},{outside}") == "test_run.py,test.en"
    assert [shown(word) for word in ("--test", "runs/a", "0.5")] == ["--test", "runs/a", "0.5"]


def test_without_matplotlib_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    flags = ["--pair", str(BUNDLED), "--test", str(SAMPLES), "--output", str(tmp_path / "out")]
    error = told(capsys, COMMAND.run, [*flags, "--work", str(tmp_path / "work")])
    assert "A picture needs matplotlib" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_faults_are_a_sentence_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one is that of an engine in its process."""
    for name, text in (("empty", ""), ("long", "s " * 60 + "\ts\n")):
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    flags = ["--output", str(folder / "out"), "--work", str(folder / "work"), "--threads", "1"]
    flags += ["-s", "en", "-t", "de", "--rows", "ours greedy"]
    for pair, test, message in (
        ("nowhere", "empty.tsv", "nowhere"),
        (".", "empty.tsv", "empty.tsv: empty"),
        (".", "long.tsv", "ours greedy: sentence 1: has 61 tokens"),
    ):
        given = ["--pair", str(folder / pair), "--test", str(folder / test), *flags]
        assert COMMAND.run(given) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("specdec bench: error: ")
        assert message in error
    assert not list(folder.glob("out*"))
