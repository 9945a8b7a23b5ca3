"""Drafters: how tokens are proposed. Every file here registers one."""

from importlib import import_module
from pkgutil import iter_modules

from specdec_plugins.decoding.drafters.base import DRAFTERS as DRAFTERS
from specdec_plugins.decoding.drafters.base import DraftContext as DraftContext
from specdec_plugins.decoding.drafters.base import Needs as Needs
from specdec_plugins.decoding.drafters.base import needs_of as needs_of
from specdec_plugins.decoding.drafters.block import BlockNatDrafter as BlockNatDrafter

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
