"""Commands one after the other, each run once: what is finished is skipped the next time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import IO, Literal, TextIO

from specdec_plugins.errors import UserError

NUM_LAST_LINES = 20  # shown of a failed command's log
TERMINAL_PAUSE, LOG_PAUSE = 0.5, 15.0  # seconds between two reports of progress
COLUMNS = 100
UNFINISHED = 75  # EX_TEMPFAIL: what a command ends with whose time is up


class Paused(Exception):
    """A step's time is up; the same steps again continue there."""


def last_words(line: str) -> str | None:
    """Progress as most commands tell it: whatever they said last."""
    return line.strip()[:80] or None


@dataclass(frozen=True)
class Step:
    """One command, and how to read its progress off its output."""

    title: str
    command: str  # for a shell; $NAME stands for a variable of the pipeline's environment
    outputs: Sequence[str] = ()  # removed where another command wrote them
    progress: Callable[[str], str | None] = last_words  # of one line; None: it tells nothing

    @property
    def name(self) -> str:
        """Of its log and its stamp."""
        return "-".join(re.findall(r"\w+", self.title.lower()))


@dataclass(frozen=True)
class Pipeline:
    """Runs steps. A stamp tells what command a step was last begun with, and if it finished."""

    folder: Path  # of logs and stamps
    environment: Mapping[str, str]
    out: TextIO = sys.stdout
    clock: Callable[[], float] = time.monotonic

    def run(self, steps: Sequence[Step]) -> int:
        """How many steps were run.

        Raises UserError where a command fails or another run works in the folder, and Paused where
        a step's time is up.
        """
        with self._locked():
            return self._run_all(steps)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two runs would write the same checkpoints; the lock ends with the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.folder}: another run is writing here; wait for it, or give another "
                    "folder"
                ) from None
            yield

    def _run_all(self, steps: Sequence[Step]) -> int:
        history, num_run = "", 0
        for number, step in enumerate(steps, 1):
            history = hashlib.sha256(f"{history}\n{step.command}".encode()).hexdigest()
            title = f"[{number}/{len(steps)}] {step.title}"
            if self._stamp(step) == f"done {history}":
                self._say(f"{title}: done before")
                continue
            self._say(f"{title}\n{show(step.command)}")
            begun = self._stamp(step) == f"begun {history}"
            if not begun:
                _remove(step.outputs)
                self._set_stamp(step, f"begun {history}")
            seconds = self._run(step, "a" if begun else "w")
            self._set_stamp(step, f"done {history}")
            self._say(f"    {seconds:4.0f} s  done")
            num_run += 1
        return num_run

    def _stamp(self, step: Step) -> str:
        file = self.folder / "stamps" / step.name
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    def _set_stamp(self, step: Step, text: str) -> None:
        file = self.folder / "stamps" / step.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def _run(self, step: Step, mode: Literal["a", "w"]) -> float:
        """Seconds that the command took; its log is written anew or gone on with."""
        began = self.clock()
        path = self.folder / "logs" / f"{step.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [self._expand(word) for word in shlex.split(step.command)],
            env={**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        with path.open(mode, buffering=1, encoding="utf-8") as log, process.stdout as stream:
            try:
                last = self._watch(step, stream, log, began)
            finally:
                # Where ctrl-C came, the program got it too, and ends its own work.
                status = process.wait()
        if status == UNFINISHED:
            raise Paused(step.title)
        if status != 0:
            raise UserError(
                f"{step.title}: failed with exit status {status}; the end of {path} reads\n"
                + textwrap.indent("\n".join(last), "    ")
                + "\nThe same command again continues here"
            )
        return self.clock() - began

    def _expand(self, word: str) -> str:
        return self.environment[word[1:]] if word.startswith("$") else word

    def _watch(self, step: Step, stream: IO[bytes], log: TextIO, began: float) -> deque[str]:
        """Write the log and report progress; returns the last lines."""
        last: deque[str] = deque(maxlen=NUM_LAST_LINES)
        terminal = self.out.isatty()
        pause = TERMINAL_PAUSE if terminal else LOG_PAUSE
        due = began + pause
        words = "starting"
        for line in lines(stream, pause):
            if line is not None:
                log.write(line + "\n")
                last.append(line)
                words = step.progress(line) or words
            now = self.clock()
            if now >= due:
                due = now + pause
                text = f"    {now - began:4.0f} s  {words}"
                self._say(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n")
        if terminal:
            self._say("\r\033[K", end="")
        return last

    def _say(self, text: str, end: str = "\n") -> None:
        self.out.write(text + end)
        self.out.flush()


def lines(stream: IO[bytes], patience: float) -> Iterator[str | None]:
    """What a program writes, as it comes; None after so many seconds of silence.

    The returns of a progress bar end lines too.
    """
    rest, chunk = b"", None
    while chunk != b"":
        if not select([stream], [], [], patience)[0]:
            yield None
            continue
        chunk = os.read(stream.fileno(), 65536)
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        yield from (line.decode(errors="replace") for line in whole if line)
    if rest:
        yield rest.decode(errors="replace")


def show(command: str) -> str:
    """A command broken over lines, to be typed as it stands."""
    rows = textwrap.wrap(
        " ".join(command.split()),
        width=COLUMNS - 2,
        initial_indent="    ",
        subsequent_indent="        ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return " \\\n".join(rows)


def _remove(paths: Sequence[str]) -> None:
    for path in map(Path, paths):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
