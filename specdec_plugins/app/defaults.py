"""Settings of what the user gives; a bundle, or the files of a folder, provide the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_plugins.app.settings import DRAFTER, EXACT, VERIFIER, Settings, choose_device
from specdec_plugins.corpus.cli import flag_of
from specdec_plugins.decoding.drafters import needs_of
from specdec_plugins.decoding.networks import best_set
from specdec_plugins.decoding.requests import BeamParams
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import (
    CODES,
    PRETRAINED,
    BundleSettings,
    default_bundle,
    is_bundle,
    read_bundle,
)
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.pretrained.config import is_pretrained, read_config

NO_MODEL = (  # follows the name of a folder
    "not a model; give a bundle, a transformers folder (config.json, weights and tokenizer), its "
    f"ORG/NAME on the hub, or one with fairseq's {VERIFIER} and its dict.<lang>.txt."
)
_SPECULATION = (*EXACT, "block_size", "schedule", "schedule_options")
_AT_ONCE = 16  # sentences; more gain little
_DRAFTING = {*_SPECULATION, "drafter", "drafter_options", "drafter_checkpoint", "rule"}

# Fields whose None means the same as not given.
_AS_THE_BUNDLE_SAYS = {
    *("data", "source_lang", "target_lang", "verifier", "drafter_checkpoint", "block_size")
}


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Settings of these fields; a bundle in `data` (default: the bundled one) gives the others.

    Raises UserError for a bad bundle or value.
    """
    given = {k: v for k, v in given.items() if v is not None or k not in _AS_THE_BUNDLE_SAYS}
    if given.get("drafter", "") is None:
        for name in ("drafter_options", "block_size", "schedule", "schedule_options"):
            told = f"--drafter none drafts nothing; omit {flag_of(Settings, name)}."
            require(not given.get(name), told)
        given = {**given, "strategy": "AR"}
        del given["drafter"]
    if given.get("bpe_codes") is not None:
        given = {"bpe": "subword_nmt", **given}
    folder = given.pop("data", None)
    if folder is None:
        require(
            not (given.get("verifier") or given.get("drafter_checkpoint")),
            "a checkpoint was given without its dictionaries; give their folder, too.",
        )
        folder = default_bundle()
    folder = str(local_model(folder))
    check_folder(folder)
    if given.get("glossary") is not None:
        given = {"beam": BeamParams.size, **given}
    if (given.get("beam") or 1) > 1:
        given = {"strategy": "AR", **given}
    defaults: dict[str, Any] = {}
    if is_bundle(folder):
        defaults = _defaults(Path(folder), given)
    elif is_pretrained(folder):
        is_plain = not {"drafter", "drafter_checkpoint"} & given.keys()
        defaults = {"verifier": str(folder), **_of_pretrained(Path(folder), given)}
        defaults |= {"strategy": "AR"} if is_plain else {}
        defaults |= _together(defaults, given)
    elif not given.get("verifier") and (Path(folder) / VERIFIER).is_file():
        defaults = settings_from_files(Path(folder), given)
    return Settings(str(folder), **{**defaults, **given})


def check_folder(folder: str | Path) -> None:
    """Raises UserError for a model of CTranslate2, which this project writes and does not read."""
    is_theirs = (Path(folder) / "model.bin").is_file() and not is_pretrained(folder)
    require(
        not is_theirs or is_bundle(folder),
        f"{folder}: is a model of CTranslate2, which nothing else reads; give the bundle or the "
        "checkpoint that it was made from.",
    )


