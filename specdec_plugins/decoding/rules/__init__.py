"""Acceptance rules: how many drafted tokens are kept. One file each; importing registers them."""

from specdec_plugins.decoding.rules import exact as exact
from specdec_plugins.decoding.rules import speculative_sampling as speculative_sampling
from specdec_plugins.decoding.rules import top_beta as top_beta
from specdec_plugins.decoding.types import RULES as RULES
