"""Acceptance rules: how many drafted tokens are kept. Every file here registers one."""

from importlib import import_module
from pkgutil import iter_modules

from specdec_plugins.decoding.contract import RULES as RULES

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
