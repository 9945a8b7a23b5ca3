"""Drafters: how tokens are proposed. One file each; importing registers them."""

from specdec_plugins.decoding.drafters import assistant as assistant
from specdec_plugins.decoding.drafters import early_exit as early_exit
from specdec_plugins.decoding.drafters import lookup as lookup
from specdec_plugins.decoding.drafters import medusa as medusa
from specdec_plugins.decoding.drafters.base import DRAFTERS as DRAFTERS
from specdec_plugins.decoding.drafters.base import DraftContext as DraftContext
from specdec_plugins.decoding.drafters.base import Needs as Needs
from specdec_plugins.decoding.drafters.base import build_drafter as build_drafter
from specdec_plugins.decoding.drafters.base import needs_of as needs_of
from specdec_plugins.decoding.drafters.block import BlockNatDrafter as BlockNatDrafter
