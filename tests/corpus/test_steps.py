"""Commands run once, in order; here they are tiny shell scripts."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.corpus.steps import Command, Runner, show, updates
from specdec_plugins.errors import UserError
from tests.bundles import ROOT
from tests.programs import talking_to
from tests.refusals import refused

# A training that takes a moment to save when it is told to end, and what runs it.
TRAINING = """\
trap 'sleep 0.5; touch {0}/saved; exit 0' TERM
touch {0}/begun
while true; do sleep 0.05; done
"""
PROGRAM = """\
import sys
from pathlib import Path
from specdec_plugins.corpus import cli
from specdec_plugins.corpus.steps import Command, Runner
main = lambda args: Runner(args.folder, {}).run([Command("train", ["bash", "-c", args.script])])
flags = [
    cli.Option("", "", name="folder", type=Path, positional=True),
    cli.Option("", "", name="script", positional=True),
]
sys.exit(cli.CommandLine("recipe.sh", main, flags).run())
"""


class Traced:
    """Commands that append their names to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.steps = [
            self.step("one"), self.step("two", reads="one"), self.step("three", reads="two"),
        ]  # fmt: skip

    def step(self, name: str, more: str = "true", *, reads: str = "", **about: Any) -> Command:
        """It appends to a file, once another one is there that it reads."""
        output = self.folder / name
        script = f"echo {name} >> {self.trace}; {more}; echo x >> $1"
        inputs = [str(self.folder / reads)] * bool(reads)
        words = ["bash", "-c", script, "-", str(output), *inputs]
        return Command(name, words, [str(output)], **about)

    def run(self, *redo: str) -> tuple[int, str]:
        self.trace.write_text("")
        out = io.StringIO()
        runner = Runner(self.folder / "runs", {}, out)
        return runner.run(self.steps, redo), out.getvalue()

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    @property
    def ran(self) -> list[str]:
        return self.trace.read_text().split()


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


def test_runs_in_order_shows_each_command_and_does_nothing_again(traced: Traced) -> None:
    num_run, said = traced.run()
    assert (num_run, traced.ran) == (3, ["one", "two", "three"])
    assert "[2/3] two\n    bash -c 'echo two" in said
    num_run, said = traced.run()
    assert (num_run, traced.ran) == (0, [])
    assert said.count("done already") == 3


@pytest.mark.parametrize("part", ["done", "begun"])
def test_what_another_command_made_is_refused_and_left_alone(part: str, traced: Traced) -> None:
    script = "true" if part == "done" else f"echo half > {traced.folder / 'two'}; exit 3"
    traced.steps[1] = traced.step("two", script, reads="one")
    if part == "done":
        traced.run()
    else:
        refused("exit status 3", traced.run)
    before = traced.read("two")
    traced.steps[1] = traced.step("two", script, reads="one")
    words = [*traced.steps[1].words, "--lr", "0.1", "--fp16"]
    traced.steps[1] = replace(traced.steps[1], words=words)
    refused(
        r"two: /.*two was made by another command \(--fp16 not given -> given; --lr not given -> "
        r"0.1\); .* --redo two to make it and what follows from it anew",
        traced.run,
    )
    assert traced.ran == []  # not even what comes before it
    assert traced.read("two") == before
    traced.steps[1] = replace(traced.steps[1], words=words[:-3])
    if part == "done":
        assert traced.run()[0] == 0


def test_machines_spellings_and_further_steps_make_no_other_command(traced: Traced) -> None:
    traced.steps[0] = replace(traced.steps[0], aside=["--workers", "8"])
    traced.run()
    traced.steps[0] = replace(traced.steps[0], aside=["--workers", "4", "--cpu"])
    traced.steps.append(traced.step("four", reads="three"))
    assert traced.run()[0] == 1
    assert traced.ran == ["four"]


def test_words_aside_are_passed_on_but_not_to_a_program_behind_dashes() -> None:
    command = Command("one", ["train.sh", "--lr", "1", "--", "--seed", "2"], aside=["--cpu"])
    assert str(command) == "train.sh --lr 1 --cpu -- --seed 2"


def test_a_step_that_is_asked_for_is_made_anew_with_what_follows_from_it(traced: Traced) -> None:
    traced.steps.append(traced.step("aside", reads="one"))
    traced.run()
    script = f"test -e {traced.folder / 'two.old'}; test ! -e {traced.folder / 'two'}"
    traced.steps[1] = traced.step("two", f"{script} || exit 4", reads="one")
    refused("another command", traced.run)
    refused("--redo tow: there is no such step; choose from", traced.run, "tow")
    assert traced.run("two")[0] == 2
    assert traced.ran == ["two", "three"]
    assert not list(traced.folder.glob("*.old"))
    assert traced.run()[0] == 0


