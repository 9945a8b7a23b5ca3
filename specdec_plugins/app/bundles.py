"""Settings from what a user gave, and what a bundle or a folder's files say about the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_plugins.app.settings import EXACT, Settings
from specdec_plugins.decoding.drafters import needs_of
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import (
    BIGRAMS,
    CODES,
    BundleSettings,
    default_bundle,
    is_bundle,
    read_bundle,
)

VERIFIER, DRAFTER = "verifier.pt", "drafter.pt"  # usual names of checkpoints in a folder
_SPECULATION = (*EXACT, "block_size", "schedule", "schedule_options")

# What None says no more about than silence does.
_AS_THE_BUNDLE_SAYS = {
    *("data", "source_lang", "target_lang", "verifier", "drafter_checkpoint", "bigrams"),
    "block_size",
}


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Settings of these fields; a bundle in `data` (default: the bundled one) gives the others.

    Raises UserError where the bundle or a value is at fault.
    """
    given = {k: v for k, v in given.items() if v is not None or k not in _AS_THE_BUNDLE_SAYS}
    folder = given.pop("data", None)
    if folder is None:
        require(
            not (given.get("verifier") or given.get("drafter_checkpoint")),
            "a checkpoint was named without its dictionaries; give their folder, too.",
        )
        folder = str(default_bundle())
    defaults = _defaults(Path(folder), given) if is_bundle(folder) else {}
    return Settings(str(folder), **{**defaults, **given})


def _defaults(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """All that the bundle says and the user did not."""
    bundle = read_bundle(folder)
    for side in ("source_lang", "target_lang"):
        require(
            given.get(side, getattr(bundle, side)) == getattr(bundle, side),
            f"{folder}: translates from {bundle.source_lang} to {bundle.target_lang}; omit the "
            "languages.",
        )
    return {
        "source_lang": bundle.source_lang,
        "target_lang": bundle.target_lang,
        "verifier": str(folder / bundle.verifier.weights),
        **_drafting(folder, bundle, given),
        **_raw_text(folder, bundle, given),
        **_tuned(bundle, given),
    }


def _drafting(folder: Path, bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    drafter = bundle.drafter
    if drafter is None:
        plain = "drafter" not in given and "drafter_checkpoint" not in given
        return {"strategy": "AR"} if plain else {}
    if given.get("drafter", drafter.name) != drafter.name:
        return {}
    defaults: dict[str, Any] = {"drafter": drafter.name, "drafter_options": drafter.options}
    if drafter.network is not None and needs_of(drafter.name).network is not None:
        defaults["drafter_checkpoint"] = str(folder / drafter.network.weights)
    if drafter.bigrams is not None:
        defaults["bigrams"] = str(folder / drafter.bigrams)
    return defaults


def _raw_text(folder: Path, bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    if "remove_bpe" in given:  # which is about input that is BPE text
        return {}
    defaults = dict(bundle.text)
    if "bpe" in given or defaults.get("bpe") is None:
        defaults.pop("bpe", None)
        defaults.pop("bpe_codes", None)
    else:
        defaults["bpe_codes"] = str(folder / defaults["bpe_codes"])
    in_force = {**defaults, **given}
    if in_force.get("tokenizer") is None and in_force.get("bpe") is None:
        return {}  # lines are tokens, and there is no text to write in lower case
    return defaults


def _tuned(bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults = dict(bundle.defaults)
    if given.get("strategy", "specdec") != "specdec":
        return {k: v for k, v in defaults.items() if k not in _SPECULATION}
    if "rule" in given:
        return {k: v for k, v in defaults.items() if k not in EXACT}
    return defaults


def folder_settings(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for a folder without bundle.json: what is `given`, and files of usual names.

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
