"""Checkpoints of trained heads into the network that drafts with them."""

from __future__ import annotations

from pathlib import Path

import torch

from specdec_plugins.adapters.fairseq_checkpoint import Settings
from specdec_plugins.adapters.safe_load import load_checkpoint
from specdec_plugins.decoding.networks.medusa import MedusaHeads, heads_of
from specdec_plugins.errors import UserError

_WEIGHTS = {"blocks.weight", "blocks.bias"}
_CPU = torch.device("cpu")


def load_medusa_heads(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device = _CPU
) -> MedusaHeads:
    """The heads of a checkpoint that was trained with `--arch medusa_heads`, in eval mode.

    Raises UserError where the file is no such checkpoint.
    """
    checkpoint = load_checkpoint(path)
    arch, state = Settings(checkpoint, Path(path)).arch, checkpoint["model"]
    if arch != "medusa_heads" or state.keys() != _WEIGHTS:
        raise UserError(
            f"{path}: these are no heads but a model of arch {arch}; give a checkpoint that was "
            "trained with --arch medusa_heads."
        )
    weight, bias = (state[f"blocks.{kind}"] for kind in ("weight", "bias"))
    return heads_of(weight.to(device, dtype), bias.to(device, dtype))
