"""Names on the command line -> classes; one registry a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from specdec_plugins.errors import UserError

T = TypeVar("T")


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

        Raises UserError for an unknown name or option, each with the choices.
        """
        cls: Any = self.get(name)
        try:
            return cls, cls.Config(**(options or {}))
        except TypeError as error:
            known = ", ".join(cls.Config.__dataclass_fields__) or "none"
            raise UserError(
                f"Options of {self.kind} {name!r}: {error}; it knows: {known}."
            ) from error
