"""Bundles for tests: the captions pair, and small random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.formats.bundle import Contents, write_bundle
from specdec_plugins.formats.models import read_model

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "data" / "models" / "en-de-small"
CAPTIONS = ROOT / "benchmarks" / "models" / "captions.en-de"
# Run first in a process, it makes every import of fairseq fail, as where it is not installed.
WITHOUT_FAIRSEQ = """
import sys
class RefuseFairseq:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fairseq":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, RefuseFairseq())
"""
LINES = ["Two dogs run across the grass.", "", "A man in a red shirt is climbing a wall."]


def captions(folder: Path, **changes: Any) -> Path:
    """The captions pair as a bundle in that folder."""
    contents: dict[str, Any] = {
        "verifier": read_model(CAPTIONS / "verifier.pt"),
        "drafter_name": "block",
        "drafter": read_model(CAPTIONS / "drafter.pt"),
        "codes": CAPTIONS / "bpe.codes",
        "text": {"tokenizer": "moses"},
        "card": "# Captions\n",
    }
    write_bundle(Contents(CAPTIONS, "en", "de", **{**contents, **changes}), folder)
    return folder


def assert_same(model: Model, other: Model) -> None:
    """With the same configuration and weights."""
    assert model.config == other.config
    assert model.state.keys() == other.state.keys()
    assert all(torch.equal(tensor, other.state[name]) for name, tensor in model.state.items())
