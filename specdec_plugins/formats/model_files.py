"""Files of models, whatever their format: fairseq's checkpoints, and weights in a bundle."""

from __future__ import annotations

from pathlib import Path

import torch

from specdec_plugins.decoding.networks import BlockDrafter, MedusaHeads, Transformer
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bundle import WEIGHTS_SUFFIX, read_weights
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary
from specdec_plugins.formats.fairseq_checkpoint import read_checkpoint
from specdec_plugins.formats.model import BLOCK, HEADS, VERIFIER, Model

_CPU = torch.device("cpu")


def read_model(path: str | Path) -> Model:
    """The model of a file. Raises UserError where it is missing, damaged or of another kind."""
    if Path(path).suffix == WEIGHTS_SUFFIX:
        return read_weights(path)
    return read_checkpoint(path)


def read_verifier(path: str | Path, dictionaries: Dictionaries) -> Model:
    """A stock Transformer that fits these dictionaries; raises UserError for anything else."""
    model = _autoregressive(path)
    model.check_dictionaries(dictionaries.source, dictionaries.target)
    return model


def load_verifier(
    path: str | Path,
    source: Dictionary,
    target: Dictionary,
    *,
    exit_layer: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
) -> Transformer:
    """The network of any stock fairseq Transformer, in eval mode.

    With `exit_layer` its decoder ends after so many layers, as if it had no others. Raises
    UserError where the file is no such model, uses an option that the network does not have,
    was trained with other dictionaries, or has no such layer.
    """
    model = _autoregressive(path)
    if exit_layer is not None:
        model = model.until(exit_layer)
    model.check_dictionaries(source, target)
    network = model.network(dtype, device)
    assert isinstance(network, Transformer)
    return network


def load_block_drafter(
    path: str | Path,
    source: Dictionary,
    target: Dictionary,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
) -> BlockDrafter:
    """The network of a drafter that was trained with `--arch block`, in eval mode.

    Raises UserError as `load_verifier` does.
    """
    model = read_model(path)
    if model.kind != BLOCK:
        raise UserError(
            f"{path}: this is no block drafter but a model of arch {model.arch}; "
            "give a checkpoint that was trained with --arch block."
        )
    model.check_dictionaries(source, target)
    network = model.network(dtype, device)
    assert isinstance(network, BlockDrafter)
    return network


def load_medusa_heads(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device = _CPU
) -> MedusaHeads:
    """The heads of a checkpoint that was trained with `--arch medusa_heads`, in eval mode.

    Raises UserError where the file is no such checkpoint.
    """
    model = read_model(path)
    if model.kind != HEADS:
        raise UserError(
            f"{path}: these are no heads but a model of arch {model.arch}; give a checkpoint that "
            "was trained with --arch medusa_heads."
        )
    network = model.network(dtype, device)
    assert isinstance(network, MedusaHeads)
    return network


def _autoregressive(path: str | Path) -> Model:
    model = read_model(path)
    if model.kind != VERIFIER:
        kind = "a block drafter" if model.kind == BLOCK else "a set of heads"
        raise UserError(
            f"{path}: this is {kind} (arch {model.arch}); "
            "the verifier must be an autoregressive Transformer."
        )
    return model
