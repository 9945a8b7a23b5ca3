"""The repository's programs, run in processes of their own or, by `specdec`, in this one."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from specdec_plugins import cli
from specdec_plugins.app import convert
from specdec_plugins.corpus.cli import CommandLine
from tests.bundles import ROOT

Done = subprocess.CompletedProcess[str]
Talk = tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]


def _environment(**variables: str) -> dict[str, str]:
    """Without a path to the package: programs find it by themselves."""
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    return {**environment, **variables}


def run(*command: object, expect: int = 0, cwd: Path = ROOT, **variables: str) -> Done:
    """Wait for it; its status must be the expected one."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=_environment(**variables),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def python(*command: object, expect: int = 0) -> Done:
    return run(sys.executable, *command, expect=expect)


@contextmanager
def talking_to(*command: object, process_group: int = -1, **variables: str) -> Iterator[Talk]:
    """A program, what it reads and what it writes, as bytes; it ends with the block.

    process_group: 0 = its own, as a terminal gives it.
    """
    pipe, words = subprocess.PIPE, [str(part) for part in command]
    heeding: dict[str, Any] = {"env": _environment(**variables), "preexec_fn": _heed_interrupts}
    heeding["process_group"] = process_group
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, **heeding) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process, process.stdin, process.stdout


def _heed_interrupts() -> None:
    """A shell has its background jobs ignore ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def script(name: str, *arguments: object, cwd: Path, expect: int = 0, **variables: str) -> Done:
    """One of ``scripts/``, from another folder."""
    return run(ROOT / "scripts" / name, *arguments, cwd=cwd, expect=expect, **variables)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


SPECDEC = (ROOT / "scripts" / "python.sh", "-m", "specdec_plugins.cli")


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """What is logged in the block, that of fairseq, which decoding silences, too."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    levels = {logger: logger.level for logger in (logging.root, logging.getLogger("fairseq"))}
    logging.root.addHandler(handler)
    for logger in levels:
        logger.setLevel(logging.INFO)
    try:
        yield log
    finally:
        logging.root.removeHandler(handler)
        for logger, level in levels.items():
            logger.setLevel(level)


def specdec(name: str, *arguments: object, cwd: Path, expect: int = 0) -> Done:
    """A command of ``specdec`` in this process, from another folder; stderr has its log, too."""
    module, function = cli._place(cli.COMMANDS[name][0])
    command = attrgetter(function)(import_module(module))
    out = io.StringIO()
    with chdir(cwd), logged() as err, redirect_stdout(out), redirect_stderr(err):
        try:
            status = command(list(map(str, arguments)))
        except SystemExit as ended:
            status = ended.code
    assert status == expect, err.getvalue()
    return Done(name, status, out.getvalue(), err.getvalue())


def convert_main(words: Sequence[str]) -> int:
    """`specdec convert` in this process."""
    command: CommandLine = getattr(convert, words[0].upper())
    return command.run(words[1:])
