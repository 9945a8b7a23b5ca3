"""Commands one after the other, each run once: logs, progress, and resuming."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from select import select
from typing import IO, Literal, TextIO

from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.corpus.resume import Steps, locked
from specdec_plugins.errors import UserError

NUM_LAST_LINES = 20  # shown of a failed command's log
TERMINAL_PAUSE, LOG_PAUSE = 0.5, 15.0  # seconds between two reports of progress
COLUMNS = 100


class Paused(Exception):
    """A command's time is up; the same commands again continue there."""


def last_words(line: str) -> str | None:
    """Progress as most commands tell it: whatever they said last."""
    return line.strip()[:80] or None


def updates(total: int) -> Callable[[str], str | None]:
    """Progress of a training, from a line of its log."""

    def read(line: str) -> str | None:
        found = re.search(r"train_inner.*?\bloss=([\d.]+).*?num_updates=(\d+)", line)
        return found and f"update {found[2]} of {total}, loss {found[1]}"

    return read


@dataclass(frozen=True)
class Command:
    """A program with its arguments, which continues where it was stopped or starts anew."""

    title: str
    words: Sequence[str]  # the program first
    outputs: Sequence[str] = ()  # removed where another command wrote them
    progress: Callable[[str], str | None] = last_words  # of one line; None: it tells nothing

    @property
    def name(self) -> str:
        """Of its log and its stamp."""
        return "-".join(re.findall(r"\w+", self.title.lower()))

    def __str__(self) -> str:
        """To be typed as it stands."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class Runner:
    """Runs commands. What is done is skipped; after a command that changed, all run again."""

    folder: Path  # of logs and stamps
    environment: Mapping[str, str]  # added to this process's own
    out: TextIO = sys.stdout
    clock: Callable[[], float] = time.monotonic

    def run(self, commands: Sequence[Command]) -> int:
        """How many commands were run.

        Raises UserError where a command fails or another run works in the folder, and Paused where
        a command's time is up.
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
                    self._say(f"{title}: done before")
        return num_run

    def _run(self, title: str, command: Command, begun: bool) -> None:
        """Run a command; its log is written anew or, where it was begun before, gone on with."""
        self._say(f"{title}\n{show(str(command))}")
        began = self.clock()
        path = self.folder / "logs" / f"{command.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            command.words,
            env={**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        mode: Literal["a", "w"] = "a" if begun else "w"
        with path.open(mode, buffering=1, encoding="utf-8") as log, process.stdout as stream:
            try:
                last = self._watch(command, stream, log, began)
            finally:
                # Where ctrl-C came, the program got it too, and ends its own work.
                status = process.wait()
        if status == UNFINISHED:
            raise Paused(command.title)
        if status != 0:
            raise UserError(
                f"{command.title}: failed with exit status {status}; the end of {path} reads\n"
                + textwrap.indent("\n".join(last), "    ")
                + "\nThe same command again continues here"
            )
        self._say(f"    {self.clock() - began:4.0f} s  done")

    def _watch(self, command: Command, stream: IO[bytes], log: TextIO, began: float) -> deque[str]:
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
                words = command.progress(line) or words
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
