"""A trained model between file formats: what kind it is, its shape, and its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    Transformer,
    TransformerConfig,
)
from specdec_plugins.decoding.networks.heads import heads_of
from specdec_plugins.errors import UserError
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.fairseq_weights import State, fill, network_state

VERIFIER, BLOCK, HEADS = "transformer", "block", "medusa_heads"

_CONFIGS: dict[str, type[TransformerConfig]] = {VERIFIER: TransformerConfig, BLOCK: BlockConfig}
KINDS = (*_CONFIGS, HEADS)


@dataclass(frozen=True)
class Model:
    """Weights under fairseq's parameter names of today, tied ones under each of their names."""

    path: Path  # where it came from, for messages
    kind: str  # one of KINDS
    arch: str  # what whoever wrote it calls it, for messages
    config: TransformerConfig | None  # None = the weights alone settle it, as with heads
    state: State

    def architecture(self) -> dict[str, Any]:
        """For JSON."""
        return {} if self.config is None else self.config.to_dict()

    def network(self, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """The inference network, in eval mode. Raises UserError where weights do not fit."""
        if self.kind == HEADS:
            parts = (self.state[f"blocks.{kind}"].to(device, dtype) for kind in ("weight", "bias"))
            return heads_of(*parts)
        network: Transformer | BlockDrafter
        if isinstance(self.config, BlockConfig):
            network = BlockDrafter(self.config)
        else:
            assert self.config is not None
            network = Transformer(self.config)
        fill(network, network_state(self.state, bidirectional=self.kind == BLOCK), self.path)
        return network.to(device=device, dtype=dtype).eval().requires_grad_(False)

    def check_dictionaries(self, source: Dictionary, target: Dictionary) -> None:
        """Raises UserError where the model was trained with dictionaries of another size."""
        assert self.config is not None
        sides = (("source", self.config.encoder, source), ("target", self.config.decoder, target))
        for side, stack, dictionary in sides:
            if stack.vocab_size != len(dictionary):
                raise UserError(
                    f"{self.path}: the checkpoint has {stack.vocab_size} {side} symbols and the "
                    f"{side} dictionary {len(dictionary)}; give the dictionaries it was trained "
                    "with."
                )

    def only_if(self, condition: bool, engine: str, what: str) -> None:
        """Raises UserError unless the condition holds: the engine cannot express `what`."""
        if not condition:
            raise UserError(
                f"{self.path}: {engine} cannot express {what}; keep fairseq or this project for it."
            )

    def until(self, exit_layer: int) -> Model:
        """Without the decoder layers behind an exit. Raises UserError where it has no such one."""
        assert self.config is not None
        num_layers = self.config.decoder.num_layers
        if not 1 <= exit_layer <= num_layers:
            raise UserError(
                f"{self.path}: there is no exit after layer {exit_layer} of its {num_layers} "
                f"decoder layers; give an --exit-layer from 1 to {num_layers}."
            )
        state = {n: t for n, t in self.state.items() if layer_number("decoder", n) < exit_layer}
        decoder = replace(self.config.decoder, num_layers=exit_layer)
        return replace(self, state=state, config=replace(self.config, decoder=decoder))


def layer_number(side: str, name: str) -> int:
    """Of the layer that a weight belongs to, from 0; -1 for what is in no layer of that side."""
    match = re.match(rf"{side}\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1


def config_of(kind: str, architecture: Mapping[str, Any]) -> TransformerConfig | None:
    """The configuration that `Model.architecture` described.

    Raises TypeError or KeyError where it is none, UserError where its values cannot be.
    """
    return None if kind == HEADS else _CONFIGS[kind].from_dict(dict(architecture))
