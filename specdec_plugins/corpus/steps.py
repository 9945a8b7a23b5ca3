"""Runs commands in sequence, each once: logs, progress, and resuming.

A command is done if its stamp says so for the same settings: what its result depends on. If these
differ from those of the outputs that are there, the run is refused before anything is touched.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from specdec_plugins.corpus.cli import option
from specdec_plugins.corpus.resume import (
    content,
    leaving_nothing_empty,
    locked,
    read_json,
    write_json,
)
from specdec_plugins.errors import BAD_INPUT, ENDING, Stopped, UserError
from specdec_plugins.formats.output import remove

NUM_LAST_LINES = 20  # of a log: shown if a command failed, searched for its progress
_TAIL = 1 << 14  # bytes read to find them
TERMINAL_PAUSE, LOG_PAUSE = 0.5, 15.0  # seconds between two reports of progress
COLUMNS = 100
_CONTENT, _RESULT = "content of", "result of"  # begin a setting
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # of prctl(2)


@dataclass(kw_only=True)
class StepOptions:
    """The flags of a command that runs steps."""

    # fmt: off
    redo: Sequence[str] = option((), "run these steps anew, and those that use their results; what "
        "they replace is kept as NAME.old until the new is whole", "STEP")
    list: bool = option(False, "print the steps and their commands without running them")
    # fmt: on


def last_words(line: str) -> str | None:
    """Progress of most commands: the last line that they wrote."""
    return line.strip()[:80] or None


def updates(total: int) -> Callable[[str], str | None]:
    """Progress of a training, from a line of its log."""

    def read(line: str) -> str | None:
        found = re.search(r"train_inner.*?\bloss=([\d.]+).*?num_updates=(\d+)", line)
        return found and f"update {found[2]} of {total}, loss {found[1]}"

    return read


@contextmanager
def running(words: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program; it has ended when the block has. how: more arguments of Popen.

    The program gets SIGTERM, at which a training saves and ends, if the block raises or this
    process is killed. On ctrl-C it gets that itself. It keeps the locks of ``corpus.resume`` that
    this process holds, for no second run may begin before it has ended.
    """
    # A signal that comes while the program starts is raised once there is a process to end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *ENDING))

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    try:
        process = subprocess.Popen(words, close_fds=False, preexec_fn=start, **how)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield process
    except BaseException as error:
        if isinstance(error, Stopped) or not isinstance(error, KeyboardInterrupt):
            process.terminate()
        raise
    finally:
        process.communicate()  # reads what is left of a pipe, too


def flags(**values: object) -> list[str]:
    """``width=3`` becomes ``--width 3``; True gives the flag alone, a list gives all its values,
    and empty values are left out.
    """
    words = []
    for name, value in values.items():
        if value is None or value is False or value in ("", [], ()):
            continue
        words.append("--" + name.strip("_").replace("_", "-"))
        if isinstance(value, list | tuple):
            words += map(str, value)
        elif value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return words


def name_of(title: str) -> str:
    """A title, or a name, as the name of a command."""
    return "-".join(re.findall(r"\w+", title.lower()))


@dataclass(frozen=True)
class Command:
    """A program with its arguments, which resumes where it was stopped or starts anew.

    Whoever makes it spells each path in one way, whatever the user typed: absolute, without links,
    or relative to the folder in which all commands are run.
    """

    title: str
    words: Sequence[str]  # the program first
    outputs: Sequence[str] = ()  # all that it writes
    aside: Sequence[str] = ()  # further words, which do not change the result: devices, workers
    inputs: Sequence[str] = ()  # what it reads that no other command writes
    lengths: Sequence[str] = ()  # flags for how far it goes: others make it go on, not begin
    progress: Callable[[str], str | None] = last_words  # of one line; None: it shows none
    act: Callable[[], object] | None = None  # done by this process; the words are not run then

    @property
    def name(self) -> str:
        """The name of its log and its stamp."""
        return name_of(self.title)

    @property
    def line(self) -> list[str]:
        """All words, those aside before ``--``, behind which another program's begin."""
        words = list(self.words)
        cut = words.index("--") if "--" in words else len(words)
        return [*words[:cut], *self.aside, *words[cut:]]

    def told(self) -> str:
        """Lines with its names and its command line."""
        return f"{self.title} ({self.name})\n    {self}\n"

    def __str__(self) -> str:
        return shlex.join(self.line)

    def reads(self, other: Command) -> bool:
        return any(
            word == path or word.startswith(f"{path}/")
            for path in other.outputs
            for word in self.words
        )

    def settings(self, folder: Path, before: Mapping[str, str]) -> dict[str, str]:
        """All that its result depends on, apart from other commands: flags and contents of inputs.

        Paths in the folder are relative to it, all others are names, so that both may be moved. An
        input that is gone counts as unchanged since ``before``.
        """
        inside, flag = f"{folder}/", "program"
        found = {flag: Path(self.words[0]).name}
        for word in self.words[1:]:
            parts = word.split(",")  # of a list, or of two files that are one corpus
            word = ",".join(
                part.removeprefix(inside) if part.startswith(inside) else Path(part).name
                for part in parts
            )
            if word.startswith("--"):
                flag, word = word, ""
            found[flag] = f"{found.get(flag, '')} {word}".strip()
        found |= {key: value for key, value in before.items() if key.startswith(_CONTENT)}
        for name in {Path(path).name for path in self.inputs}:
            same = [Path(path) for path in sorted(self.inputs) if Path(path).name == name]
            if all(path.exists() for path in same):
                found[f"{_CONTENT} {name}"] = " ".join(map(content, same))
        return found


