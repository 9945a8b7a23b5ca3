"""Draft schedules: how many tokens to ask for next. Every file here registers one."""

from importlib import import_module
from pkgutil import iter_modules

from specdec_plugins.decoding.contract import SCHEDULES as SCHEDULES

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
