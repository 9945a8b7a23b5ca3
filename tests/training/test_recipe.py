"""The recipe: presets, its commands, and that the programs which they call know every flag."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks import reproduce
from specdec_plugins import cli
from specdec_plugins.app import convert, drafter
from specdec_plugins.corpus import checkpoints, decontaminate, distill, prepare
from specdec_plugins.corpus.steps import Command, Runner
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.training import recipe, run
from specdec_plugins.training.recipe import PRESETS, make_preset
from tests.refusals import refused, told

BUNDLE = "data/models/en-de-small"
TRAIN = "specdec_plugins.training.fairseq_train"
FLAGS = shlex.split("--train a.tsv.xz,b.tsv --valid dev.tsv:5- --test t1.tsv t2.tsv --out work/x")
PARSERS = {
    "prepare mix": decontaminate.COMMAND,
    "prepare": prepare.COMMAND,
    "distill": distill.COMMAND,
    "train average": checkpoints.COMMAND,
    "convert bundle": convert.BUNDLE,
    "drafter": drafter.COMMAND,
    "bench reproduce": reproduce.COMMAND,
}


def made(*flags: str) -> recipe.Recipe:
    return recipe.Recipe(recipe.COMMAND.parse(*FLAGS, *flags))


def commands(*flags: str) -> list[list[str]]:
    """The name of each, and its flags."""
    given = [shlex.split(str(command)) for command in made(*flags).commands()]
    assert {tuple(words[:3]) for words in given} == {recipe.SPECDEC}
    names = [min(len(words), 1 + (" ".join(words[3:5]) in cli.COMMANDS)) for words in given]
    return [[" ".join(w[3 : 3 + n]), *w[3 + n :]] for w, n in zip(given, names, strict=True)]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_script_is_there_knows_its_flags_and_finds_its_files(preset: str) -> None:
    found = commands("--preset", preset, "--cpu", "--ray", "local")
    for name, *words in found:
        assert name in cli.COMMANDS
        if name in PARSERS:
            PARSERS[name].parse(*words)
    names = [name for name, *_ in found]
    by_updates = 1 + (PRESETS[preset].retrain_updates > 0) + (not PRESETS[preset].drafter_hours)
    assert names.count("train average") == by_updates
    # Pairs that are too long for the training stay out of its text.
    words = found[names.index("prepare")]
    assert words[words.index("--max-length") + 1] == str(PRESETS[preset].max_words)
    # Files lead from step to step.
    outputs: list[str] = []
    for command in made("--preset", preset).commands():
        words = list(command.words)
        for flag in ("--from", "--verifier", "--path", "--AR-path", "--data", "--input", "--text"):
            if flag in words:
                path = words[words.index(flag) + 1]
                assert any(path.startswith(output) for output in outputs), (command.title, path)
        outputs += command.outputs
    assert {"work/x/report-t1.md", "work/x/report-t2.json"} <= set(outputs)


def test_from_a_bundle_take_its_subwords_and_its_weights() -> None:
    found = {name: words for name, *words in reversed(commands("--from", BUNDLE))}
    prepare, teacher = found["prepare"], found["train verifier"]
    assert prepare[prepare.index("--codes") + 1] == f"{BUNDLE}/bpe.codes"
    assert "--merges" not in prepare
    assert teacher[teacher.index("--from") + 1] == BUNDLE


Call = tuple[list[str], Mapping[str, str]]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Call]]:
    """What the trainings of a recipe would run, and in what environment, without running it."""
    calls: list[Call] = []
    monkeypatch.setattr(run, "call", lambda *call: calls.append(call) or 0)
    monkeypatch.setattr(run, "initial_flags", lambda args, output: ["--arch", "block"])
    monkeypatch.setattr(run, "_positions", lambda args: [])

    def train(*flags: str) -> list[Call]:
        calls.clear()
        for name, *words in commands(*flags):
            trainings = {"train verifier": run.VERIFIER, "train drafter": run.DRAFTER}
            if (training := trainings.get(name)) is None:
                continue
            for flag in ("--from", "--verifier"):
                if flag in words:
                    words[words.index(flag) + 1] = __file__  # some file that is there
            words[words.index("--data") + 1] = str(tmp_path)
            words[words.index("--save-dir") + 1] = str(tmp_path / "save")
            assert training.run(words) == 0
        return calls

    return train


@pytest.fixture
def stubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run a recipe whose commands write a word to each of their outputs; returns which ran."""
    for name in ("a.tsv", "b.tsv", "c.tsv"):
        (tmp_path / name).write_text("x\ty\n")
    ran: list[str] = []

    def work(_: object, command: Command, begun: bool) -> None:
        ran.append(command.name)
        for output in map(Path, command.outputs):
            output = output if output.suffix else output / "checkpoint_last.pt"
            output.parent.mkdir(exist_ok=True)
            assert not output.exists()
            output.write_text("a week on a GPU")

    monkeypatch.setattr(Runner, "_work", work)

    def run(*flags: object) -> list[str]:
        ran.clear()
        words = ["--train", tmp_path / "a.tsv", "--valid", tmp_path / "b.tsv", *flags]
        recipe.main(recipe.COMMAND.parse("--preset", "base", *words))
        return list(ran)

    return run


