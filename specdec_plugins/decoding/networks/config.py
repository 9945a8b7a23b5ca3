"""Shapes and switches of the networks: frozen, checked when built, serialisable as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_plugins.errors import require


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _linear(x: Tensor) -> Tensor:
    return x


_gelu_tanh = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # by fairseq's names, where it has one
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "gelu": F.gelu,
    "gelu_fast": _gelu_tanh,  # the older name of the next one
    "gelu_accurate": _gelu_tanh,
    "swish": F.silu,
    "tanh": torch.tanh,
    "linear": _linear,
}


@dataclass(frozen=True)
class StackConfig:
    """One of the two stacks, encoder or decoder."""

    num_layers: int  # 1 or more
    dim: int  # width of the residual stream, a multiple of num_heads
    ffn_dim: int  # width inside the feed-forward block
    num_heads: int  # of every attention
    vocab_size: int  # types, special symbols included
    max_positions: int  # tokens, the start token included
    positions: str = "sinusoidal"  # or "learned", "relative", "none"
    normalize_before: bool = False  # layer norm before each block (pre-norm) instead of after it
    final_norm: bool = False  # one more layer norm after the last layer
    attention_dim: int | None = None  # width of all heads together; None = dim
    scales_scores: bool = True  # products of queries and keys are divided by sqrt(head_dim)
    norm: str = "layer"  # or "rms", which has neither mean nor bias
    norm_epsilon: float = 1e-5  # added to the mean square before its root is taken
    biases: bool = True  # the linear layers have them
    gated: bool = False  # the feed-forward block multiplies its activations by a second product
    num_buckets: int = 0  # rows of the table of "relative" positions
    max_distance: int = 0  # from where on they do not differ
    bias_each_layer: bool = False  # each layer has a table; else all use that of the first

    def __post_init__(self) -> None:
        width = self.attention_dim or self.dim
        require(
            width % self.num_heads == 0,
            f"A model width of {width} cannot be split over {self.num_heads} attention heads.",
        )
        require(
            self.positions != "relative" or (self.num_buckets >= 4 and self.max_distance > 0),
            f"Relative positions cannot have {self.num_buckets} buckets up to a distance of "
            f"{self.max_distance}.",
        )

    @property
    def switches(self) -> dict[str, Any]:
        """What fairseq's layers do not have, as far as it differs from them."""
        names = [field.name for field in fields(self)]
        known = {field.name: field.default for field in fields(self)}
        beyond = names[names.index("final_norm") + 1 :]
        found = {name: getattr(self, name) for name in beyond}
        found = {name: value for name, value in found.items() if value != known[name]}
        return found | ({"positions": "relative"} if self.positions == "relative" else {})

    @property
    def head_dim(self) -> int:
        return (self.attention_dim or self.dim) // self.num_heads


_Config = TypeVar("_Config", bound="TransformerConfig")


@dataclass(frozen=True)
class TransformerConfig:
    """Covers the weights and the forward pass of every stock Transformer of fairseq."""

    encoder: StackConfig  # reads the source
    decoder: StackConfig  # writes the target
    pad: int = 1  # token id of padding
    activation: str = "relu"  # of the feed-forward blocks; a name in ACTIVATIONS
    scale_embedding: bool = True  # token embeddings times sqrt(dim of the stack)
    norm_embedding: bool = False  # layer norm after token and position embeddings are added
    share_embeddings: bool = False  # one table for source and target
    tie_output: bool = False  # the output projection is the target's table
    output_bias: bool = False  # the output projection has a bias
    decoder_input_dim: int | None = None  # of the target's table; None = the decoder's
    decoder_output_dim: int | None = None  # of what the output projection reads; None = the same

    def __post_init__(self) -> None:
        require(
            self.activation in ACTIVATIONS,
            f"There is no activation {self.activation!r}; "
            f"choose one of: {', '.join(sorted(ACTIVATIONS))}.",
        )

    @property
    def input_dim(self) -> int:
        return self.decoder_input_dim or self.decoder.dim

    @property
    def output_dim(self) -> int:
        return self.decoder_output_dim or self.decoder.dim

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, strings and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[_Config], values: dict[str, Any]) -> _Config:
        """The inverse of `to_dict`. Raises TypeError where a name is unknown or missing."""
        stacks = {name: StackConfig(**values[name]) for name in ("encoder", "decoder")}
        return cls(**{**values, **stacks})


@dataclass(frozen=True)
class BlockConfig(TransformerConfig):
    """The block drafter; `scale_embedding` and `norm_embedding` apply to its encoder alone.

    The encoder may be any verifier's; the decoder is post-norm, with positions of its own, and as
    wide as the encoder if it copies. A sequential head needs `tie_output`, a shortlist a head.
    """

    mask: int = 3  # token id of a position to predict, `<unk>` in the published checkpoints
    block_size: int = 25  # tokens a block, as trained
    copy_source: bool = True  # masks are fed a mixture of source embeddings
    scale_decoder: bool = False  # the decoder's embeddings too are multiplied by sqrt(its dim)
    cached_prefix: bool = False  # a prefix position sees none after it, so it is computed once
    sequential_head: int = 0  # hidden width of the head that reads the previous token; 0 = none
    head_attention: int = 0  # attention heads with which that head reads the source; 0 = none
    shortlist_common: int = 0  # types that may be drafted for any source; 0 = the whole vocabulary
    shortlist_types: int = 0  # entries that map source types to likely target types

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.input_dim == self.decoder.dim == self.output_dim,
            "The block drafter has no projection of its embeddings; make them as wide as the "
            "decoder.",
        )
        require(self.block_size >= 1, f"block_size must be 1 or more, not {self.block_size}.")

    @property
    def longest_block(self) -> int:
        """Tokens that may be drafted at once: `block_size`, as trained, or with a head twice that.

        A head relies on the previous token, which tells as much past the trained block size:
        benchmarks/results/head-ablation.md, *Longer blocks than in training*.
        """
        return 2 * self.block_size if self.sequential_head else self.block_size
