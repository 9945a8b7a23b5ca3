"""Runs commands in sequence, each once: logs, progress, and resuming."""

from __future__ import annotations

import ctypes
import hashlib
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
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.corpus.resume import Steps, locked
from specdec_plugins.errors import Stopped, UserError

NUM_LAST_LINES = 20  # of a log: shown if a command failed, searched for its progress
_TAIL = 1 << 14  # bytes read to find them
TERMINAL_PAUSE, LOG_PAUSE = 0.5, 15.0  # seconds between two reports of progress
COLUMNS = 100
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # of prctl(2)


class Paused(Exception):
    """A command's time is up; running the same commands again continues there."""


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
    process = subprocess.Popen(words, close_fds=False, preexec_fn=_end_with_parent, **how)
    try:
        yield process
    except BaseException as error:
        if isinstance(error, Stopped) or not isinstance(error, KeyboardInterrupt):
            process.terminate()
        raise
    finally:
        process.communicate()  # reads what is left of a pipe, too


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(frozen=True)
class Command:
    """A program with its arguments, which resumes where it was stopped or starts anew."""

    title: str
    words: Sequence[str]  # the program first
    outputs: Sequence[str] = ()  # removed if another command wrote them
    progress: Callable[[str], str | None] = last_words  # of one line; None: it shows none

    @property
    def name(self) -> str:
        """The name of its log and its stamp."""
        return "-".join(re.findall(r"\w+", self.title.lower()))

    def __str__(self) -> str:
        """The command line, quoted for a shell."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class Runner:
    """Runs commands. Finished ones are skipped; from a changed command on, all run again."""

    folder: Path  # of logs and stamps
    environment: Mapping[str, str]  # added to this process's own
    out: TextIO = sys.stdout
    pause: float | None = None  # seconds between progress reports; None: shorter on a terminal

    def run(self, commands: Sequence[Command]) -> int:
        """Run the commands; returns how many were run.

        Raises UserError if a command fails or another run works in the folder, and Paused if a
        command's time is up.
        """
        steps = Steps(self.folder)
        history, num_run = "", 0
        with locked(self.folder):
            for number, command in enumerate(commands, 1):
                history = hashlib.sha256(f"{history}\n{command}".encode()).hexdigest()
                title = f"[{number}/{len(commands)}] {command.title}"
                done = steps.run_in_place(
                    command.name,
                    partial(self._run, title, command),
                    outputs=[Path(path) for path in command.outputs],
                    settings={"command": str(command), "history": history},
                )
                num_run += done
                if not done:
                    self._say(f"{title}: done already")
        return num_run

    def _run(self, title: str, command: Command, begun: bool) -> None:
        """Run a command; its log is rewritten, or appended to if the command was begun before."""
        self._say(f"{title}\n{show(str(command))}")
        began = time.monotonic()
        path = self.folder / "logs" / f"{command.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        start, end = ("\r\033[K", "") if self.out.isatty() else ("", "\n")
        pause = self.pause or (TERMINAL_PAUSE if self.out.isatty() else LOG_PAUSE)
        environment = {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}
        with (
            path.open("ab" if begun else "wb") as log,
            running(
                command.words,
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
        if status == UNFINISHED:
            raise Paused(command.title)
        if status != 0:
            raise UserError(
                f"{command.title}: failed with exit status {status}; {path} ends with\n"
                + textwrap.indent("\n".join(last_lines(path)), "    ")
                + "\nRun the same command again to resume here"
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