def test_a_finished_recipe_stays_whatever_its_paths_and_machine_are_called(
    stubbed: Callable[..., list[str]], tmp_path: Path
) -> None:
    out, test = tmp_path / "out", tmp_path / "b.tsv"
    common = ("--test", test, "--out")
    assert len(stubbed(*common, out)) == 11
    (tmp_path / "link").symlink_to(out)
    for spelling in (f"{out}/", os.path.relpath(out), tmp_path / "link", f"{out}/../out"):
        assert stubbed(*common, spelling) == []
    machine = "--workers 4 --precision bf16 --cpu --ray local"
    assert stubbed("--test", os.path.relpath(test), "--out", out, *machine.split()) == []
    before = (out / "recipe.json").read_text()
    told = r"another command \(--dropout 0.1 -> 0.3; --lr 0.0007 -> 0.1\)"
    changes = ("--set", "verifier_lr=0.1", "dropout=0.3")
    refused(f"train the teacher: .*/teacher was made by {told}", stubbed, *common, out, *changes)
    assert (out / "recipe.json").read_text() == before
    assert (out / "teacher" / "checkpoint_last.pt").read_text() == "a week on a GPU"


def test_another_test_set_is_scored_and_nothing_else_is_done(
    stubbed: Callable[..., list[str]], tmp_path: Path
) -> None:
    one, two = tmp_path / "b.tsv", tmp_path / "c.tsv"
    out = ("--out", tmp_path / "out")
    stubbed("--test", one, *out)
    assert stubbed("--test", one, two, *out) == ["report-on-c"]
    assert stubbed("--test", two, *out) == []
    assert stubbed("--test", two, one, f"{two}:1-", *out) == ["report-on-c1"]


