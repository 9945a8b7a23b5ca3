"""What some verifiers can do beyond `Verifier`; a drafter that needs it asks when it is built."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from specdec_plugins.decoding.interfaces import Prefix, SourceBatch
from specdec_plugins.decoding.networks.transformer import Encoder


@runtime_checkable
class SupportsEncoderOutput(Protocol):
    """A verifier whose encoding of the source a drafter may read instead of encoding again."""

    @property
    def encoder_dim(self) -> int:
        """Width D of the encoder's states."""
        ...

    def encoder_output(self) -> tuple[Tensor, Tensor]:
        """States [B, S, D] and padding [B, S] bool (True = padding) of the present rows."""
        ...

    def encodes_like(self, encoder: Encoder) -> bool:
        """True if that encoder's output would be the same."""
        ...


@runtime_checkable
class ReadsEncoderOutput(Protocol):
    """A model whose decoder can read what another one's encoder has made of the source."""

    @property
    def encoder_dim(self) -> int:
        """Width D of the states that its decoder reads."""
        ...

    def admit_encoded(self, source: SourceBatch, states: Tensor, padding_mask: Tensor) -> None:
        """`admit` without encoding: states [B, S, D] and padding [B, S] bool of the new rows."""
        ...


@runtime_checkable
class SupportsEarlyExit(Protocol):
    """A verifier whose first layers may run ahead of `score`, which goes on where they stopped."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        ...

    def run_ahead(self, prefix: Prefix, tokens: Tensor, exit_layer: int) -> Tensor:
        """Read one token a row with the first `exit_layer` layers: [B, V] logits of what follows.

        tokens: [B] int64, token ids. The first call of a round reads `prefix.last()`, each further
        one the drafted token behind the one before; all of a round with the same `exit_layer`.
        Keys, values and states are kept, and the next `score` must be given the draft that was
        read, or all but its last column: what it has in common with these calls is not computed
        again. Rows that have stopped may be fed any token.
        """
        ...


@runtime_checkable
class SupportsHidden(Protocol):
    """A verifier that gives its last states with its scores, for heads to read."""

    @property
    def hidden_dim(self) -> int:
        """Width D of a last state, as the output projection reads it."""
        ...

    def keep_hidden(self) -> None:
        """From now on `Scores.hidden` is there."""
        ...

    def project(self, states: Tensor) -> Tensor:
        """The output projection: logits [..., V] of states [..., D]."""
        ...
