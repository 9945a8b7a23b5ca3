"""Steps run once, in order; commands are tiny shell scripts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from specdec_plugins.errors import UserError
from specdec_plugins.training.pipeline import Pipeline, Step, show


class Job:
    """A pipeline whose steps append their names to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.steps = [self.step("one"), self.step("two"), self.step("three")]

    def step(self, name: str, more: str = "true") -> Step:
        output = self.folder / name
        script = f"echo {name} >> {self.trace}; {more}; touch {output}"
        return Step(name, f"$SHELL -c '{script}'", (str(output),))

    def run(self) -> tuple[int, str]:
        self.trace.write_text("")
        out = io.StringIO()
        pipeline = Pipeline(self.folder / "runs", {"SHELL": "bash"}, out)
        return pipeline.run(self.steps), out.getvalue()

    @property
    def ran(self) -> list[str]:
        return self.trace.read_text().split()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_runs_in_order_and_shows_each_command(job: Job) -> None:
    num_run, said = job.run()
    assert (num_run, job.ran) == (3, ["one", "two", "three"])
    assert "[2/3] two\n    $SHELL -c 'echo two" in said


def test_a_second_run_does_nothing(job: Job) -> None:
    job.run()
    num_run, said = job.run()
    assert (num_run, job.ran) == (0, [])
    assert said.count("done before") == 3


def test_a_changed_command_runs_again_with_all_after_it(job: Job) -> None:
    job.run()
    job.steps[1] = job.step("two", "echo changed")
    assert job.run()[0] == 2
    assert job.ran == ["two", "three"]


def test_output_of_another_command_is_removed_before_the_new_one_runs(job: Job) -> None:
    job.run()
    # What is there must not be taken for work to be continued.
    job.steps[1] = job.step("two", f"test ! -e {job.folder / 'two'}")
    job.run()
    assert job.ran == ["two", "three"]


def test_a_second_run_at_the_same_time_is_refused(job: Job) -> None:
    folder = job.folder / "runs"

    def second(line: str) -> None:
        with pytest.raises(UserError, match="another run is writing here"):
            job.run()
        assert job.ran == []

    job.steps[0] = Step("other", "$SHELL -c 'echo a line'", progress=second)
    assert Pipeline(folder, {"SHELL": "bash"}, io.StringIO()).run(job.steps[:1]) == 1
    assert job.run()[0] == 2  # the lock is gone


def test_an_interrupted_step_continues_on_its_output(job: Job) -> None:
    part = job.folder / "two"
    job.steps[1] = job.step("two", f"test -e {part} || {{ touch {part}; exit 3; }}")
    with pytest.raises(UserError, match="exit status 3"):
        job.run()
    assert job.run()[0] == 2
    assert job.ran == ["two", "three"]


def test_the_log_of_a_step_holds_all_its_pieces(job: Job) -> None:
    job.steps[0] = job.step("one", "echo a piece; test -e again || { touch again; exit 3; }")
    job.steps[0] = Step("one", job.steps[0].command.replace("again", f"{job.folder}/again"))
    with pytest.raises(UserError):
        job.run()
    job.run()
    log = job.folder / "runs/logs/one.log"
    assert log.read_text().count("a piece") == 2
    job.steps[0] = job.step("one", "echo another")
    job.run()
    assert log.read_text() == "another\n"


def test_a_log_can_be_read_while_its_step_runs(job: Job) -> None:
    log = job.folder / "runs/logs/one.log"
    seen = []

    def progress(line: str) -> None:
        seen.append(log.read_text())

    step = Step("one", "$SHELL -c 'echo first'", progress=progress)
    Pipeline(job.folder / "runs", {"SHELL": "bash"}, io.StringIO()).run([step])
    assert seen == ["first\n"]


def test_a_failure_shows_the_end_of_the_log(job: Job) -> None:
    job.steps[0] = job.step("one", "seq 50; echo the reason >&2; exit 1")
    with pytest.raises(UserError) as failure:
        job.run()
    sentence = str(failure.value)
    assert "the reason" in sentence
    assert "31" not in sentence.split()  # twenty lines at most
    assert str(job.folder / "runs/logs/one.log") in sentence
    assert job.ran == ["one"]


def test_progress_is_read_from_lines_and_returns(job: Job) -> None:
    times = iter(range(0, 10_000, 20))  # seconds; each look at the clock is later than the pause
    out = io.StringIO()
    step = Step(
        "one",
        r"$SHELL -c 'printf 10%%\\r20%%\\rnoise\\n'",
        progress=lambda line: line if "%" in line else None,
    )
    Pipeline(job.folder, {"SHELL": "bash"}, out, lambda: float(next(times))).run([step])
    told = [line.split("s  ")[1] for line in out.getvalue().splitlines() if "s  " in line]
    assert told == ["10%", "20%", "20%", "done"]


def test_a_shown_command_is_the_command(job: Job) -> None:
    command = "$PYTHON train.py --adam-betas '(0.9, 0.98)' " + "--flag value " * 20
    shown = show(command)
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert " ".join(shown.replace("\\\n", " ").split()) == " ".join(command.split())
