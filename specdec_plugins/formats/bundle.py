"""Bundles: a folder with all that translating one language pair needs; docs/bundles.md.

Weights lie in safetensors under fairseq's parameter names, settings in a JSON that people can read.
Nothing is unpickled, and fairseq is not needed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdec_plugins.decoding.networks.trained import NETWORKS, Model, State
from specdec_plugins.errors import UserError, located
from specdec_plugins.formats.output import new_folder

FORMAT, VERSION = "specdec-bundle", 1
SETTINGS = "bundle.json"
CARD, CODES, BIGRAMS = "README.md", "bpe.codes", "bigrams.safetensors"
WEIGHTS_SUFFIX = ".safetensors"
ALIASES = "aliases"  # metadata of a file of weights: names of equal tensors, stored once

_TEXT: dict[str, tuple[type, ...]] = {
    "tokenizer": (str, type(None)),
    "bpe": (str, type(None)),
    "bpe_codes": (str, type(None)),
    "lowercase": (bool,),
    "dash_splits": (bool,),
    "strip_diacritics": (bool,),
}
DEFAULTS: dict[str, tuple[type, ...]] = {
    "block_size": (int,),
    "beta": (int,),
    "tau": (int, float),
    "max_len_a": (int, float),
    "max_len_b": (int,),
    "schedule": (str,),
    "schedule_options": (dict,),
}


@dataclass(frozen=True)
class Part:
    """A trained network of a bundle."""

    weights: str  # file in the folder
    kind: str  # a name in NETWORKS
    architecture: Mapping[str, Any] = field(default_factory=dict)  # of its configuration


@dataclass(frozen=True)
class DraftingPart:
    """How a bundle drafts; a drafter without weights of its own has no network."""

    name: str  # registered name
    options: Mapping[str, Any] = field(default_factory=dict)
    network: Part | None = None
    bigrams: str | None = None  # file in the folder: how well drafted tokens go together


@dataclass(frozen=True)
class BundleSettings:
    """What `bundle.json` says."""

    source_lang: str
    target_lang: str
    verifier: Part
    drafter: DraftingPart | None = None
    text: Mapping[str, Any] = field(default_factory=dict)  # arguments of `TextPipeline`
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of decoding, keys of DEFAULTS

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        record |= {"source_lang": self.source_lang, "target_lang": self.target_lang}
        record |= {"text": dict(self.text), "verifier": vars(self.verifier), "drafter": None}
        if self.drafter is not None:
            network = {} if self.drafter.network is None else vars(self.drafter.network)
            options = dict(self.drafter.options)
            record["drafter"] = {"name": self.drafter.name, "options": options, **network}
            if self.drafter.bigrams is not None:
                record["drafter"]["bigrams"] = self.drafter.bigrams
        return {**record, "defaults": dict(self.defaults)}


def is_bundle(folder: str | Path) -> bool:
    return (Path(folder) / SETTINGS).is_file()


def default_bundle() -> Path:
    """The pair of models that comes with this project, in an installed package or a clone.

    Raises UserError where there is none.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "bundles" / "en-de", package.parent / "data" / "models" / "en-de"):
        if is_bundle(folder):
            return folder
    raise UserError(
        "no pair of models is bundled with this copy of the project; name a folder that holds one, "
        "which scripts/convert.sh bundle writes."
    )


def read_bundle(folder: str | Path) -> BundleSettings:
    """The settings of a bundle; weights are not opened.

    Raises UserError, naming the file and the entry, where they are missing or malformed.
    """
    path = Path(folder) / SETTINGS
    record = _Entry(_read_json(path), str(path))
    if record.get("format", str) != FORMAT:
        raise UserError(f"{path}: expected the format {FORMAT!r}; this is no bundle.")
    version = record.get("version", int)
    if version != VERSION:
        raise UserError(
            f"{path}: is of format version {version}, and this program reads version {VERSION}; "
            "use the program that wrote it, or convert its models again."
        )
    text, defaults = (record.table(*table) for table in (("text", _TEXT), ("defaults", DEFAULTS)))
    if text.get("bpe_codes"):
        text["bpe_codes"] = _plain_name(text["bpe_codes"], path)
    return BundleSettings(
        source_lang=record.get("source_lang", str),
        target_lang=record.get("target_lang", str),
        verifier=_read_part(record.entry("verifier"), path),
        drafter=_read_drafter(record, path),
        text=text,
        defaults=defaults,
    )


