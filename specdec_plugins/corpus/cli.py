"""Command lines: settings declared once, in records, which cyclopts reads; logging of their runs.

A record is a dataclass whose fields are made by `option`, or by `like` if another record declares
the same setting:

    @dataclass(frozen=True)
    class ServerSettings:
        max_rows: int = option(32, "sentences that decode at once", least=1, group="limits")
        beta: int = like(Settings, "beta", group="defaults of requests")

        def __post_init__(self) -> None:
            check(self)

* `flags_of(ServerSettings)` are flags such as `--max-rows N`, one for each field, of the types of
  the annotations; their help ends with the default.
* `CommandLine(name, told, main, flags_of(ServerSettings), ServerSettings)` reads them into the
  record that `main` gets. Without a record, `given` are the values of the flags that are given.
* `build(ServerSettings, given)` is the record; its defaults fill in absent fields.
* `check(self)` raises UserError out of bounds, such as "--max-rows must be 1 or more, not 0."
* A record's `REMOVED` maps flags of earlier versions to the answer to whoever gives one.
* `declared(Settings, "beta")` is the declaration, for other schemas, such as pydantic's.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from inspect import Parameter as Declared
from inspect import Signature
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from specdec_plugins.decoding.registry import Registry, misfit
from specdec_plugins.errors import UserError, refuse, require, run_command, stopping

if TYPE_CHECKING:
    from cyclopts import App

logger = logging.getLogger("specdec.corpus")

# What to do instead of flags that once bounded the time of a call
BY_TIMEOUT = "put timeout -s USR1 10m before the command: it ends after ten minutes, with all saved"
R = TypeVar("R")
_KEY = "option"
_BOUNDS = {  # by pydantic's name: our name, the wording, the test
    "ge": ("least", "{:g} or more", operator.ge),
    "gt": ("above", "above {:g}", operator.gt),
    "le": ("most", "at most {:g}", operator.le),
    "lt": ("below", "less than {:g}", operator.lt),
}
_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
_FLAGS = "flags"  # the heading of those without a group


@dataclass(frozen=True)
class Option:
    """The declaration of a setting."""

    default: Any  # MISSING if it must be given
    help: str
    metavar: str | None = None  # None = from the type
    flags: tuple[str, ...] = ()  # () = the field's name with dashes
    positional: bool = False  # an argument without a flag, in place of which `flags` may be given
    alias: tuple[str, str] | None = None  # a flag that stands for one value, and the value
    group: str | None = None  # heading in --help
    choices: Sequence[Any] | Registry[Any] | None = None
    least: float | None = None  # inclusive lower bound
    above: float | None = None  # exclusive lower bound
    most: float | None = None  # inclusive upper bound
    below: float | None = None  # exclusive upper bound
    advice: str = ""  # added to the message for a value out of bounds
    read: Callable[[str], Any] | None = None  # reads the text, if the type does not
    alone: str | None = None  # the value of the flag without one
    optional: bool = False  # the command gives a value to the field that has no default
    negative: bool = False  # --no-FLAG sets a switch to False; so does that of `bool | None`
    name: str = ""  # of the field
    type: Any = str  # of the field

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds under the names that pydantic and annotated-types use."""
        named = {name: getattr(self, ours) for name, (ours, _, _) in _BOUNDS.items()}
        return {name: bound for name, bound in named.items() if bound is not None}

    @property
    def names(self) -> tuple[Any, ...]:
        """The allowed values; empty if any value is allowed."""
        choices = self.choices or ()
        return tuple(choices.names() if isinstance(choices, Registry) else choices)

    @property
    def flag(self) -> str:
        """The flag, or the positional argument, as messages call it."""
        if self.positional:
            return self.metavar or self.name.upper()
        return next(iter(self.flags), "--" + self.name.replace("_", "-"))

    @property
    def _kind(self) -> tuple[Any, bool]:
        """The type of a value that is given, and whether there may be several."""
        is_union = get_origin(self.type) in (Union, UnionType)
        parts = [part for part in get_args(self.type) if part is not type(None)]
        kind = parts[0] if is_union else self.type
        is_list = get_origin(kind) in (list, Sequence)
        return (get_args(kind)[0] if is_list else kind), is_list

    def check(self, value: Any) -> None:
        """Raises UserError unless the value is an allowed one of the type, within the bounds."""
        kind, is_list = self._kind
        own = os.fspath(value) if isinstance(value, os.PathLike) and kind is not Path else value
        told = "" if self.type is Any else misfit(self.type, own) or ""  # Any: as it is read
        require(not told, f"{self.flag} must be {told.removesuffix(' or null')}, not {value!r}.")
        bounds = [(*_BOUNDS[name][1:], bound) for name, bound in self.bounds.items()]
        wanted = " and ".join(words.format(bound) for words, _, bound in bounds)
        advice = f"; {self.advice}" if self.advice else ""
        for one in value if is_list else [value]:
            if isinstance(self.choices, Registry):
                self.choices.get(one)
            told = f"There is no {self.flag} {one!r}; choose one of: "
            require(not self.names or one in self.names, f"{told}{', '.join(self.names)}.")
            is_within = all(holds(one, bound) for _, holds, bound in bounds)
            require(is_within, f"{self.flag} must be {wanted}, not {one}{advice}.")
            is_finite = not isinstance(one, float) or abs(one) < float("inf")
            require(is_finite, f"{self.flag} must be a finite number, not {one}.")

    def parameter(self, groups: Mapping[str, Any]) -> Declared:
        """As a parameter of a function, which cyclopts reads."""
        from cyclopts import Parameter

        kind, is_list = self._kind
        read, names, metavar = self.read, self.names, self.metavar
        if get_origin(kind) is Mapping:
            kind, read, metavar = str, json_object, metavar or "JSON"
        read = read or (whole_number if kind is int and not names else None)
        if isinstance(self.choices, Registry):  # which knows what was removed: see `check`
            names, metavar = (), f"{{{','.join(names)}}}"

        def convert(_: Any, tokens: Sequence[Any]) -> Any:
            assert read is not None
            values = [read(token.value) for token in tokens]
            return values if is_list else values[-1]

        if not metavar and kind is not bool and not names:
            metavar = _METAVARS.get(kind, "VALUE")
        kind, some = (Any, "") if read else (Literal[names], names[0]) if names else (kind, kind())
        read = read or (named_path if kind is Path else None)
        how = Parameter(
            name=self.flag if self.positional else self.flags or self.flag,
            help=self.told,
            metavar=metavar,
            group=groups[self.group or _FLAGS],
            negative=None if self.negative or type(None) in get_args(self.type) else (),
            converter=convert if read else None,
            consume_multiple=is_list,
            allow_repeating=True,
            show_default=False,
        )
        place = Declared.POSITIONAL_ONLY if self.positional else Declared.KEYWORD_ONLY
        is_needed = self.default is MISSING and not self.optional
        # Only what is given is used, so any default of the type will do.
        default = Declared.empty if is_needed else [] if is_list else some
        annotation = Annotated[list[kind] if is_list else kind, how]  # type: ignore[valid-type]
        return Declared(self.name, place, annotation=annotation, default=default)

    @property
    def told(self) -> str:
        """The help, with the default."""
        is_told = self.default in (None, MISSING, False, "", (), {}) or "default" in self.help
        told = self.help if is_told else f"{self.help} (default: {self.default})"
        if self.positional and self.flags:
            told += f"; or {self.flags[0]} {self.metavar or self.name.upper()}"
        return f"{told}; {self.alias[0]} is short for {self.alias[1]}" if self.alias else told


