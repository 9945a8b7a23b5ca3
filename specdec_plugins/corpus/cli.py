"""What the command lines of this package share: messages, errors, and where lines go."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_plugins.errors import Parser, UserError, refuse

logger = logging.getLogger("specdec.corpus")

INTERRUPTED = 130  # the exit status that shells give to a command stopped by ctrl-C
UNFINISHED = 75  # EX_TEMPFAIL: time is up, the same command goes on


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Says a default only where there is one, and not twice."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not action.default or "default:" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


# A flag: its name (a positional argument where it has no dashes), default, kind and help. The kind
# is a type, the choices, bool for a switch, or a word that stands for each value of a list.
Flag = tuple[str, Any, Any, str]
REQUIRED = object()  # as a default


def parser(description: str, *flags: Flag, **options: Any) -> argparse.ArgumentParser:
    """An argument parser with these flags and ``--debug``.

    Flags must be written out, so that typos are refused.
    """
    made = Parser(
        description=description,
        allow_abbrev=False,
        formatter_class=_Formatter,
        **options,
    )
    made.add_argument("--debug", action="store_true", help="show a stack trace with an error")
    for name, default, kind, text in flags:
        more: dict[str, Any] = {"default": default}
        if name.startswith("-") and default is REQUIRED:
            more = {"required": True}
        if kind is bool:
            more = {"default": bool(default), "action": "store_true"}
        elif isinstance(kind, str):
            more |= {"nargs": "+", "metavar": kind}
        else:
            more["choices" if isinstance(kind, tuple) else "type"] = kind
        made.add_argument(name, help=text, **more)
    return made


def run(
    made: argparse.ArgumentParser,
    main: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, call ``main``, and turn its errors into one sentence and an exit status."""
    args = made.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it lists all that it opens
    try:
        main(args)
    except KeyboardInterrupt:
        if args.debug:
            raise
        sys.stderr.write(
            f"{made.prog}: stopped; what is finished is on disk, run the same command to go on\n"
        )
        return INTERRUPTED
    except UserError as error:
        if args.debug:
            raise
        return refuse(made.prog, error)
    return 0


Commands = Mapping[
    str, tuple[Callable[[], argparse.ArgumentParser], Callable[[argparse.Namespace], None]]
]


def run_named(commands: Commands) -> int:
    """Run the one of a module's commands that the calling script names as its first word."""
    make_parser, main = commands[sys.argv[1]]
    return run(make_parser(), main, sys.argv[2:])


def at_least(lowest: float, kind: type = int) -> Callable[[str], Any]:
    """An argparse type: a number not below ``lowest``."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not value >= lowest:
            sort = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {sort} of {lowest} or more, not {text!r}")
        return value

    return convert
