"""Draft schedules: how many tokens to ask for next. Every file here registers one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from specdec_plugins.decoding.types import SCHEDULES as SCHEDULES
from specdec_plugins.decoding.types import DraftSchedule

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def build_schedule(name: str, options: dict[str, Any] | None = None) -> DraftSchedule:
    """The schedule of that name with `options` for its Config.

    Raises UserError for an unknown name or option, each with the choices.
    """
    cls, config = SCHEDULES.configure(name, options)
    schedule: DraftSchedule = cls(config)
    return schedule
