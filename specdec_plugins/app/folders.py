"""A folder that says nothing about itself: files under their usual names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_plugins.formats.bundle import BIGRAMS, CODES

VERIFIER, DRAFTER = "verifier.pt", "drafter.pt"


def settings_of(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Settings` for the files that are there, those that were `given` among them.

    Plain decoding where neither the folder nor the user has a way to draft.
    """
    here = {name: str(folder / name) for name in (VERIFIER, DRAFTER, BIGRAMS, CODES)}
    here = {name: path for name, path in here.items() if Path(path).is_file()}
    found: dict[str, Any] = {}
    if VERIFIER in here:
        found["verifier"] = here[VERIFIER]
    if DRAFTER in here:
        found["drafter_checkpoint"] = here[DRAFTER]
        if BIGRAMS in here and given.get("drafter", "block") == "block":
            found["bigrams"] = here[BIGRAMS]
    elif not {"drafter", "drafter_checkpoint"} & given.keys():
        found["strategy"] = "AR"
    codes = given.get("bpe_codes") or here.get(CODES)
    if codes:
        found |= {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": codes}
    return {**found, **given}