def test_until_the_new_is_whole_the_old_is_kept_whatever_stops_it(traced: Traced) -> None:
    traced.run()
    (traced.folder / "two").write_text("a week of work")
    attempts = traced.folder / "attempts"
    script = f"echo x >> {attempts}; test $(wc -l < {attempts}) -gt 2 || {{ echo h > $1; exit 3; }}"
    traced.steps[1] = traced.step("two", script, reads="one")
    for redo in (["two"], ["two"]):  # the second goes on with what the first has begun
        refused("exit status 3", traced.run, *redo)
        assert (traced.read("two.old"), traced.read("two")) == ("a week of work", "h\n")
    assert traced.run()[0] == 2  # as does a call that no longer says so
    assert traced.ran == ["two", "three"]
    assert not list(traced.folder.glob("*.old"))
    traced.run("two")  # all was done, so this is asked anew
    assert traced.ran == ["two", "three"]


def test_nothing_is_put_aside_over_something_else(traced: Traced) -> None:
    traced.run()
    (traced.folder / "two.old").write_text("mine")
    refused("two.old is kept from an earlier --redo; remove it", traced.run, "two")
    (traced.folder / "two").unlink()  # then there is nothing to put aside
    assert traced.run("two")[0] == 2
    assert traced.read("two.old") == "mine"


def test_a_run_that_is_killed_while_it_puts_aside_goes_on_with_that(traced: Traced) -> None:
    two = traced.folder / "two"
    traced.steps[1] = replace(traced.steps[1], outputs=[str(two), f"{two}.more"])
    Path(f"{two}.more").touch()
    refused("two.more exists, and no command here has made it", traced.run)
    Path(f"{two}.more").unlink()
    traced.run()
    Path(f"{two}.more").touch()
    with pytest.MonkeyPatch.context() as patched:
        rename = Path.rename

        def until_it_is_killed(path: Path, to: Path) -> Path:
            if path.name == "two.more":
                raise KeyboardInterrupt
            return rename(path, to)

        patched.setattr(Path, "rename", until_it_is_killed)
        with pytest.raises(KeyboardInterrupt):
            traced.run("two")
    assert (traced.folder / "two.old").exists()
    assert traced.run()[0] == 2
    assert not list(traced.folder.glob("*.old"))


def test_what_nobody_here_has_made_is_left_alone(traced: Traced) -> None:
    (traced.folder / "three").write_text("mine")
    refused("three exists, and no command here has made it; give another folder, or", traced.run)
    assert traced.ran == []
    (traced.folder / "three").unlink()
    (traced.folder / "three").mkdir()
    (traced.folder / "three").rmdir()
    assert traced.run()[0] == 3


def test_a_failure_that_left_nothing_is_no_obstacle(traced: Traced) -> None:
    traced.steps[0] = traced.step("one", "echo give other flags; exit 2")
    refused(r"(?s)failed with exit status 2; .*give other flags$", traced.run)
    traced.steps[0] = traced.step("one")
    assert traced.run()[0] == 3


def test_a_stamp_of_an_earlier_version_is_refused(traced: Traced) -> None:
    traced.run()
    stamp = traced.folder / "runs" / ".stamps" / "two.json"
    wanted = {"command": str(traced.steps[1]), "history": "0" * 64}
    stamp.write_text(json.dumps({"wanted": wanted, "outputs": "done"}))
    refused("was made by an earlier version of this project", traced.run)
    assert traced.read("two") == "x\n"
    assert traced.run("two")[0] == 2


def test_other_text_in_the_same_file_is_another_input_and_its_name_is_not(traced: Traced) -> None:
    (text := traced.folder / "text.en").write_text("a\n")

    def reading(path: Path) -> None:
        step = traced.step("one")
        traced.steps[0] = replace(step, words=[*step.words, str(path)], inputs=[str(path)])

    reading(text)
    traced.run()
    (traced.folder / "elsewhere").mkdir()
    moved = text.rename(traced.folder / "elsewhere" / "text.en")
    assert traced.run()[0] == 0  # it is gone, and no longer needed
    reading(moved)
    assert traced.run()[0] == 0
    moved.write_text("b\n")
    refused(r"one was made by another command \(another content of text.en\)", traced.run)


def test_a_moved_folder_is_not_run_again(tmp_path: Path) -> None:
    for name in ("here", "there"):
        folder = tmp_path / name
        words = ["bash", "-c", "touch $1 $2", "-", f"{folder}/a", f"{tmp_path}/b"]
        commands = [Command("one", words, [f"{folder}/a", f"{tmp_path}/b"])]
        number = Runner(folder, {}, io.StringIO()).run(commands)
        assert number == (name == "here")
        if name == "here":
            folder.rename(tmp_path / "there")