class Step:
    """A command in a folder of runs, and what is known and to be done about its outputs.

    Its stamp, a JSON file, holds the ``settings`` of the command that made them; their ``state``,
    begun or done; ``made``, a number that is another one whenever it began anew or went further, at
    which what reads its outputs begins anew, too; ``kept``: outputs of before that are put aside
    until all steps are done.
    """

    def __init__(
        self, command: Command, folder: Path, before: Sequence[Step], is_named: bool
    ) -> None:
        """before: the earlier steps; is_named: the user wants it anew."""
        self.command = command
        self._path = folder / ".stamps" / f"{command.name}.json"
        self._stamp: dict[str, Any] = dict(read_json(self._path)) if self._path.is_file() else {}
        known = self._stamp.get("settings", {})
        self._settings = command.settings(folder, known)
        sources = [step for step in before if command.reads(step.command)]
        self._settings |= {f"{_RESULT} {s.command.title}": str(s.made) for s in sources}
        names = sorted({*known, *self._settings})
        self._unlike = [name for name in names if known.get(name) != self._settings.get(name)]
        # A run that was interrupted while it made a step anew goes on with that.
        is_asked = is_named and not self._stamp.get("kept")
        both = known.keys() & self._settings.keys() & {*self._unlike}
        self._is_anew = is_asked or any(name.startswith(_RESULT) for name in both)

    @property
    def _there(self) -> list[Path]:
        """Outputs that exist; an empty folder is none."""
        return [path for path in map(Path, self.command.outputs) if _is_there(path)]

    @property
    def _begins(self) -> bool:
        """Whether it begins with nothing that could be lost."""
        has_failed = self._stamp.get("state") == "begun" and self._unlike and not self._there
        return not self._stamp or bool(has_failed)

    @property
    def _goes_further(self) -> bool:
        return bool(self._stamp and self._unlike) and {*self._unlike} <= {*self.command.lengths}

    @cached_property
    def made(self) -> int:
        is_new = self._is_anew or self._begins or self._goes_further
        return time.time_ns() if is_new else int(self._stamp.get("made", 0))

    @property
    def is_done(self) -> bool:
        return self._stamp.get("state") == "done" and not self._unlike and not self._is_anew

    def check(self, can_redo: bool) -> None:
        """Raises UserError if it would destroy or mistake what is there."""
        title = self.command.title
        for path in self._there if self._is_anew else ():
            if _is_there(_aside(path)):
                raise UserError(
                    f"{title}: {_aside(path)} is kept from an earlier --redo; remove it, or give "
                    "it another name"
                )
        where = ", ".join(map(str, self._there)) or f"what {self._path.parent.parent} holds"
        anew = (
            f", or --redo {self.command.name} to make it and what follows from it anew; the old is "
            "kept as NAME.old until the new is whole"
        )
        if self._is_anew or self._goes_further:
            return
        if not self._stamp and self._there:
            raise UserError(
                f"{title}: {where} exists, and no command here has made it; give another folder"
                f"{anew * can_redo}"
            )
        if self._unlike and not self._begins:
            raise UserError(
                f"{title}: {where} was made by {self._other()}; use its flags and inputs, or give "
                f"another folder{anew * can_redo}"
            )

    def _other(self) -> str:
        """What is different about the command of the stamp."""
        before, now = self._stamp.get("settings"), self._settings
        if before is None:
            return "an earlier version of this project, which can finish it"

        def told(name: str, settings: Mapping[str, str]) -> str:
            return (settings[name] or "given") if name in settings else "not given"

        unlike = [
            f"{name} {told(name, before)} -> {told(name, now)}"
            if name.startswith("-")
            else f"another {name}"
            for name in self._unlike
        ]
        return f"another command ({'; '.join(unlike)})"

    def begin(self) -> bool:
        """Make the outputs ready; returns whether the command goes on with them."""
        goes_on = not (self._is_anew or self._begins)
        if self._is_anew:
            self._stamp["kept"] = list(map(str, self._there))
        if not goes_on or self._goes_further:
            self._set(settings=self._settings, state="begun", made=self.made)
        for path in map(Path, self._stamp.get("kept", ())):
            # Unless that was done before an interruption: then this is the new one.
            if _is_there(path) and not _is_there(_aside(path)):
                path.rename(_aside(path))
        return goes_on

    def end(self) -> None:
        self._set(state="done")

    def fail(self) -> None:
        """A failure of this process that has left nothing leaves no stamp either."""
        if self.command.act and not self._there and not self._stamp.get("kept"):
            self._path.unlink(missing_ok=True)

    def rest(self) -> None:
        """All that follows from it has followed; what was kept of others goes."""
        if kept := self._stamp.get("kept"):
            for path in kept:
                remove(_aside(Path(path)))
            self._set(kept=[])

    def _set(self, **values: Any) -> None:
        self._stamp |= values
        write_json(self._path, self._stamp)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _is_there(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)