def _defaults(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The bundle's settings that the user did not give."""
    bundle = read_bundle(folder)
    is_own = bundle.text.get("tokenizer") == PRETRAINED  # which knows its languages itself
    for side in ("source_lang", "target_lang"):
        require(
            is_own or given.get(side, getattr(bundle, side)) == getattr(bundle, side),
            f"{folder}: translates from {bundle.source_lang} to {bundle.target_lang}; omit the "
            "languages.",
        )
    return {
        "source_lang": bundle.source_lang or None,
        "target_lang": bundle.target_lang or None,
        "verifier": str(folder / bundle.verifier.weights),
        **_drafting(folder, bundle, given),
        **(_of_pretrained(folder, given) if is_own else _raw_text(folder, bundle, given)),
        **(tuned := _tuned(bundle, given)),
        **_together(tuned, given),
    }


def _of_pretrained(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a transformers model's files that the user did not give.

    Raises UserError if the user sets tokenisation, which these files define.
    """
    for name in ("tokenizer", "bpe", "bpe_codes", "remove_bpe"):
        flag = "--" + name.replace("_", "-")
        require(
            name not in given or given[name] == PRETRAINED,
            f"{folder}: the model has a tokenizer of its own; omit {flag}.",
        )
    config = read_config(folder)
    generation = config.generation(range(config.decoder_vocab_size))
    found: dict[str, Any] = {"tokenizer": PRETRAINED, "min_len": generation.min_len or None}
    found["usual_search"] = (generation.length_penalty, generation.finishing)
    if (most := generation.max_len) is not None:
        # A summary may end at the limit; a translation that does is not whole.
        found |= {"max_len_b": most} if config.model_type == "bart" else {"usual_len": (0.0, most)}
    return found


def _drafting(folder: Path, bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    drafter = bundle.drafter
    if drafter is None:
        plain = "drafter" not in given and "drafter_checkpoint" not in given
        return {"strategy": "AR"} if plain else {}
    wanted = given.get("drafter", drafter.name)
    if wanted != drafter.name and needs_of(wanted).network != needs_of(drafter.name).network:
        return {}
    defaults: dict[str, Any] = {"drafter": wanted, "drafter_options": drafter.options}
    if drafter.network is not None and needs_of(drafter.name).network is not None:
        defaults["drafter_checkpoint"] = str(folder / drafter.network.weights)
    return defaults


def _raw_text(folder: Path, bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    if "remove_bpe" in given:  # the input is BPE text
        return {}
    defaults = dict(bundle.text)
    if "bpe" in given or defaults.get("bpe") is None:
        defaults.pop("bpe", None)
        defaults.pop("bpe_codes", None)
    elif defaults.get("bpe_codes") is not None:
        defaults["bpe_codes"] = str(folder / defaults["bpe_codes"])
    in_force = {**defaults, **given}
    if in_force.get("tokenizer") is None and in_force.get("bpe") is None:
        return {}  # lines are tokens, to which raw-text settings do not apply
    return defaults


def _tuned(bundle: BundleSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    defaults, (a, b) = dict(bundle.defaults), Settings.usual_len
    if {"max_len_a", "max_len_b"} & defaults.keys():
        defaults["usual_len"] = (defaults.pop("max_len_a", a), defaults.pop("max_len_b", b))
    measured = {"rows": defaults.pop("few_rows", 1)}
    if _DRAFTING & given.keys():  # whoever says how to draft wants drafts
        defaults.pop("strategy", None)
    on_cpu = choose_device(given.get("device")).type == "cpu"  # where few_rows was measured
    if on_cpu and not (_DRAFTING - {*EXACT, "rule"}) & given.keys():
        defaults.setdefault("schedule", "few_rows")
    if {**defaults, **given}.get("schedule") == "few_rows":
        defaults.setdefault("schedule_options", measured)
    if {**defaults, **given}.get("strategy", "specdec") != "specdec":
        return {k: v for k, v in defaults.items() if k not in _SPECULATION}
    if "rule" in given or given.get("beta") == EXACT["beta"]:
        return {k: v for k, v in defaults.items() if k not in EXACT}
    return defaults


def _together(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Several sentences at once where each is translated as alone, and nobody asks for drafts.

    The kernels give a sentence the same bits in any batch; drafts do not pay in one.
    """
    in_force = {"kernels": "native", "dtype": "float32", "beta": 1, **defaults, **given}
    alike = in_force["kernels"] == "native" and in_force["dtype"] in ("float32", "int8")
    may = alike and best_set() is not None and choose_device(given.get("device")).type == "cpu"
    asked = in_force["beta"] != 1 or _DRAFTING & given.keys()
    return {"batch": _AT_ONCE} if may and not asked else {}


def settings_from_files(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a folder without bundle.json: those `given`, and files with the usual names.

    Decoding is plain (AR) if neither the folder nor the user provides a drafter.
    """
    names = (VERIFIER, DRAFTER, CODES)
    here = {name: str(folder / name) for name in names if (folder / name).is_file()}
    found: dict[str, Any] = {}
    if VERIFIER in here:
        found["verifier"] = here[VERIFIER]
    if DRAFTER in here:
        found["drafter_checkpoint"] = here[DRAFTER]
    elif not {"drafter", "drafter_checkpoint"} & given.keys():
        found["strategy"] = "AR"
    codes = given.get("bpe_codes") or here.get(CODES)
    if codes and "remove_bpe" not in given:  # else the input is BPE text
        found |= {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": codes}
    return {**found, **given}