def read_weights(path: str | Path) -> Model:
    """The model of a file of weights in a bundle.

    Raises UserError where the file is missing, damaged, or not named by the bundle's settings.
    """
    path = Path(path)
    if not is_bundle(path.parent):
        raise UserError(
            f"{path}: weights are read together with the {SETTINGS} of their bundle, and there is "
            "none beside them; give a file inside a bundle, or a fairseq checkpoint."
        )
    settings = read_bundle(path.parent)
    drafter = settings.drafter and settings.drafter.network
    part = next((p for p in (settings.verifier, drafter) if p and p.weights == path.name), None)
    if part is None:
        raise UserError(f"{path}: {path.parent / SETTINGS} names no weights {path.name}.")
    state = _read_tensors(path)
    try:
        with located(path):
            config = NETWORKS.get(part.kind).described(dict(part.architecture), state)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path.parent / SETTINGS}: the architecture of {path.name} is not one of kind "
            f"{part.kind} ({error}); convert the model again."
        ) from error
    return Model(path, part.kind, part.kind, config, state)


def _read_tensors(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as file:
            state: State = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            _check_finite(state)
            return {**state, **_aliases((file.metadata() or {}).get(ALIASES, "{}"), state)}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path}: damaged or no safetensors file ({error}); copy it again.") from (
            error
        )


def _check_finite(state: State) -> None:
    """Raises ValueError where a weight is no number: it was none that wrote a bundle."""
    for name, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} holds values that are no numbers")


def _aliases(text: str, state: State) -> State:
    """Stored tensors under their other names; raises ValueError where the text is damaged."""
    aliases = json.loads(text)
    if not isinstance(aliases, dict):
        raise ValueError(f"its {ALIASES} are no JSON object")
    for name, stored in aliases.items():
        if not isinstance(stored, str) or stored not in state:
            raise ValueError(f"{name} stands for {stored!r}, which it does not hold")
    return {name: state[stored] for name, stored in aliases.items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error}); give the folder of a bundle."
        ) from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); restore the file.") from error
    if not isinstance(record, dict):
        raise UserError(f"{path}: expected a JSON object; restore the file.")
    return record


@dataclass(frozen=True)
class _Entry:
    """An object of the JSON whose entries are checked as they are read."""

    record: Mapping[str, Any]
    where: str

    def get(self, name: str, *types: type) -> Any:
        value = self.record.get(name)
        # To Python, True is an int.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join("nothing" if t is type(None) else t.__name__ for t in types)
            raise UserError(
                f"{self.where}: {name!r} must be {expected}, not {value!r}; correct the file."
            )
        return value

    def entry(self, name: str) -> _Entry:
        return _Entry(self.get(name, dict), f"{self.where}, {name}")

    def table(self, name: str, types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
        """An object with none but these entries, all of them optional."""
        entry = self.entry(name)
        unknown = sorted(entry.record.keys() - types.keys())
        if unknown:
            raise UserError(
                f"{entry.where}: there is no entry {unknown[0]!r}; choose of: {', '.join(types)}."
            )
        return {key: entry.get(key, *types[key]) for key in entry.record}


def _read_part(entry: _Entry, path: Path) -> Part:
    kind = entry.get("kind", str)
    with located(entry.where):
        NETWORKS.get(kind)
    weights = _plain_name(entry.get("weights", str), path)
    return Part(weights, kind, entry.get("architecture", dict))


def _read_drafter(record: _Entry, path: Path) -> DraftingPart | None:
    if record.record.get("drafter") is None:
        return None
    entry = record.entry("drafter")
    network = _read_part(entry, path) if "weights" in entry.record else None
    bigrams = entry.get("bigrams", str, type(None))
    bigrams = None if bigrams is None else _plain_name(bigrams, path)
    return DraftingPart(entry.get("name", str), entry.get("options", dict), network, bigrams)


def _plain_name(name: str, path: Path) -> str:
    """A bundle is self-contained: what it names lies in its folder."""
    if Path(name).name != name or name in ("", ".."):
        raise UserError(f"{path}: {name!r} must be the name of a file in the same folder.")
    return name


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