def option(default: Any, help: str, metavar: str | None = None, **declared: Any) -> Any:
    """A field of a record: its default (MISSING if it must be given) and its declaration.

    declared: fields of `Option`.
    """
    return _field(Option(default, help, metavar, **declared))


def like(record: type, name: str, **changes: Any) -> Any:
    """A field declared as another record's, with these changes."""
    return _field(replace(declared(record, name), **changes))


def declared(record: type, name: str) -> Option:
    """The declaration of a record's field of that name."""
    return _options(record)[name]


def flag_of(record: type, name: str) -> str:
    """The flag of a record's field, for messages; its name if no flag sets it."""
    one = _options(record).get(name)
    return name if one is None else one.flag


def check(record: Any) -> None:
    """Raises UserError for the first value that is not allowed; None, as not given, always is."""
    for name, one in _options(type(record)).items():
        if (value := getattr(record, name)) is not None:
            one.check(value)


def flags_of(*records: type, only: Collection[str] = ()) -> list[Option]:
    """The flags of the fields of records, or of some of them."""
    found = [one for record in records for one in _options(record).values()]
    return [one for one in found if not only or one.name in only]


def removed_from(*records: type) -> dict[str, str]:
    """Flags of earlier versions of these records, and what to do instead."""
    return {
        flag: told for record in records for flag, told in getattr(record, "REMOVED", {}).items()
    }


def build(record: type[R], given: Mapping[str, Any]) -> R:
    """A record from the entries of `given` that name its fields; others are ignored."""
    return record(**given_to(record, given))


