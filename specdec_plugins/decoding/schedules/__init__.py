"""Draft schedules: how many tokens to ask for next. One file each; importing registers them."""

from specdec_plugins.decoding.schedules import adaptive as adaptive
from specdec_plugins.decoding.schedules import constant as constant
from specdec_plugins.decoding.schedules import heuristic as heuristic
from specdec_plugins.decoding.schedules import target_confidence as target_confidence
from specdec_plugins.decoding.schedules.base import SCHEDULES as SCHEDULES
from specdec_plugins.decoding.schedules.base import build_schedule as build_schedule
