"""Names on the command line -> classes; one registry a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from specdec_plugins.errors import UserError

T = TypeVar("T")
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
}


class Registry(Generic[T]):
    """Maps names to classes; a duplicate is our bug, an unknown name the user's typo."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
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
        if name not in self._entries:
            choices = ", ".join(self.names())
            raise UserError(f"There is no {self.kind} named {name!r}; choose one of: {choices}.")
        return self._entries[name]

    def names(self) -> list[str]:
        return sorted(self._entries)

    def configure(self, name: str, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
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
                    f"There is no option {option!r} of {self.kind} {name!r}; it knows: {known}."
                )
            allowed = get_args(kinds[option]) or (kinds[option],)
            if not any(_is_a(kind, value) for kind in allowed):
                wanted = " or ".join(_WORDS[kind] for kind in allowed)
                raise UserError(
                    f"Option {option!r} of {self.kind} {name!r} must be {wanted}, not {value!r}."
                )
        return cls, cls.Config(**(options or {}))


def _is_a(kind: type, value: object) -> bool:
    """As JSON has them: to Python, True is an int, and 2 is no float."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)
