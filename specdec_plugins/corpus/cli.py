"""How command lines are declared and read, with cyclopts; logging of data and training."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter as Declared
from inspect import Signature
from keyword import iskeyword
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from specdec_plugins.errors import refuse, run_command, stopping

if TYPE_CHECKING:
    from cyclopts import App

logger = logging.getLogger("specdec.corpus")

UNFINISHED = 75  # EX_TEMPFAIL: time is up; the same command resumes

# A flag: its names (a positional argument has no dashes), default, kind and help. The kind is a
# type or a function of the text, a tuple of choices, bool for a switch, or EITHER for a switch with
# a negation. The kind of a list is the kind of its values in brackets, or their metavar.
Flag = tuple[str, Any, Any, str]
REQUIRED = object()  # a default: the flag must be given
OPTIONAL = object()  # a default: the positional argument may be omitted, and is then None
EITHER = object()  # a kind: None unless the flag is given
_NATIVE = (str, int, float)  # kinds that cyclopts reads itself
_FLAGS = "flags"  # the heading of those without a group
_METAVARS = {int: "N", float: "X", str: "TEXT"}


@dataclass(frozen=True)
class Argument:
    """A flag or a positional argument of a command line."""

    name: str  # of its value
    flags: Sequence[str]  # none: it is positional
    kind: Any  # a type, or a function of the text
    help: str
    default: Any = None
    is_list: bool = False
    choices: Sequence[Any] = ()
    metavar: str | None = None
    group: str | None = None
    negative: bool = False  # --no-FLAG sets it to False
    alone: str | None = None  # the value of the flag without one
    aliases: Mapping[str, str] = field(default_factory=dict)  # flags that stand for a value

    @classmethod
    def of(cls, flag: Flag) -> Argument:
        names, default, kind, told = flag
        flags = [name for name in names.split() if name.startswith("-")]
        name = (flags or [names])[-1].strip("-").replace("-", "_")
        if not flags:  # None is no default of a positional argument
            default = None if default is OPTIONAL else REQUIRED
        if default not in (None, REQUIRED, False, 0, "") and "default:" not in told:
            told += f" (default: {default})"
        more: dict[str, Any] = {"default": default, "negative": kind is EITHER}
        if isinstance(kind, tuple):
            kind, more["choices"] = str, kind
        elif isinstance(kind, str):
            kind, more["metavar"], more["is_list"] = str, kind, True
        elif isinstance(kind, list):
            kind, more["is_list"] = kind[0], True
        return cls(name, flags, bool if kind is EITHER else kind, told, **more)

    def declared(self, groups: Mapping[str, Any]) -> Declared:
        """As a parameter of a function, which cyclopts reads."""
        from cyclopts import Parameter

        choices = self.choices
        kind: Any = self.kind if self.kind in (*_NATIVE, bool) else str
        kind = Literal[tuple(map(str, choices))] if choices else kind
        # Any value of the kind will do as a default, since only what is given is used.
        some = [] if self.is_list else str(choices[0]) if choices else kind()
        kind = list[kind] if self.is_list else kind
        is_free = not choices and self.kind is not bool
        metavar = self.metavar or (_METAVARS.get(self.kind, "VALUE") if is_free else None)
        how = Parameter(
            name=self.flags or self.name.upper(),
            help=self.help,
            metavar=metavar,
            group=groups[self.group or _FLAGS],
            negative=None if self.negative and self.kind is bool else (),
            consume_multiple=self.is_list,
            allow_repeating=True,
            show_default=False,
        )
        place = Declared.KEYWORD_ONLY if self.flags else Declared.POSITIONAL_ONLY
        default = Declared.empty if self.default is REQUIRED else some
        return Declared(self.key, place, annotation=Annotated[kind, how], default=default)

    @property
    def key(self) -> str:
        """Its name, unless a parameter may not have it."""
        return f"{self.name}_" if iskeyword(self.name) else self.name

    def read(self, value: Any) -> Any:
        """The value of what cyclopts has read. Raises ValueError if the kind refuses it."""
        if self.kind in (*_NATIVE, bool) and not self.choices:
            return value
        return list(map(self.kind, value)) if self.is_list else self.kind(value)


DEBUG = Argument("debug", ["--debug"], bool, "show where an error was raised", False)
CONFIG = Argument("config", ["--config"], str, "TOML file with flags that are not given here, in a "
                  "table of the command's name", metavar="FILE")  # fmt: skip


def _read_config(app: App, commands: tuple[str, ...], arguments: Any) -> None:
    """Take the arguments that are not given from the file that --config names."""
    from cyclopts import CycloptsError
    from cyclopts.config import Toml

    for one in arguments:
        if one.name == "--config" and one.tokens:
            path, keys = one.tokens[-1].value, app.name[0].split()[1:]
            file = Toml(path, root_keys=keys, must_exist=True, use_commands_as_keys=False)
            try:
                table: Any = file.config
                for key in keys:
                    table = table.get(key) if isinstance(table, dict) else None
                    if table is None:
                        raise CycloptsError(msg=f"has no table [{'.'.join(keys)}]")
                file(app, commands, arguments)
            except (CycloptsError, OSError) as error:
                raise CycloptsError(msg=f"{path}: {error}") from error


@dataclass(frozen=True)
class CommandLine:
    """A command line: its arguments, and the function that receives them.

    A call raises UserError; ``run`` prints such an error as one line instead. Flags cannot be
    abbreviated, so typos are refused.
    """

    name: str
    description: str
    # Its status, or None for 0. A module without one calls ``given`` itself.
    main: Callable[[argparse.Namespace], int | None] | None
    flags: Sequence[Flag | Argument]
    epilog: str | None = None
    interrupted: str = "stopped; the same command goes on from what is finished"
    # Flags of earlier versions, and what to do instead
    removed: Mapping[str, str] = field(default_factory=dict)
    passes: str | None = None  # what ``main`` calls the words behind --, which are not read here
    usage: str | None = None

    @property
    def arguments(self) -> list[Argument]:
        ours = [one if isinstance(one, Argument) else Argument.of(one) for one in self.flags]
        return [*ours, *(one for one in (CONFIG, DEBUG) if one.name not in {a.name for a in ours})]

    @property
    def app(self) -> App:
        """For help and completion."""
        from cyclopts import App, Group

        def receive(*_: object, **__: object) -> None: ...

        names = dict.fromkeys(one.group or _FLAGS for one in self.arguments)
        groups = {name: Group.create_ordered(name) for name in names}
        declared = [one.declared(groups) for one in self.arguments]
        receive.__signature__ = Signature(sorted(declared, key=lambda one: one.kind))  # type: ignore[attr-defined]
        return App(
            self.name,
            default_command=receive,
            help=self.description,
            help_epilogue=self.epilog,
            help_format="plaintext",
            usage=self.usage and f"Usage: {self.usage}",
            version_flags=[],
            group_commands=groups[_FLAGS],  # of --help
            config=_read_config,
        )

    def given(self, words: Sequence[str] | None = None) -> dict[str, Any]:
        """The values that are given. Ends the program for --help, and for what cannot be read."""
        from cyclopts import CycloptsError

        app, found = self.app, dict[str, Any]()
        try:
            command, bound, _ = app.parse_args(
                self._long(sys.argv[1:] if words is None else words),
                print_error=False,
                exit_on_error=False,
            )
        except CycloptsError as error:
            self.refuse(" ".join(str(error).split()).rstrip("."))
        if command is not app.default_command:
            command(*bound.args, **bound.kwargs)
            raise SystemExit(0)
        for one in self.arguments:
            if one.key in bound.arguments:
                try:
                    found[one.name] = one.read(bound.arguments[one.key])
                except ValueError as error:
                    self.refuse(f"{(*one.flags, one.name)[0]}: {error}".rstrip("."))
        return found

    def _long(self, words: Sequence[str]) -> list[str]:
        """The words, with the flags that stand for a value, or for their usual one, in full."""
        aliases = {flag: f"{one.flags[0]}={value}"
                   for one in self.arguments for flag, value in one.aliases.items()}  # fmt: skip
        alone = {flag: one.alone for one in self.arguments for flag in one.flags if one.alone}
        long = list[str]()
        for word, after in zip(words, [*words, "--"][1:], strict=True):
            if (flag := word.partition("=")[0]) in self.removed:
                self.refuse(f"{flag} was removed: {self.removed[flag]}")
            if word == "-" and long and long[-1].startswith("-"):  # standard input or output
                long[-1] += "=-"
            elif word in alone and after.startswith("-"):
                long.append(f"{word}={alone[word]}")
            else:
                long.append(aliases.get(word, word))
        return long

    def refuse(self, message: str) -> NoReturn:
        raise SystemExit(refuse(self.name, f"{message}; {self.name} --help explains every flag"))

    @property
    def defaults(self) -> dict[str, Any]:
        return {one.name: one.default for one in self.arguments if one.default is not REQUIRED}

    def parse(self, *words: object) -> argparse.Namespace:
        return argparse.Namespace(**self.defaults | self.given(list(map(str, words))))

    def __call__(self, *words: object) -> None:
        assert self.main is not None
        self.main(self.parse(*words))

    def run(self, words: Sequence[str] | None = None) -> int:
        """Run ``main``; returns the exit status."""
        words = list(sys.argv[1:] if words is None else words)
        cut = words.index("--") if self.passes and "--" in words else len(words)
        args, main = self.parse(*words[:cut]), self.main
        assert main is not None
        if self.passes:
            setattr(args, self.passes, words[cut + 1 :])
        logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
        logging.getLogger("sacrebleu").setLevel(logging.WARNING)
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # it logs all files it opens
        with stopping():
            return run_command(self.name, lambda: main(args), args.debug, self.interrupted)


def at_least(lowest: float, kind: type = int, below: float = math.inf) -> Callable[[str], Any]:
    """A kind: a number of at least ``lowest`` and less than ``below``."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not lowest <= value < below:
            sort = "a whole number" if kind is int else "a number"
            most = "" if below == math.inf else f" and less than {below}"
            raise ValueError(f"expected {sort} of {lowest} or more{most}, not {text!r}")
        return value

    return convert
