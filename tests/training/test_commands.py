"""Commands run once, in order; here they are tiny shell scripts."""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_plugins.errors import UserError
from specdec_plugins.training.commands import Command, Paused, Runner, show, updates
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
from specdec_plugins.training.commands import Command, Runner
main = lambda args: Runner(args.folder, {}).run([Command("train", ["bash", "-c", args.script])])
flags = [("folder", None, Path, ""), ("script", None, str, "")]
sys.exit(cli.CommandLine("recipe.sh", "", main, flags).run())
"""


class Traced:
    """Commands that append their names to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.steps = [self.step("one"), self.step("two"), self.step("three")]

    def step(self, name: str, more: str = "true") -> Command:
        output = self.folder / name
        script = f"echo {name} >> {self.trace}; {more}; touch {output}"
        return Command(name, ("bash", "-c", script), (str(output),))

    def run(self) -> tuple[int, str]:
        self.trace.write_text("")
        out = io.StringIO()
        runner = Runner(self.folder / "runs", {}, out)
        return runner.run(self.steps), out.getvalue()

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


def test_a_changed_command_runs_again_with_all_after_it(traced: Traced) -> None:
    traced.run()
    # What the other command left must not be taken for work to be continued.
    traced.steps[1] = traced.step("two", f"test ! -e {traced.folder / 'two'}")
    assert traced.run()[0] == 2
    assert traced.ran == ["two", "three"]


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
    traced.steps[1] = traced.step("two", f"test -e {part} || {{ touch {part}; exit 3; }}")
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
    traced.run()
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


def test_a_command_whose_time_is_up_goes_on_the_next_time(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    script = f"mkdir -p {kept}; test -e {kept}/half || {{ touch {kept}/half; exit 75; }}"
    runner = Runner(tmp_path / "runs", {}, io.StringIO())
    kept.mkdir()
    (kept / "half").touch()  # of another command, so that it is removed
    command = Command("train", ("bash", "-c", script), (str(kept),))
    with pytest.raises(Paused):
        runner.run([command])
    assert runner.run([command]) == 1
    assert runner.run([command]) == 0


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
        assert process.wait() == 128 + number
    assert saved.exists()
