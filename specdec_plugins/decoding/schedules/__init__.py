"""Draft schedules: how many tokens to ask for next. One file each; importing registers them."""

from __future__ import annotations

from typing import Any

from specdec_plugins.decoding.schedules import adaptive as adaptive
from specdec_plugins.decoding.schedules import constant as constant
from specdec_plugins.decoding.schedules import heuristic as heuristic
from specdec_plugins.decoding.schedules import target_confidence as target_confidence
from specdec_plugins.decoding.types import SCHEDULES as SCHEDULES
from specdec_plugins.decoding.types import DraftSchedule


def build_schedule(name: str, options: dict[str, Any] | None = None) -> DraftSchedule:
    """The schedule of that name with `options` for its Config.

    Raises UserError for an unknown name or option, each with the choices.
    """
    cls, config = SCHEDULES.configure(name, options)
    schedule: DraftSchedule = cls(config)
    return schedule
