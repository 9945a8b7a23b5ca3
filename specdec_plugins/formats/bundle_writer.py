"""Writing bundles: models, dictionaries and codes into a folder that needs nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_plugins.errors import UserError
from specdec_plugins.formats.bundle import (
    ALIASES,
    SETTINGS,
    WEIGHTS_SUFFIX,
    BundleSettings,
    DraftingPart,
    Part,
)
from specdec_plugins.formats.model import Model
from specdec_plugins.formats.output import new_folder

CARD, CODES, BIGRAMS = "README.md", "bpe.codes", "bigrams.safetensors"


@dataclass(frozen=True)
class Contents:
    """Everything that goes into a bundle."""

    dictionaries: Path  # folder with dict.<lang>.txt of both languages
    source_lang: str
    target_lang: str
    verifier: Model
    drafter_name: str | None = None  # registered name
    drafter: Model | None = None  # None = a drafter without weights of its own, or no drafter
    drafter_options: Mapping[str, Any] = field(default_factory=dict)
    bigrams: Path | None = None  # how well drafted tokens go together
    codes: Path | None = None  # of BPE
    text: Mapping[str, Any] = field(default_factory=dict)  # tokenizer, lowercase, ...
    defaults: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""  # Markdown


def write_bundle(
    contents: Contents,
    folder: Path,
    dtype: torch.dtype = torch.float16,
    force: bool = False,
    check: Callable[[Path], object] | None = None,
) -> None:
    """Write a bundle; nothing appears in its place before it is whole.

    dtype: of the stored weights. check: called with the finished bundle before it takes its place.
    Raises UserError where the folder is taken (without `force`, or by something else), a file
    cannot be read or written, a weight is too large for the dtype, or `check` raises one.
    """
    with new_folder(folder, SETTINGS, force) as temporary:
        verifier = _write_part(contents.verifier, temporary, "verifier", dtype)
        drafter = _write_drafter(contents, temporary, dtype)
        for language in (contents.source_lang, contents.target_lang):
            name = f"dict.{language}.txt"
            shutil.copyfile(contents.dictionaries / name, temporary / name)
        text = {**contents.text, "bpe": None, "bpe_codes": None}
        if contents.codes is not None:
            shutil.copyfile(contents.codes, temporary / CODES)
            text |= {"bpe": "subword_nmt", "bpe_codes": CODES}
        languages = (contents.source_lang, contents.target_lang)
        settings = BundleSettings(*languages, verifier, drafter, text, contents.defaults)
        record = json.dumps(settings.to_dict(), indent=1, ensure_ascii=False)
        (temporary / SETTINGS).write_text(record + "\n", encoding="utf-8")
        (temporary / CARD).write_text(contents.card, encoding="utf-8")
        if check is not None:
            check(temporary)


def _write_drafter(contents: Contents, folder: Path, dtype: torch.dtype) -> DraftingPart | None:
    """Its weights and its bigrams, as far as there are any; None without a drafter."""
    if contents.drafter_name is None:
        return None
    network = None
    if contents.drafter is not None:
        network = _write_part(contents.drafter, folder, "drafter", dtype)
    bigrams = None if contents.bigrams is None else BIGRAMS
    if contents.bigrams is not None:
        shutil.copyfile(contents.bigrams, folder / BIGRAMS)
    return DraftingPart(contents.drafter_name, contents.drafter_options, network, bigrams)


def _write_part(model: Model, folder: Path, name: str, dtype: torch.dtype) -> Part:
    stored, aliases = _without_duplicates(_rounded(model, dtype))
    weights = name + WEIGHTS_SUFFIX
    metadata = {ALIASES: json.dumps(aliases)}  # one entry: of several the order would vary
    save_file(stored, folder / weights, metadata)
    (folder / weights).chmod(0o644)
    return Part(weights, model.kind, model.architecture())


def _rounded(model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    rounded = {}
    for name, tensor in model.state.items():
        rounded[name] = tensor.to(dtype).contiguous()
        if not bool(torch.isfinite(rounded[name]).all()):
            raise UserError(
                f"{model.path}: {name} holds values that {str(dtype).removeprefix('torch.')} "
                "cannot; store it with --dtype float32."
            )
    return rounded


def _without_duplicates(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each content once, and for the other names which name it is stored under."""
    first: dict[tuple[torch.Size, bytes], str] = {}
    stored, aliases = {}, {}
    for name in sorted(state):
        content = state[name].flatten().view(torch.uint8).numpy().tobytes()
        key = (state[name].shape, hashlib.sha256(content).digest())
        if key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            stored[name] = state[name].clone()
    return stored, aliases
