"""How command lines start and end, and the one error that users see without a stack trace."""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from multiprocessing import parent_process
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

BAD_INPUT = 2  # exit status of errors that a user can fix; Python's own 1 is a bug
INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM
# What schedulers, containers and lost terminals send; ctrl-C is Python's own.
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class UserError(ValueError):
    """Bad input or an impossible setting, described in one sentence.

    The message names the file, line or flag, what was expected, and what to do about it. Command
    lines print it with ``refuse``; any other exception is a bug and keeps its stack trace.
    """


class UnreadableError(UserError):
    """A text that the model cannot read, whatever the settings; others it may read."""


class Stopped(KeyboardInterrupt):
    """A signal that ends a command: as ctrl-C, but with that signal's exit status."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number).name
        self.status = 128 + number  # as shells count


@contextmanager
def handling(act: Callable[[int], object], numbers: Iterable[int] = ENDING) -> Iterator[None]:
    """Inside the block, a signal calls ``act`` with its number; signals ignored before, as under
    nohup, stay ignored. Only the main thread may enter the block.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for number in heeded:
            signal.signal(number, lambda number, _: act(number))
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


# The last stop. Libraries in C may turn one that arrives inside of them into an error of theirs.
_STOPS: list[Stopped] = []


def stopping(numbers: Iterable[int] = ENDING) -> AbstractContextManager[None]:
    """Inside the block the first of these signals raises Stopped. Later ones do nothing: they would
    cut off what the first one ends.
    """
    seen: list[Stopped] = []
    _STOPS.clear()

    def stop(number: int) -> None:
        seen.append(Stopped(number))
        if len(seen) == 1:
            _STOPS[:] = seen
            raise seen[0]

    return handling(stop, numbers)


def run_program(module: str, function: str = "main", *given: object, **named: object) -> int:
    """Import a command's module, which takes seconds, and call its function; returns its status.

    During the import ctrl-C ends the process at once, as an import may swallow a KeyboardInterrupt.
    During the call the first ctrl-C or SIGTERM raises Stopped. After it ctrl-C is ignored, as the
    end of the interpreter would print it, but ends the process if threads still work.
    """
    if sys.stderr is None:  # a closed descriptor: messages are dropped, as whoever closed it wants
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    forget_no_columns()
    status = INTERRUPTED
    # A shell has its background jobs ignore ctrl-C, which they should go on doing.
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, lambda *_: os._exit(status))
    command = attrgetter(function)(importlib.import_module(module))
    try:
        with stopping((signal.SIGINT, signal.SIGTERM)):
            status = command(*given, **named)
    except Stopped as stop:  # outside of what `run_command` guards
        status = stop.status
    finally:
        others = [t for t in threading.enumerate() if t is not threading.main_thread()]
        if is_heeded and all(thread.daemon for thread in others):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


def end_with_parent() -> None:
    """End this process when its parent does, however that ends: a killed one ends no children."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def refuse(name: str, error: UserError | str) -> int:
    """Print a command's error to standard error; returns the exit status."""
    sys.stderr.write(f"{name}: error: {error}\n")
    return BAD_INPUT


def run_command(prog: str, work: Callable[[], int | None], debug: bool, interrupted: str) -> int:
    """Exit status of a command line. Bugs keep their stack trace; with `debug`, all errors do.

    work: returns a status, or None for success; interrupted: the message after ctrl-C, if its
    KeyboardInterrupt has none.
    """
    try:
        return work() or 0
    except BrokenPipeError:
        # The reader is gone, but Python would flush standard output again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as raised:
        # What a reader of files calls damage was the stop as well.
        error = _STOPS[0] if _STOPS and not isinstance(raised, KeyboardInterrupt) else raised
        message = _exhausted(error) or str(error)
        if debug or not (_exhausted(error) or isinstance(error, (UserError, KeyboardInterrupt))):
            raise
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.write(f"{prog}: {message or interrupted}\n")
            return error.status if isinstance(error, Stopped) else INTERRUPTED
        return refuse(prog, message)


def forget_no_columns() -> None:
    """Before help is shown: rich never ends at a width of 0, as of a terminal not drawn yet."""
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]


@contextmanager
def renaming(flags: Mapping[str, str]) -> Iterator[None]:
    """Messages of UserErrors from inside the block call these flags by other names."""
    try:
        yield
    except UserError as error:
        told = re.sub(r"(?<![\w-])--[\w-]+", lambda flag: flags.get(flag[0], flag[0]), str(error))
        error.args = (told,)
        raise


def _exhausted(error: BaseException) -> str | None:
    """What to do if memory or disk space have run out, as no check foresees; else None."""
    # torch's, by name: commands that do not need torch do not import it.
    if type(error).__name__ == "OutOfMemoryError":
        return f"out of GPU memory; use a smaller --batch or --dtype float16. {error}"
    is_torchs = type(error) is RuntimeError and os.strerror(errno.ENOMEM) in str(error)
    if isinstance(error, MemoryError) or is_torchs:
        return "out of memory; end other programs, or use a smaller --batch or model"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; make room, and run the same command again"
    full = re.search(rf"os error ({errno.ENOSPC}|{errno.EDQUOT})\b", str(error))
    if type(error).__name__ == "SafetensorError" and full:
        return f"{os.strerror(int(full[1]))}; make room, and run the same command again"
    return None


class Parser(argparse.ArgumentParser):
    """Reports a bad flag in one line; argparse would list all flags first."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(refuse(self.prog, f"{message}; {self.prog} --help explains every flag"))


def not_installed(package: str, extra: str) -> UserError:
    """The error for a missing optional package; ``extra``: the one in setup.py that has it."""
    return UserError(
        f"{package} is not installed; it comes with the extra {extra!r}: pip install '.[{extra}]' "
        "in the project's folder"
    )


def imported(module: str, extra: str) -> Any:
    """A module that needs packages of that extra. Raises UserError if one is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", __name__.partition(".")[0]):
            raise
        raise not_installed(package, extra) from error


def require(condition: bool, message: str) -> None:
    """Raise UserError with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


@cache
def warn_once(notice: str) -> None:
    """Warn of what a model's files say, however often they are read."""
    logging.getLogger("specdec").warning(notice)


@contextmanager
def telling(path: str | Path, what: str, advice: str = "") -> Iterator[None]:
    """An OSError from inside the block becomes a UserError.

    what: what cannot be done with the path; advice: what to do, with the mark before it.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: {what} ({reason}){advice}") from error


def read_text(path: str | Path, what: str, advice: str) -> str:
    """The text of a small UTF-8 file, line ends as newlines. Raises UserError if unreadable.

    what: its name in messages; advice: what to do if it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: {what} cannot be read ({reason}); {advice}.") from error


def read_object(path: str | Path, what: str, advice: str) -> dict[str, Any]:
    """As `read_text`, for a file that holds a JSON object."""
    try:
        found = json.loads(read_text(path, what, advice))
    except (ValueError, RecursionError) as error:  # RecursionError: nested thousands of times
        raise UserError(f"{path}: not JSON ({error}); restore the file.") from error
    require(isinstance(found, dict), f"{path}: expected a JSON object; restore the file.")
    return dict(found)


@contextmanager
def located(where: object) -> Iterator[None]:
    """Prefix a UserError from inside the block with the file or line that it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