def test_a_longer_way_goes_on_and_what_follows_from_it_is_made_anew(traced: Traced) -> None:
    def going(hours: str) -> None:
        step = traced.step("one", lengths=["--hours"])
        traced.steps[0] = replace(step, words=[*step.words, "--hours", hours])

    going("1")
    traced.run()
    going("2")
    traced.steps[1] = traced.step(
        "two", f"test -e {traced.folder / 'two.old'} || exit 4", reads="one"
    )
    assert traced.run()[0] == 3
    assert (traced.read("one"), traced.read("two")) == ("x\nx\n", "x\n")
    assert traced.run()[0] == 0


def test_a_second_run_at_the_same_time_is_refused(traced: Traced) -> None:
    folder = traced.folder / "runs"

    def second(line: str) -> None:
        refused("another run is writing here", traced.run)
        assert traced.ran == []
        assert (folder / "logs/other.log").read_text() == "a line\n"  # while it runs

    words = ("bash", "-c", "echo a line; sleep 0.5")
    traced.steps[0] = Command("other", words, progress=second)
    assert Runner(folder, {}, io.StringIO(), pause=0.2).run(traced.steps[:1]) == 1
    assert traced.run()[0] == 2  # the lock is gone


def test_an_interrupted_step_continues_on_its_output(traced: Traced) -> None:
    part = traced.folder / "two"
    half = f"test -e {part} || {{ touch {part}; exit 3; }}"
    traced.steps[1] = traced.step("two", half, reads="one")
    refused("exit status 3", traced.run)
    assert traced.run()[0] == 2
    assert traced.ran == ["two", "three"]


def test_the_log_of_a_step_holds_all_its_pieces(traced: Traced) -> None:
    again = traced.folder / "again"
    traced.steps[0] = traced.step(
        "one", f"echo a piece; test -e {again} || {{ touch {again}; exit 3; }}"
    )
    with pytest.raises(UserError):
        traced.run()
    traced.run()
    log = traced.folder / "runs/logs/one.log"
    assert log.read_text().count("a piece") == 2
    traced.steps[0] = traced.step("one", "echo another")
    traced.run("one")
    assert log.read_text() == "another\n"


def test_a_failure_shows_the_end_of_the_log(traced: Traced) -> None:
    traced.steps[0] = traced.step("one", "seq 50; echo the reason >&2; exit 1")
    with pytest.raises(UserError) as failure:
        traced.run()
    sentence = str(failure.value)
    assert "the reason" in sentence
    assert "31" not in sentence.split()  # twenty lines at most
    assert str(traced.folder / "runs/logs/one.log") in sentence
    assert traced.ran == ["one"]


def test_progress_is_read_from_lines_and_returns(traced: Traced) -> None:
    out = io.StringIO()
    step = Command(
        "one",
        ("bash", "-c", r"printf '10%%\r20%%\rnoise\n'; sleep 0.5"),
        progress=lambda line: line if "%" in line else None,
    )
    Runner(traced.folder, {}, out, pause=0.2).run([step])
    told = [line.split("s  ")[1] for line in out.getvalue().splitlines() if "s  " in line]
    assert told[0] in ("20%", "starting")  # as soon as the shell is
    assert told[-1] == "done"


def test_a_shown_command_is_the_command(traced: Traced) -> None:
    command = ".venv/bin/python train.py --adam-betas '(0.9, 0.98)' " + "--flag value " * 20
    shown = show(command)
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert " ".join(shown.replace("\\\n", " ").split()) == " ".join(command.split())


def test_progress_of_a_training() -> None:
    line = "INFO | train_inner | epoch 001: 40 / 196 loss=9.93, nll_loss=9.66, num_updates=40, lr=1"
    assert updates(700)(line) == "update 40 of 700, loss 9.93"
    assert updates(700)("INFO | fairseq.trainer | begin training epoch 1") is None


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_to_the_run_reaches_its_training_which_saves_before_another_begins(
    number: signal.Signals, tmp_path: Path
) -> None:
    words = (sys.executable, "-c", PROGRAM, tmp_path, TRAINING.format(tmp_path))
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run under nohup hands down that it is not
    with talking_to(*words, PYTHONPATH=str(ROOT)) as (process, _, _):
        wait(begun.exists)
        process.send_signal(number)
        process.send_signal(number)  # some senders repeat themselves
        if number == signal.SIGKILL:  # which leaves nobody to wait
            assert process.wait() == -signal.SIGKILL
            runner = Runner(tmp_path, {}, io.StringIO())
            refused("another run is writing here", runner.run, [Command("other", ["true"])])
            wait(saved.exists)
            return
        assert process.wait(timeout=60) == 128 + number
    assert saved.exists()
