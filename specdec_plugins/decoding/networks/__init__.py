"""Plain torch networks for inference: encoder, cached decoder, block drafter."""

from specdec_plugins.decoding.networks.block import BlockDrafter as BlockDrafter
from specdec_plugins.decoding.networks.config import BlockConfig as BlockConfig
from specdec_plugins.decoding.networks.config import StackConfig as StackConfig
from specdec_plugins.decoding.networks.config import TransformerConfig as TransformerConfig
from specdec_plugins.decoding.networks.cpu.ops import best_set as best_set
from specdec_plugins.decoding.networks.cpu.products import KERNELS as KERNELS
from specdec_plugins.decoding.networks.cpu.products import with_fast_products as with_fast_products
from specdec_plugins.decoding.networks.heads import MedusaConfig as MedusaConfig
from specdec_plugins.decoding.networks.heads import MedusaHeads as MedusaHeads
from specdec_plugins.decoding.networks.transformer import Transformer as Transformer
