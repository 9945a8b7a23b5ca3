"""The list of draft schedules by name."""

from __future__ import annotations

from specdec_plugins.decoding.interfaces import DraftSchedule
from specdec_plugins.decoding.registry import Registry

SCHEDULES: Registry[DraftSchedule] = Registry("draft schedule")
