"""Settings declared once, in a record whose fields carry their help and bounds.

A record is a frozen dataclass whose fields are made by `option`, or by `like` if another record
declares the same setting:

    @dataclass(frozen=True)
    class ServerSettings:
        max_rows: int = option(32, "sentences that decode at once", least=1, group="limits")
        beta: int = like(Settings, "beta", group="defaults of requests")

        def __post_init__(self) -> None:
            check(self)

* `flags_of(ServerSettings)` are the arguments of a command line, one for each field, such as
  `--max-rows N`. Their types are those of the annotations, and their help ends with the default.
  Flags that are not given are absent from a command's values.
* `build(ServerSettings, given)` is the record; its defaults fill in absent fields.
* `check(self)` raises UserError with the flag's name for a value out of bounds:
  "--max-rows must be 1 or more, not 0."
* A record's `REMOVED` maps flags of earlier versions to what is to be done instead, which is the
  answer to whoever gives one.
* `declared(Settings, "beta")` is the declaration, for use in other schemas; in pydantic
  `Field(default=None, description=beta.help, **beta.bounds)`.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from specdec_plugins.corpus.cli import REQUIRED, Argument
from specdec_plugins.decoding.registry import Registry, misfit
from specdec_plugins.errors import UserError, require

R = TypeVar("R")
_KEY = "option"
_BOUNDS = {  # by pydantic's name: our name, the wording, the test
    "ge": ("least", "{:g} or more", operator.ge),
    "gt": ("above", "above {:g}", operator.gt),
    "le": ("most", "at most {:g}", operator.le),
}


@dataclass(frozen=True)
class Option:
    """The declaration of a setting, except its type."""

    default: Any  # MISSING if it must be given
    help: str
    metavar: str | None = None  # None = from the type
    flags: tuple[str, ...] = ()  # () = the field's name with dashes
    alias: tuple[str, str] | None = None  # a flag that stands for one value, and the value
    group: str | None = None  # heading in --help
    choices: Sequence[str] | Registry[Any] | None = None
    least: float | None = None  # inclusive lower bound
    above: float | None = None  # exclusive lower bound
    most: float | None = None  # inclusive upper bound
    advice: str = ""  # added to the message for a value out of bounds
    type: Callable[[str], Any] | None = None  # reads the text, if the field's type does not
    many: bool = False  # the flag takes several values
    alone: str | None = None  # the value of the flag without one
    required: bool = False
    negative: bool = False  # --no-FLAG sets a switch to False; so does that of `bool | None`

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds under the names that pydantic and annotated-types use."""
        named = {name: getattr(self, ours) for name, (ours, _, _) in _BOUNDS.items()}
        return {name: bound for name, bound in named.items() if bound is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """The allowed values; empty if any value is allowed."""
        choices = self.choices or ()
        return tuple(choices.names() if isinstance(choices, Registry) else choices)

    def flag(self, name: str) -> str:
        """The flag of the field of that name, for messages."""
        return next(iter(self.flags), "--" + name.replace("_", "-"))

    def check(self, name: str, kind: Any, value: Any) -> None:
        """Raises UserError unless the value is an allowed one of that type, within the bounds."""
        flag = self.flag(name)
        wanted = misfit(kind, os.fspath(value) if isinstance(value, os.PathLike) else value)
        require(
            wanted is None,
            f"{flag} must be {(wanted or '').removesuffix(' or null')}, not {value!r}.",
        )
        if isinstance(self.choices, Registry):
            self.choices.get(value)
        require(
            not self.names or value in self.names,
            f"There is no {flag} {value!r}; choose one of: {', '.join(self.names)}.",
        )
        bounds = [(*_BOUNDS[name][1:], bound) for name, bound in self.bounds.items()]
        wanted = " and ".join(words.format(bound) for words, _, bound in bounds)
        advice = f"; {self.advice}" if self.advice else ""
        require(
            all(holds(value, bound) for _, holds, bound in bounds),
            f"{flag} must be {wanted}, not {value}{advice}.",
        )

    def argument(self, name: str, kind: Any) -> Argument:
        """The flag, or the positional argument, of the field with that name and type.

        None in the type stands for the absence of the flag.
        """
        given = [part for part in get_args(kind) if part is not type(None)]
        kind = given[0] if given and get_origin(kind) is not Mapping else kind
        is_mapping = get_origin(kind) is Mapping
        flags = self.flags or (self.flag(name),)
        read, choices, metavar = self.type, self.names, "JSON" if is_mapping else None
        if isinstance(self.choices, Registry):
            # Unlike a list of choices, it knows what was removed.
            read, choices = partial(_name, self.choices, self.type or str), ()
            metavar = f"{{{','.join(self.names)}}}"
        return Argument(
            name,
            flags if flags[0].startswith("-") else (),
            read or (json_object if is_mapping else kind),
            self._help(),
            REQUIRED if self.required else None,
            is_list=self.many,
            choices=() if self.type else choices,
            metavar=self.metavar or metavar,
            group=self.group,
            negative=self.negative or bool(given),
            alone=self.alone,
            aliases=dict([self.alias] if self.alias else ()),
        )

    def _help(self) -> str:
        is_empty = self.default in (None, MISSING, {}) or self.default is False
        is_told = is_empty or "default" in self.help
        told = self.help if is_told else f"{self.help} (default: {self.default})"
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
    return name if one is None else one.flag(name)


def check(record: Any) -> None:
    """Raises UserError for the first field with a value that its declaration does not allow.

    None is always allowed: it means not given.
    """
    kinds = get_type_hints(type(record))
    for name, one in _options(type(record)).items():
        value = getattr(record, name)
        if value is not None:
            one.check(name, kinds[name], value)


def flags_of(*records: type, only: Collection[str] = ()) -> list[Argument]:
    """The flags of the fields of records, or of some of them.

    They are named as the fields, and are not among a command's values unless they are given.
    """
    return [
        one.argument(name, get_type_hints(record)[name])
        for record in records
        for name, one in _options(record).items()
        if not only or name in only
    ]


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

    Raises UserError for a name that no field has, and for text that is no JSON object.
    """
    kinds, found = get_type_hints(record), dict(given)
    for name, value in given.items():
        if name not in kinds:
            near = get_close_matches(name, kinds, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(kinds)}."
            raise UserError(f"There is no setting {name!r}; {advice}")
        if isinstance(value, str) and misfit(kinds[name], {}) is None:
            try:
                found[name] = json_object(value)
            except ValueError as error:
                raise UserError(f"{name}: {error}.") from error
    return found


def parameters(record: type) -> dict[str, str]:
    """How Python calls the settings that messages call by their flags."""
    return {one.flag(name): name for name, one in _options(record).items()}


def _name(registry: Registry[Any], read: Callable[[str], str | None], text: str) -> str | None:
    if (name := read(text)) is not None:
        registry.get(name)
    return name


def json_object(text: str) -> dict[str, Any]:
    """The value of a flag that takes a JSON object. Raises ValueError if it is none."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error}): {text!r}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object such as {{}}, not {text!r}")
    return value


def or_none(text: str) -> str | None:
    """The value of a flag that can say `none`."""
    return None if text == "none" else text


def _field(one: Option) -> Any:
    if isinstance(one.default, dict):
        return field(default_factory=one.default.copy, metadata={_KEY: one})
    return field(default=one.default, metadata={_KEY: one})


def _options(record: type) -> dict[str, Option]:
    """Declarations of the fields; a field that no flag sets has none."""
    return {f.name: f.metadata[_KEY] for f in fields(record) if _KEY in f.metadata}
