"""Shared by the command lines of data and training: flags, errors, logging."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_plugins.errors import Parser, answer_removed, run_command, stopping

logger = logging.getLogger("specdec.corpus")

UNFINISHED = 75  # EX_TEMPFAIL: time is up; the same command resumes


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default only if there is one, and not twice."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not action.default or "default:" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class _Collect(argparse.Action):
    """The values of a list, also where its flag is repeated: `--train a --train b`."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, flag: object = None
    ) -> None:
        before = getattr(namespace, self.dest)
        values = values if before is self.default else [*before, *values]
        setattr(namespace, self.dest, values)


# A flag: its names (a positional argument has no dashes), default, kind and help. The kind is a
# type, a tuple of choices, bool for a switch, or EITHER for a switch with a negation. The kind of a
# list is the type of its values in brackets, or the metavar of its values.
Flag = tuple[str, Any, Any, str]
REQUIRED = object()  # a default: the flag must be given
OPTIONAL = object()  # a default: the positional argument may be omitted, and is then None
EITHER = argparse.BooleanOptionalAction  # a kind: None unless the flag is given


@dataclass(frozen=True)
class CommandLine:
    """A command line: its flags, and the function that receives them.

    A call raises UserError; ``run`` prints such an error as one line instead. Flags cannot be
    abbreviated, so typos are refused.
    """

    name: str  # of the script
    description: str
    main: Callable[[argparse.Namespace], int | None]  # an exit status; None: 0
    flags: Sequence[Flag]
    epilog: str | None = None
    interrupted: str = "stopped; the same command goes on from what is finished"
    # Flags of earlier versions, and what to do instead
    removed: Mapping[str, str] = field(default_factory=dict)
    passes: str | None = None  # what ``main`` calls the words behind --, which are not read here

    def parser(self) -> argparse.ArgumentParser:
        """The parser of the flags and ``--debug``."""
        made = Parser(
            prog=self.name,
            description=self.description,
            epilog=self.epilog,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        made.add_argument("--debug", action="store_true", help="show a stack trace with an error")
        answer_removed(made, self.removed)
        for names, default, kind, text in self.flags:
            more: dict[str, Any] = {"default": default}
            if names.startswith("-") and default is REQUIRED:
                more = {"required": True}
            if default is OPTIONAL:
                more = {"nargs": "?"}
            if kind is bool:
                more = {"action": "store_true"}
            elif kind is EITHER:
                more["action"] = kind
            elif isinstance(kind, str):
                more |= {"nargs": "+", "metavar": kind, "action": _Collect}
            elif isinstance(kind, list):
                more |= {"nargs": "+", "metavar": "N", "type": kind[0], "action": _Collect}
            else:
                more["choices" if isinstance(kind, tuple) else "type"] = kind
            made.add_argument(*names.split(), help=text, **more)
        return made

    def parse(self, *words: object) -> argparse.Namespace:
        return self.parser().parse_args(list(map(str, words)))

    def __call__(self, *words: object) -> None:
        self.main(self.parse(*words))

    def run(self, words: Sequence[str] | None = None) -> int:
        """Run ``main``; returns the exit status."""
        words = list(sys.argv[1:] if words is None else words)
        cut = words.index("--") if self.passes and "--" in words else len(words)
        args = self.parse(*words[:cut])
        if self.passes:
            setattr(args, self.passes, words[cut + 1 :])
        logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
        logging.getLogger("sacrebleu").setLevel(logging.WARNING)
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # it logs all files it opens
        with stopping():
            return run_command(self.name, lambda: self.main(args), args.debug, self.interrupted)


def run_named(commands: Mapping[str, CommandLine]) -> int:
    """Run the command that the calling script names as its first word."""
    return commands[sys.argv[1]].run(sys.argv[2:])


def at_least(lowest: float, kind: type = int, below: float = math.inf) -> Callable[[str], Any]:
    """An argparse type: a number of at least ``lowest`` and less than ``below``."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not lowest <= value < below:
            sort = "a whole number" if kind is int else "a number"
            most = "" if below == math.inf else f" and less than {below}"
            raise argparse.ArgumentTypeError(
                f"expected {sort} of {lowest} or more{most}, not {text!r}"
            )
        return value

    return convert
