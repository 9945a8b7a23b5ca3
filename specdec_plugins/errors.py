"""The one error that a user may see without a stack trace, and how command lines say it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

BAD_INPUT = 2  # the exit status of what a user can mend; Python's own 1 is a fault of the program
INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE


class UserError(ValueError):
    """Bad input or an impossible setting, said in one sentence.

    The message names the file, line or flag, what was expected, and what to do about it. Command
    lines print it with ``refuse``; anything that is not a ``UserError`` is a bug of ours and keeps
    its stack trace.
    """


def refuse(name: str, error: UserError | str) -> int:
    """Say to standard error what is wrong, in the name of a command; returns the exit status."""
    sys.stderr.write(f"{name}: error: {error}\n")
    return BAD_INPUT


def run_command(
    prog: str,
    work: Callable[[], int | None],
    debug: bool,
    interrupted: str,
    refused: tuple[type[Exception], ...] = (UserError,),
) -> int:
    """Exit status of a command line; a bug keeps its stack trace, and with `debug` everything.

    work: returns a status, or None for success; interrupted: what ctrl-C is answered with;
    refused: errors that are said in a sentence.
    """
    try:
        return work() or 0
    except BrokenPipeError:
        # The reader has enough; Python would flush standard output once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        # torch's, which is not imported for the commands that can do without.
        is_out_of_memory = type(error).__name__ == "OutOfMemoryError"
        if debug or not (is_out_of_memory or isinstance(error, (*refused, KeyboardInterrupt))):
            raise
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.write(f"{prog}: {interrupted}\n")
            return INTERRUPTED
        message = str(error)
        if is_out_of_memory:
            way_out = "use a smaller --batch or --dtype float16"
            message = f"the GPU's memory does not suffice; {way_out}. {message}"
        return refuse(prog, message)


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a flag in one line, where argparse lists all flags first."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(refuse(self.prog, f"{message}; {self.prog} --help explains every flag"))


def not_installed(package: str, extra: str) -> UserError:
    """What to say where an optional package is missing; ``extra`` is that of setup.py."""
    return UserError(
        f"{package} is not installed; it comes with the extra {extra!r}: pip install '.[{extra}]' "
        "in the project's folder"
    )


def imported(module: str, extra: str) -> Any:
    """An optional module. Raises UserError where its package, of that extra, is not installed."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise not_installed(package, extra) from error


def require(condition: bool, message: str) -> None:
    """Raise UserError with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


def read_text(path: str | Path, what: str, advice: str) -> str:
    """The text of a small UTF-8 file, line ends as newlines. Raises UserError where it cannot be.

    what: what messages call it; advice: what to do where it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: {what} cannot be read ({reason}); {advice}.") from error


def read_object(path: str | Path, what: str, advice: str) -> dict[str, Any]:
    """The same of a file that holds an object of JSON."""
    try:
        found = json.loads(read_text(path, what, advice))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON ({error}); restore the file.") from error
    require(isinstance(found, dict), f"{path}: expected a JSON object; restore the file.")
    return dict(found)


@contextmanager
def located(where: object) -> Iterator[None]:
    """Say in front of a UserError that comes from inside which file or line it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
