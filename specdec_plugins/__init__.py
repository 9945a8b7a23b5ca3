"""Speculative decoding for encoder-decoder translation models, as a fairseq plugin.

Importing this package is cheap. If fairseq is loaded already, as under ``--user-dir`` and in
``train.py``, the import registers the tasks, models and criterions; otherwise call ``register()``.
``SpeculativeTranslator`` and ``__version__`` are here for users.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_plugins.app.translator import SpeculativeTranslator as SpeculativeTranslator

_REGISTERING_MODULES = (
    "specdec_plugins.criterions.glat_loss",
    "specdec_plugins.criterions.verifier_losses",
    "specdec_plugins.models.assistant_transformer",
    "specdec_plugins.models.block_drafter",
    "specdec_plugins.models.early_exit_transformer",
    "specdec_plugins.models.medusa_heads",
    "specdec_plugins.training.trainer",
    "specdec_plugins.tasks.translation_lev_modified",
)


def register() -> None:
    """Register tasks, models and criterions with fairseq, and let it read its own checkpoints.

    Imports fairseq if it is not loaded. Idempotent. fairseq's ``--user-dir`` imports only the
    packages ``tasks`` and ``models``, and neither if this package was imported before. So each
    module that registers something is imported here by name.
    """
    from specdec_plugins.formats.checkpoints import allow_fairseq_checkpoints

    allow_fairseq_checkpoints(between_workers=True)
    for name in _REGISTERING_MODULES:
        importlib.import_module(name)


def __getattr__(name: str) -> Any:
    """What users import from here, loaded when it is asked for: torch takes seconds to import."""
    if name == "SpeculativeTranslator":
        return importlib.import_module("specdec_plugins.app.translator").SpeculativeTranslator
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        try:
            return metadata.version("specdec")
        except metadata.PackageNotFoundError:
            return "unknown"  # it runs from a folder without installation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "fairseq" in sys.modules:
    register()
