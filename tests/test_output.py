"""Every program asks whether it can write its output before it begins to work."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import benchmarks.run as bench
from benchmarks import reproduce
from specdec_plugins.app import convert, drafter
from specdec_plugins.corpus import checkpoints, decontaminate, distill, prepare, scoring
from specdec_plugins.errors import UserError
from specdec_plugins.formats.output import check_output
from specdec_plugins.serving import translate
from specdec_plugins.training import fairseq_train, initial, recipe, run
from tests.bundles import BUNDLED
from tests.refusals import refused, told

Run = Callable[[Sequence[str]], int]
PAIR = str(BUNDLED)


def train(arguments: Sequence[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *arguments])
        return fairseq_train.main()


# Each program: how it is called, what comes before its output, and the function that does its work
# (which must not be reached).
INTO = ["--AR-path", "none.pt", "--output"]
TRAIN = [PAIR, "--arch", "block", "--task", "translation_lev_modified", "--cpu"]
TRAIN += ["--criterion", "glat_loss", "--save-dir"]
PROGRAMS = {
    "specdec translate": (
        translate.main,
        ["--input-path", os.devnull, "--output-path"],
        "specdec_plugins.app.main.load_translator",
    ),
    "specdec bench": (
        bench.COMMAND.run,
        ["--pair", PAIR, "--test", "lines.tsv", "--output"],
        "benchmarks.run.run",
    ),
    "specdec train average": (
        checkpoints.COMMAND.run,
        ["none.pt", "--output"],
        "specdec_plugins.corpus.checkpoints.average",
    ),
    "specdec evaluate": (
        scoring.EVALUATE.run,
        ["out", "ref", "--src", "en", "--tgt", "de", "--json"],
        "specdec_plugins.corpus.scoring.read_lines",
    ),
    "encoder_initial.py": (
        initial.COMMAND.run,
        ["--verifier", "none.pt", "--output"],
        "specdec_plugins.training.initialise.initialise_drafter",
    ),
    "train.py": (train, TRAIN, "specdec_plugins.training.fairseq_train._run"),
    "specdec convert bundle": (
        convert.BUNDLE.run,
        [PAIR, *INTO],
        "specdec_plugins.app.convert._to_bundle",
    ),
}


@pytest.mark.fairseq
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_asks_before_its_work(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main, arguments, work = PROGRAMS[program]
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("began to work"))
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "out")
    assert main([*arguments, output]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"{program}: error: ")
    assert output in said
    assert ("no folder" if main is translate.main else "cannot be written") in said


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (recipe.COMMAND.run, "--train a --valid b --out"),
        (prepare.COMMAND.run, "--src en --tgt de --train a --valid b --out"),
        (reproduce.COMMAND.run, "x --test a --output"),
        (bench.COMMAND.run, "--pair x --test a --output"),
        (scoring.EVALUATE.run, "out"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(
    main: Run, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expected a path, not ''" in told(capsys, main, [*words.split(), ""])


def into(path: str | Path, **how: bool) -> None:
    check_output(path, inputs=(), **how)


def test_a_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--output .*: is a folder; give the name of a file"):
        check_output(tmp_path, "--output", inputs=())
    refused(r"file: is a file; give the name of a folder", into, file, folder=True)
    into(file)
    into(tmp_path, folder=True)


def test_missing_folders_are_made_only_where_the_program_does(tmp_path: Path) -> None:
    lost = tmp_path / "a" / "b"
    into(lost, replaced=True)
    into(lost, folder=True)
    refused(r"there is no folder .*a; create it first", into, lost)
    for name in ("x" * 250, "x" * 300, f"{'x' * 300}/a"):  # others are written beside it
        refused("its name is too long", into, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_asked_of_what_will_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is replaced needs its folder's permission, one that is written its own."""
    (file := tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    into(file)
    into("/dev/null")
    for output, made in ((file, {"replaced": True}), (tmp_path, {"folder": True})):
        refused("cannot be written", into, output, **made)
    refused("cannot be written", into, tmp_path / "new")


def test_an_input_is_known_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").touch()
    (tmp_path / "soft").symlink_to("data/one")
    (tmp_path / "hard").hardlink_to("data/one")
    (tmp_path / "folder").symlink_to("data")
    for name in ("data/one", "soft", "hard", "folder/../data/one", "folder/one", tmp_path / "soft"):
        for output in ("data/one", "soft", "hard"):
            refused(f"{output}: is an input as well", check_output, output, inputs=[None, name])
        check_output("data/two", inputs=[name])
    for name in ("data/one", "soft", "folder/one", "data/new"):
        for output in ("data", "folder", "."):
            refused("is in this folder", check_output, output, inputs=[name], folder=True)
        check_output("data/new folder", inputs=[name], folder=True)


# Each program with an output that is one of its inputs, spelt in another way: `x/..` is nothing.
IN_PLACE: dict[str, tuple[Run, str]] = {
    "specdec translate": (PROGRAMS["specdec translate"][0], "--input-path a --output-path x/../a"),
    "specdec train average": (checkpoints.COMMAND.run, "a.pt b.pt --output x/../b.pt"),
    "average --last": (checkpoints.COMMAND.run, "run --last 1 --output run/checkpoint_last.pt"),
    "specdec evaluate": (scoring.EVALUATE.run, "a b --json x/../b"),
    "encoder_initial.py": (initial.COMMAND.run, "--verifier a.pt --output x/../a.pt"),
    "specdec convert": (PROGRAMS["specdec convert bundle"][0], "data --output x/../data --force"),
    "specdec convert inside": (
        PROGRAMS["specdec convert bundle"][0],
        "data --AR-path run/a.pt --output x/../run --force",
    ),
    "specdec drafter": (drafter.COMMAND.run, "data --text a --output x/../data"),
    "specdec distill": (distill.COMMAND.run, "data --path a.pt --output x/../data"),
    "specdec distill inside": (distill.COMMAND.run, "data --path run/a.pt --output x/../run"),
    "specdec prepare": (
        prepare.COMMAND.run,
        "--src en --tgt de --train x/../raw/train.en,raw/train.de --valid t.tsv --out .",
    ),
    "specdec prepare --codes": (
        prepare.COMMAND.run,
        "--src en --tgt de --train t.tsv --valid t.tsv --codes bpe.codes --out x/..",
    ),
    "specdec prepare mix": (
        decontaminate.COMMAND.run,
        "--pair en-de --train x/../train.tsv --valid t.tsv --out .",
    ),
    "specdec prepare mix --also": (
        decontaminate.COMMAND.run,
        "--pair en-de --train t.tsv --valid t.tsv --test t.tsv --also raw/test.tsv --out raw",
    ),
    "train.sh": (run.DRAFTER.run, "--data data --verifier LAST --save-dir x/../run"),
    "specdec train verifier": (run.VERIFIER.run, "--data data --from LAST --save-dir run"),
}


@pytest.mark.fairseq
@pytest.mark.parametrize("program", IN_PLACE)
def test_no_program_writes_over_its_inputs(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("x", "data", "raw", "run"):
        (tmp_path / folder).mkdir()
    names = ["a", "b", "a.pt", "b.pt", "w.json", "bpe.codes", "t.tsv", "train.tsv"]
    names += ["raw/train.en", "raw/train.de", "raw/test.tsv", "run/a.pt", "data/bundle.json"]
    names += ["run/checkpoint1.pt", "run/checkpoint_last.pt"]
    names += [f"data/train.en-de.{end}" for end in ("en.bin", "de.bin", "en.idx", "de.idx")]
    for name in (*names, "data/dict.en.txt", "data/dict.de.txt"):
        (tmp_path / name).write_text("a 1\n", encoding="utf-8")

    def content() -> dict[Path, str]:
        return {p: p.read_text(encoding="utf-8") for p in tmp_path.rglob("*") if p.is_file()}

    before = content()
    main, words = IN_PLACE[program]
    said = told(capsys, main, words.replace("LAST", "run/checkpoint_last.pt").split())
    assert re.search(
        "is an input as well|is in this folder|belongs to the training|would overwrite", said
    ), said
    assert content() == before
