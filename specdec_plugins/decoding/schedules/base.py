"""The list of draft schedules by name, and how one is built."""

from __future__ import annotations

from typing import Any

from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.types import DraftSchedule

SCHEDULES: Registry[DraftSchedule] = Registry("draft schedule")


def build_schedule(name: str, options: dict[str, Any] | None = None) -> DraftSchedule:
    """The schedule of that name with `options` for its Config.

    Raises UserError for an unknown name or option, each with the choices.
    """
    cls, config = SCHEDULES.configure(name, options)
    schedule: DraftSchedule = cls(config)
    return schedule