@dataclass(frozen=True)
class Runner:
    """Runs commands, each once, and never over what another command has made."""

    folder: Path  # of logs and stamps, spelt as in the commands
    environment: Mapping[str, str]  # added to this process's own
    out: TextIO = sys.stdout
    pause: float | None = None  # seconds between progress reports; None: shorter on a terminal
    can_redo: bool = True  # the command line has --redo

    def run(
        self,
        commands: Sequence[Command],
        redo: Sequence[str] = (),
        record: Callable[[], object] = lambda: None,
    ) -> int:
        """Run the commands; returns how many were run.

        redo: titles or names of commands to run anew, with all that read their outputs; record:
        called at the end, however the work ends. Raises UserError if a command fails, another run
        works in the folder, or something there was made otherwise.
        """
        with locked(self.folder), leaving_nothing_empty([self.folder / ".stamps"]):
            steps = self._plan(commands, redo)
            try:
                num_run = sum(self._do(number, steps) for number in range(len(steps)))
            finally:
                record()
            for step in steps:
                step.rest()
        return num_run

    def _plan(self, commands: Sequence[Command], redo: Sequence[str]) -> list[Step]:
        asked = {name_of(word) for word in redo}
        names = [command.name for command in commands]
        if unknown := asked - {*names}:
            raise UserError(f"--redo {min(unknown)}: there is no such step; choose from {names}")
        steps: list[Step] = []
        for command in commands:
            steps.append(Step(command, self.folder, steps, command.name in asked))
        for step in steps:
            step.check(self.can_redo)
        return steps

    def _do(self, number: int, steps: Sequence[Step]) -> bool:
        """Run a step unless it is done; returns whether it ran."""
        step = steps[number]
        title = f"[{number + 1}/{len(steps)}] {step.command.title}"
        if step.is_done:
            self._say(f"{title}: done already")
            return False
        self._say(title)
        begun = step.begin()
        try:
            self._work(step.command, begun)
        except BaseException:
            step.fail()
            raise
        step.end()
        return True

    def _work(self, command: Command, begun: bool) -> None:
        """Run a command; its log is rewritten, or appended to if the command was begun before."""
        if command.act is not None:
            command.act()
            return
        self._say(show(str(command)))
        began = time.monotonic()
        path = self.folder / "logs" / f"{command.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        start, end = ("\r\033[K", "") if self.out.isatty() else ("", "\n")
        pause = self.pause or (TERMINAL_PAUSE if self.out.isatty() else LOG_PAUSE)
        environment = {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}
        with (
            path.open("ab" if begun else "wb") as log,
            running(
                command.line,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(pause)
                    break
                told = filter(None, map(command.progress, reversed(last_lines(path))))
                words = next(told, "starting")
                self._say(f"{start}    {time.monotonic() - began:4.0f} s  {words}", end)
        status = process.returncode
        if status != 0:
            raise UserError(
                f"{command.title}: failed with exit status {status}; {path} ends with\n"
                + textwrap.indent("\n".join(last_lines(path)), "    ")
                # Its last line says what to do about what was given to it.
                + ("" if status == BAD_INPUT else "\nRun the same command again to resume here")
            )
        self._say(f"{start}    {time.monotonic() - began:4.0f} s  done")

    def _say(self, text: str, end: str = "\n") -> None:
        self.out.write(text + end)
        self.out.flush()


def last_lines(path: Path) -> list[str]:
    """The end of a log. The carriage returns of a progress bar end lines too."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _TAIL))
        text = log.read().decode(errors="replace").replace("\r", "\n")
    return [line for line in text.split("\n") if line][-NUM_LAST_LINES:]


def show(command: str) -> str:
    """A command broken over lines, valid in a shell as it stands."""
    rows = textwrap.wrap(
        " ".join(command.split()),
        width=COLUMNS - 2,
        initial_indent="    ",
        subsequent_indent="        ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return " \\\n".join(rows)
