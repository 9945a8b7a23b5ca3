"""Names on the command line -> classes; one registry for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from specdec_plugins.errors import UserError

T = TypeVar("T")
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Mapping: "an object",
    type(None): "null",
}


class Registry(Generic[T]):
    """Maps names to classes; a duplicate raises ValueError, an unknown name UserError."""

    def __init__(self, kind: str, removed: Mapping[str, str] | None = None) -> None:
        """removed: names of earlier versions, and what is to be done instead."""
        self.kind = kind
        self._removed = removed or {}
        self._entries: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator. Raises ValueError where the name is taken."""

        def add(entry: type[T]) -> type[T]:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> type[T]:
        """The class of that name. Raises UserError with the list of choices."""
        if name in self._removed:
            raise UserError(f"The {self.kind} {name!r} was removed: {self._removed[name]}.")
        if name not in self._entries:
            choices = ", ".join(self.names())
            raise UserError(f"There is no {self.kind} named {name!r}; choose one of: {choices}.")
        return self._entries[name]

    def names(self) -> list[str]:
        return sorted(self._entries)

    def configure(self, name: str, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """The class of that name, and `options` as its Config.

        Raises UserError for an unknown name or option, each with the choices, and for a value of
        another type than its field's.
        """
        cls: Any = self.get(name)
        kinds = get_type_hints(cls.Config)
        for option, value in (options or {}).items():
            if option not in kinds:
                known = ", ".join(kinds) or "none"
                raise UserError(
                    f"There is no option {option!r} of {self.kind} {name!r}; its options: {known}."
                )
            if wanted := misfit(kinds[option], value):
                raise UserError(
                    f"Option {option!r} of {self.kind} {name!r} must be {wanted}, not {value!r}."
                )
        return cls, cls.Config(**(options or {}))

    def build(self, name: str, *parts: Any, options: Mapping[str, Any] | None = None) -> T:
        """The class of that name, built from its Config and these parts; raises as `configure`."""
        cls, config = self.configure(name, options)
        built: T = cls(config, *parts)
        return built


def misfit(hint: Any, value: object) -> str | None:
    """The type, in words, that a JSON value should have by its annotation; None if it has it.

    NewTypes count as their supertype. Unlike in Python, True is no int, and 2 counts as a float;
    numbers of numpy count as Python's.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = tuple(getattr(kind, "__supertype__", get_origin(kind) or kind) for kind in kinds)
    for kind in kinds:
        accepted = {int: Integral, float: Real}.get(kind, kind)
        if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
            return None
    return " or ".join(_WORDS[kind] for kind in kinds)
