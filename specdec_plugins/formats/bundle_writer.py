"""Writing bundles: models, dictionaries and codes into a folder that needs nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def new_folder(folder: str | Path, marker: str, force: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the given place when the block ends without an error.

    marker: a file that every folder of this kind holds. Raises UserError where the place is taken
    (unless, with `force`, by a folder of this kind) or cannot be written to.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; name a folder.")
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found and not force:
        raise UserError(f"{folder}: is there already; name another place, or add --force.")
    if found and (folder / marker not in found or any(path.is_dir() for path in found)):
        raise UserError(
            f"{folder}: holds no {marker} or other folders, so this program did not write it; name "
            "another place."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            made = Path(scratch) / "new"
            made.mkdir()
            yield made
            _put_in_place(made, folder)
    except OSError as error:
        name = error.filename or folder
        raise UserError(f"{name}: {error.strerror or error}; nothing was written.") from error


def _put_in_place(made: Path, folder: Path) -> None:
    """Exchange a folder for what is there; where that fails, what was there is there again."""
    old = made.with_name("old")
    try:
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    except BaseException:
        # Beside the new folder it would be deleted. A link that was moved may lead nowhere.
        if os.path.lexists(old) and not folder.exists():
            old.rename(folder)
        raise


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
