"""From stored weights to networks, for any file format; files are opened in `formats/`.

A class of network registers here under the name that bundles give it. It reads its configuration
from a checkpoint and loads the weights, which keep the names of the modules that were trained.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks.config import TransformerConfig
from specdec_plugins.decoding.networks.reading import (
    LazyState,
    Weights,
    all_read,
    parts_of,
    uninitialised,
)
from specdec_plugins.decoding.registry import Registry
from specdec_plugins.errors import located, require

State = dict[str, Tensor]


class Symbols(Protocol):
    """A dictionary, as far as it is compared."""

    def __len__(self) -> int: ...

    @property
    def digest(self) -> str:
        """A hash of its content."""


_SIDES = ("source", "target")
Digests = Sequence[str | None]  # of the source's and the target's dictionary; None = not recorded


class TrainingSettings(Protocol):
    """What a checkpoint stores about its model and the task that it was trained for."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a flag, written with underscores; the default where there is none."""


_Network = TypeVar("_Network", bound="TrainedNetwork")
_Opened = tuple[_Network, Weights]


class TrainedNetwork(nn.Module):
    """Base of the networks that are read from files; each is built from its configuration.

    A UserError of the class methods need not name the file: their callers do.
    """

    Config: ClassVar[Any]  # a frozen dataclass that JSON can hold
    arch: ClassVar[str]  # a checkpoint whose `--arch` begins with this holds one
    noun: ClassVar[str]  # in messages: "a block drafter"
    int8: ClassVar[bool] = False  # its linear layers may be replaced by 8-bit ones

    @classmethod
    @abstractmethod
    def configure(cls, state: State, settings: TrainingSettings) -> Any:
        """The configuration of a checkpoint. Raises UserError where it holds no such network."""

    @classmethod
    def described(cls, architecture: dict[str, Any], state: Mapping[str, Tensor]) -> Any:
        """The configuration from a bundle, which stores it as `dataclasses.asdict` does.

        Raises TypeError or KeyError where it describes something else.
        """
        return cls.Config(**architecture)

    @classmethod
    def own_state(cls, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Stored weights under the names of this network."""
        return state

    @classmethod
    def opened(
        cls: type[_Network], config: Any, state: Mapping[str, Tensor], **place: Any
    ) -> _Opened[_Network]:
        """A network, and its weights, which are still to be read.

        place: its `device` and `dtype`. Raises UserError where they do not fit.
        """
        with uninitialised():
            network = cls(config)
        if place:  # first, as a move to another kind of device may part tied weights
            network.to(**place)
        return network, Weights(network, cls.own_state(state))

    @classmethod
    def read(cls: type[_Network], config: Any, state: Mapping[str, Tensor]) -> _Network:
        """A network with these weights. Raises UserError where they do not fit."""
        network, weights = cls.opened(config, state)
        weights.read()
        return network

    def prepare(self) -> None:
        """Make what is computed from the weights once, so that no sentence waits for it.

        Called when weights, device and products are final.
        """

    def adopt(
        self, verifier: TrainedNetwork, own: Weights | None = None, theirs: Weights | None = None
    ) -> None:
        """Share the parts that equal the verifier's, so that memory holds them once.

        own, theirs: the weights of both, if they are still to be read. Shares nothing unless a
        subclass does.
        """


NETWORKS: Registry[TrainedNetwork] = Registry("kind of network")
VERIFIER = "transformer"  # the kind of checkpoints that no other kind claims


def kind_of(arch: str) -> str:
    """The kind of network in checkpoints of that `--arch`, by the longest `arch` it begins with."""
    kinds = [k for k in NETWORKS.names() if arch.startswith(NETWORKS.get(k).arch)]
    return max(kinds, key=lambda kind: len(NETWORKS.get(kind).arch), default=VERIFIER)


@dataclass(frozen=True)
class Model:
    """A trained model between file formats: what kind it is, its shape, and its weights."""

    path: Path  # where it came from, for messages
    kind: str  # a name in NETWORKS
    arch: str  # its architecture by the name that the file gives, for messages
    config: Any  # of its network class
    state: Mapping[str, Tensor]  # tied weights under each of their names
    languages: tuple[str | None, str | None] = (None, None)  # source, target; if the file says
    digests: Digests = (None, None)  # of the dictionaries that it was trained with

    @property
    def num_weights(self) -> int:
        """Tied weights count once."""
        tensors = all_read(self.state).values()
        numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
        return sum({(one.data_ptr(), one.shape): one.numel() for one in numbers}.values())

    def describe(self) -> str:
        """Its size in words."""
        weights = f"{self.num_weights / 1e6:.1f} million weights"
        if not isinstance(self.config, TransformerConfig):
            return weights
        encoder, decoder = self.config.encoder, self.config.decoder
        layers = f"{encoder.num_layers}+{decoder.num_layers} layers"
        return f"{layers}, {decoder.dim} wide, {decoder.vocab_size:,} types, {weights}"

    def network(self, dtype: torch.dtype, device: torch.device) -> TrainedNetwork:
        """The inference network, in eval mode. Raises UserError where weights do not fit."""
        network, weights = self.opened(dtype, device)
        weights.read()
        return network

    def opened(self, dtype: torch.dtype, device: torch.device) -> _Opened[TrainedNetwork]:
        """As `network`, but its weights are still to be read."""
        with located(self.path):
            network, weights = NETWORKS.get(self.kind).opened(
                self.config, self.state, device=device, dtype=dtype
            )
        return network.eval().requires_grad_(False), weights

    def check_dictionaries(self, source: Symbols, target: Symbols) -> None:
        """Raises UserError where the model was trained with other dictionaries."""
        if isinstance(self.config, TransformerConfig):
            stacks = (self.config.encoder, self.config.decoder)
            for side, stack, own in zip(_SIDES, stacks, (source, target), strict=True):
                require(
                    stack.vocab_size == len(own),
                    f"{self.path}: the checkpoint has {stack.vocab_size} {side} symbols and the "
                    f"{side} dictionary {len(own)}; give the dictionaries it was trained with.",
                )
        check_digests(self.path, self.digests, source, target)

    def only_if(self, condition: bool, engine: str, what: str) -> None:
        """Raises UserError unless the condition holds: the engine cannot express `what`."""
        require(
            condition,
            f"{self.path}: {engine} cannot express {what}; use fairseq or this project for it.",
        )

    def until(self, exit_layer: int) -> Model:
        """Without the decoder layers after an exit. Raises UserError where it has no such layer."""
        num_layers = self.config.decoder.num_layers
        require(
            1 <= exit_layer <= num_layers,
            f"{self.path}: there is no exit after layer {exit_layer} of its {num_layers} decoder "
            f"layers; give an --exit-layer from 1 to {num_layers}.",
        )
        parts = parts_of(self.state).items()
        kept = LazyState({n: part for n, part in parts if layer_number("decoder", n) < exit_layer})
        decoder = replace(self.config.decoder, num_layers=exit_layer)
        return replace(self, state=kept, config=replace(self.config, decoder=decoder))


def check_digests(path: Path, recorded: Digests, source: Symbols, target: Symbols) -> None:
    """Raises UserError where a file was made with dictionaries of other content."""
    for side, digest, own in zip(_SIDES, recorded, (source, target), strict=True):
        require(
            digest in (None, own.digest),
            f"{path}: was made with another {side} dictionary, of other symbols or in another "
            "order; give the data folder whose dictionaries it was made with.",
        )


def layer_number(side: str, name: str) -> int:
    """The layer that a weight belongs to, from 0; -1 if it is in no layer of that side."""
    match = re.match(rf"{side}\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1