def test_training_text_that_changed_or_is_gone(
    stubbed: Callable[..., list[str]], tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")
    stubbed(*out)
    (tmp_path / "a.tsv").write_text("z\ty\n")
    refused("mix .*another content of a.tsv", stubbed, *out)
    redone = stubbed(*out, "--redo", "mix the training files without held-out sentences")
    assert len(redone) == 10
    (tmp_path / "a.tsv").unlink()
    assert stubbed(*out) == []


def test_folders_of_training_text_that_changed_or_are_gone(
    stubbed: Callable[..., list[str]], tmp_path: Path
) -> None:
    (folder := tmp_path / "corpora").mkdir()
    (folder / "train.one.en-de.tsv").write_text("a\tb\n")
    out = ("--out", tmp_path / "out", "--train", folder)
    assert len(stubbed(*out)) == 10
    (folder / "README").touch()
    assert stubbed(*out) == []
    (folder / "train.two.en-de.tsv").write_text("c\td\n")
    refused(r"\(another content of train.two.en-de.tsv\)", stubbed, *out)
    shutil.rmtree(folder)
    assert stubbed(*out) == []


def test_without_training_again_the_teacher_is_the_verifier() -> None:
    given = commands("--set", "retrain_updates=0")
    assert not any("work/x/verifier" in word for words in given for word in words)
    drafter = next(words for words in given if "--verifier" in words)
    convert = next(words for words in given if "--AR-path" in words)
    assert drafter[drafter.index("--verifier") + 1] == "work/x/teacher.pt"
    assert convert[convert.index("--AR-path") + 1] == "work/x/teacher.pt"


def test_hours_for_the_drafter_take_the_place_of_updates() -> None:
    given = commands("--preset", "en-de", "--cpu", "--precision", "bf16")
    convert, train = next(pair for pair in pairwise(given) if pair[1][0] == "drafter")
    args = drafter.COMMAND.parse(*train[1:])
    assert str(args.model) == convert[convert.index("--output") + 1]  # a verifier alone
    assert "--path" not in convert
    assert (args.hours, args.device, args.precision) == (10.0, "cpu", "bf16")
    assert str(args.output) == "work/x/bundle"
    assert not any(words[0] == "train drafter" for words in given)
    published = commands("--preset", "en-de", "--set", "drafter_hours=0")
    assert not any(words[0] == "drafter" for words in published)


def test_a_preset_with_masks_trains_on_what_they_write() -> None:
    given = commands("--preset", "en-de-base", "--cpu", "--precision", "bf16")
    masks, prepare = next(pair for pair in pairwise(given) if pair[0][0] == "prepare masks")
    masked = masks[masks.index("--output") + 1]
    assert prepare[prepare.index("--train") + 1] == masked != masks[1]
    plain = commands("--preset", "en-de-base", "--set", "masked=0")
    assert not any(words[0] == "prepare masks" or masked in words for words in plain)


@pytest.mark.parametrize("num_gpus", [0, 8])
def test_several_workers_have_one_launcher(
    num_gpus: int, trained: Callable[..., list[Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    for command, _ in trained("--workers", "8"):
        assert command[1:4] == ["-m", "torch.distributed.run", "--standalone"]
        assert command[4:8] == ["--nproc-per-node", "8", "-m", TRAIN]
        assert ("--cpu" in command) == (num_gpus == 0)
    for command, _ in trained("--workers", "1"):
        assert command[1:3] == ["-m", TRAIN]
        assert (("--distributed-world-size", "1") in pairwise(command)) == (num_gpus > 0)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_an_update_has_the_tokens_that_the_recipe_says(
    workers: int, trained: Callable[..., list[Call]], caplog: pytest.LogCaptureFixture
) -> None:
    """Or, where they cannot be divided, a few less; the log gives the number in any case."""
    caplog.set_level("INFO", logger=run.logger.name)
    preset = PRESETS["base"]
    asked = [preset.verifier_tokens, preset.verifier_tokens, preset.drafter_tokens]
    calls = trained("--cpu", "--preset", "base", "--workers", str(workers))
    for (command, _), tokens in zip(calls, asked, strict=True):
        given = dict(pairwise(command))
        at_once, num_passes = int(given["--max-tokens"]), int(given["--update-freq"])
        assert at_once <= int(given["--max-tokens-valid"]) == preset.max_tokens
        assert int(given["--batch-size"]) * preset.heads < 2**16  # however short sentences are
        product = at_once * num_passes * workers
        assert tokens - num_passes * workers < product <= tokens
        assert f"updates of at most {product} tokens" in caplog.text


def test_a_training_goes_on_in_its_precision_on_any_machine(
    tmp_path: Path,
    trained: Callable[..., list[Call]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = {"fp16": False, "bf16": True}
    save_checkpoint({"cfg": {"common": common}, "model": {}}, tmp_path / "save/checkpoint_last.pt")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    for command, _ in trained():
        assert "--bf16" in command
        assert "--fp16" not in command
    flags = ["--data", tmp_path, "--save-dir", tmp_path / "save", "--precision", "fp16"]
    said = told(capsys, run.VERIFIER.run, [*map(str, flags)])
    assert "started in bf16; omit --precision fp16" in said


def test_more_workers_than_gpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    flags = ["--data", str(tmp_path), "--save-dir", str(tmp_path / "new"), "--workers", "3"]
    assert "--workers 3: this machine has 2 GPUs" in told(capsys, run.VERIFIER.run, [*flags])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--lr inf", "--lr must be above 0 and at most 1, not inf."),
        ("--dropout 1.5", "--dropout must be 0 or more and less than 1, not 1.5."),
        ("--heads 6", "give another width, or one of 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 heads"),
        ("--end-lr 1e-3", "--end-lr 0.001 is above --lr 0.0007, from which the rate falls"),
        ("--precision fp16 --cpu", "--precision fp16 needs a GPU; give bf16 or fp32"),
    ],
)
def test_what_no_training_can_use_is_refused_before_it(
    flags: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(tmp_path), "--save-dir", str(tmp_path / "new"), *flags.split()]
    assert sentence in told(capsys, run.VERIFIER.run, words)


def test_a_prepared_folder_takes_the_place_of_corpora() -> None:
    args = recipe.COMMAND.parse("--prepared", "work/wmt14", "--out", "work/x")
    titles = [step.title for step in recipe.Recipe(args).commands()]
    assert titles[0] == "train the teacher"
    assert "report on test" in titles


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--train a.tsv --valid b --out o --preset small --set drafter_updates=0", "more than 0"),
        ("--out o", "give either --train and --valid, or --prepared"),
        ("--train a.tsv --out o", "needs a dev set"),
        ("--train a.tsv --valid b --out o --pair en", "two languages"),
        ("--train a.tsv --valid b --out o --set width", "expected a number"),
        ("--train a.tsv --valid b --out o --set dropout=2", "dropout=2: must be .* less than 1"),
        ("--train a.tsv --valid b --out o --set max_ratio=nan", "more than 0"),
        ("--train a.tsv --valid b --out o --set wide=3", "there is no 'wide'"),
        ("--train a.tsv --valid b --out o --set retrain_updates=9", "too few to save"),
        ("--train a.tsv --valid b --out o --preset en-de --set drafter_lr=.1", "for 10 hours; add"),
        ("--train a.tsv --valid b --out o --set verifier_end_lr=.1", "is above verifier_lr, 0.0"),
        ("--train a.tsv --valid b --out o --set heads=5", "5 attention heads cannot share a width"),
        ("--train a.tsv --valid b --out o --from docs", "not a bundle; give a folder with bundle."),
        (
            f"--train a.tsv --valid b --out o --from {BUNDLE} --set heads=8",
            "--heads is 4 there and 8 here; a verifier can become wider only if",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(flags: str, sentence: str) -> None:
    refused(sentence, recipe.Recipe, recipe.COMMAND.parse(*flags.split()))


def test_a_stopped_training_does_not_promise_what_it_may_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "call", stop)
    words = ["--data", str(tmp_path), "--save-dir", str(tmp_path / "save"), "--cpu"]
    assert run.VERIFIER.run(words) == 130
    assert "goes on from the last checkpoint, if one was saved" in capsys.readouterr().err


def test_values_of_a_preset_can_be_changed() -> None:
    preset = make_preset("small", ["width=64", "dropout=0"])
    assert (preset.width, preset.dropout) == (64, 0.0)
    assert preset.heads == PRESETS["small"].heads