def given_to(record: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `given` that name fields of the record."""
    names = {f.name for f in fields(record)}
    return {name: value for name, value in given.items() if name in names}


def arguments(record: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for fields of the record, as a caller in Python gives them: objects also as JSON.

    None where a field must have a value means not given. Raises UserError for a name that no field
    has, for a value of another type, and for text that is no JSON object.
    """
    hints, found = get_type_hints(record), dict(given)
    kinds = {one.name: hints[one.name] for one in fields(record)}
    for name, value in given.items():
        if (flag := "--" + name.replace("_", "-")) in removed_from(record):
            raise UserError(f"{name} was removed: {removed_from(record)[flag]}.")
        if name not in kinds:
            near = get_close_matches(name, kinds, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(kinds)}."
            raise UserError(f"There is no setting {name!r}; {advice}")
        if value is None and misfit(kinds[name], value) is not None:
            del found[name]
        if isinstance(value, str) and misfit(kinds[name], {}) is None:
            try:
                found[name] = json_object(value)
            except ValueError as error:
                raise UserError(f"{name}: {error}.") from error
        if found.get(name) is not None:
            _options(record)[name].check(found[name])
    return found


def parameters(record: type) -> dict[str, str]:
    """How Python calls the settings that messages call by their flags."""
    return {one.flag: name for name, one in _options(record).items()}


def json_object(text: str) -> dict[str, Any]:
    """The value of a flag that takes a JSON object. Raises ValueError if it is none."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error}): {text!r}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object such as {{}}, not {text!r}")
    return value


def whole_number(text: str) -> int:
    """The value of a flag that counts. Raises ValueError for 2.5, which cyclopts would round."""
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(f"expected a whole number, not {text!r}")
    return int(text)


def named_path(text: str) -> Path:
    """The value of a flag that takes a path: an unset variable of a shell names none."""
    if not text:
        raise ValueError("expected a path, not ''")
    return Path(text)


def or_none(text: str) -> str | None:
    """The value of a flag that can say `none`."""
    return None if text == "none" else text


def _field(one: Option) -> Any:
    if isinstance(one.default, dict):
        return field(default_factory=one.default.copy, metadata={_KEY: one})
    return field(default=one.default, metadata={_KEY: one})


def _options(record: type) -> dict[str, Option]:
    """Declarations of the fields, inherited ones last; a field that no flag sets has none."""
    kinds, there = get_type_hints(record), {f.name: f.metadata.get(_KEY) for f in fields(record)}
    own = [name for cls in record.__mro__ for name in vars(cls).get("__annotations__", {})]
    return {
        name: replace(one, name=name, type=kinds[name])
        for name in dict.fromkeys(own)
        if (one := there.get(name)) is not None
    }


DEBUG = Option(False, "show where an error was raised", name="debug", type=bool)
CONFIG = Option(
    None,
    "TOML file with flags that are not given here, in a table of the command's name",
    "FILE",
    name="config",
)


def _read_config(app: App, commands: tuple[str, ...], arguments: Any) -> None:
    """Take the arguments that are not given from the file that --config names."""
    from cyclopts import CycloptsError
    from cyclopts.config import Toml

    for one in arguments:
        if one.name == "--config" and one.tokens:
            path, keys = one.tokens[-1].value, app.name[0].split()[1:]
            file = Toml(path, root_keys=keys, must_exist=True, use_commands_as_keys=False)
            try:
                open(path, "rb").close()  # cyclopts fails on the error of a folder
                table: Any = file.config
                for key in keys:
                    table = table.get(key) if isinstance(table, dict) else None
                    if table is None:
                        raise CycloptsError(msg=f"has no table [{'.'.join(keys)}]")
                file(app, commands, arguments)
            except OSError as error:
                raise CycloptsError(msg=f"{path}: cannot be read ({error.strerror})") from error
            except CycloptsError as error:
                told = str(error).removeprefix(type(error).__name__).strip()
                raise CycloptsError(msg=f"{path}: {told}") from error


@dataclass(frozen=True)
class CommandLine:
    """A command line: its flags, and the function that receives their record.

    A call raises UserError; ``run`` prints such an error as one line instead. Flags cannot be
    abbreviated, so typos are refused.
    """

    name: str
    # Its status, or None for 0. A module without one calls ``given`` itself.
    main: Callable[[Any], int | None] | None
    flags: type | Sequence[Option]  # a record, or flags that become attributes
    description: str = ""  # default: what documents the record
    epilog: str | None = None
    interrupted: str = "stopped; the same command goes on from what is finished"
    # Flags of earlier versions, and what to do instead
    removed: Mapping[str, str] = field(default_factory=dict)
    passes: str | None = None  # the field for the words behind --, which are not read here
    usage: str | None = None

    @property
    def arguments(self) -> list[Option]:
        flags = flags_of(self.flags) if isinstance(self.flags, type) else list(self.flags)
        own = {one.name for one in flags}
        return [*flags, *(one for one in (CONFIG, DEBUG) if one.name not in own)]

    @property
    def app(self) -> App:
        """For help and completion."""
        from cyclopts import App, Group

        def receive(*_: object, **__: object) -> None: ...

        names = dict.fromkeys(one.group or _FLAGS for one in self.arguments)
        groups = {name: Group.create_ordered(name) for name in names}
        declared = [one.parameter(groups) for one in self.arguments]
        receive.__signature__ = Signature(sorted(declared, key=lambda one: one.kind))  # type: ignore[attr-defined]
        return App(
            self.name,
            default_command=receive,
            help=self.description or " ".join((self.flags.__doc__ or "").split()),
            help_epilogue=self.epilog,
            help_format="plaintext",
            usage=self.usage and f"Usage: {self.usage}",
            version_flags=[],
            group_commands=groups[_FLAGS],  # of --help
            config=_read_config,
        )

    def given(self, words: Sequence[str] | None = None) -> dict[str, Any]:
        """The values that are given. Ends the program for --help, and for what cannot be read."""
        from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

        words = self._long(sys.argv[1:] if words is None else words)
        app, words = self.app, self._placed(words)
        try:
            command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
        except MissingArgumentError as error:
            names = error.argument.names if error.argument else ()
            is_there = any(word.partition("=")[0] in names for word in words)
            self.refuse(f"{names[0]} {'needs a value' if is_there else 'must be given'}")
        except UnusedCliTokensError as error:
            self.refuse(f"one argument too many: {' '.join(error.unused_tokens or ())}")
        except CycloptsError as error:
            self.refuse(" ".join(str(error).split()).rstrip("."))
        if command is not app.default_command:
            show = partial(command, *bound.args, **bound.kwargs)
            raise SystemExit(run_command(self.name, show, debug=False, interrupted="stopped"))
        return dict(bound.arguments)

    def _long(self, words: Sequence[str]) -> list[str]:
        """The words, with the flags that stand for a value, or for their usual one, in full."""
        aliases = {a.alias[0]: f"{a.flag}={a.alias[1]}" for a in self.arguments if a.alias}
        alone = {flag: one.alone for one in self.arguments for flag in one.flags if one.alone}
        long = list[str]()
        own = removed_from(self.flags) if isinstance(self.flags, type) else {}
        removed = {**own, **self.removed}
        for word, after in zip(words, [*words, "--"][1:], strict=True):
            if (flag := word.partition("=")[0]) in removed:
                self.refuse(f"{flag} was removed: {removed[flag]}")
            if word == "-" and long and long[-1].startswith("-"):  # standard input or output
                long[-1] += "=-"
            elif word in alone and after.startswith("-"):
                long.append(f"{word}={alone[word]}")
            else:
                long.append(aliases.get(word, word))
        return long

    def _placed(self, words: list[str]) -> list[str]:
        """The words, with the value of a flag that stands for the first argument in its place."""
        flags = {flag for one in self.arguments if one.positional for flag in one.flags}
        for index, word in enumerate(words):
            flag, is_joined, value = word.partition("=")
            if word == "--":
                break
            if flag in flags and (is_joined or index + 1 < len(words)):
                rest = words[index + 1 + (not is_joined) :]
                return [value if is_joined else words[index + 1], *words[:index], *rest]
        return words

    def refuse(self, message: str) -> NoReturn:
        raise SystemExit(refuse(self.name, f"{message}; {self.name} --help explains every flag"))

    def parse(self, *words: object) -> Any:
        """The record, or an object with an attribute for each flag. Raises SystemExit."""
        try:
            return self._made(self.given(list(map(str, words))))
        except UserError as error:
            raise SystemExit(refuse(self.name, error)) from error

    def _made(self, given: Mapping[str, Any]) -> Any:
        for one in self.arguments:
            if given.get(one.name) is not None:  # as --tokenizer none is read
                one.check(given[one.name])
        if isinstance(self.flags, type):
            return build(self.flags, given)
        usual = {one.name: one.default for one in self.arguments if one.default is not MISSING}
        return SimpleNamespace(**{**usual, **given})

    def __call__(self, *words: object) -> None:
        assert self.main is not None
        self.main(self._made(self.given(list(map(str, words)))))

    def run(self, words: Sequence[str] | None = None) -> int:
        """Run ``main``; returns the exit status."""
        words = list(sys.argv[1:] if words is None else words)
        cut = words.index("--") if self.passes and "--" in words else len(words)
        given, main = self.given(words[:cut]), self.main
        assert main is not None
        if self.passes:
            given[self.passes] = words[cut + 1 :]
        logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
        logging.getLogger("sacrebleu").setLevel(logging.WARNING)
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # it logs all files it opens
        with stopping():
            return run_command(
                self.name, lambda: main(self._made(given)), "debug" in given, self.interrupted
            )
