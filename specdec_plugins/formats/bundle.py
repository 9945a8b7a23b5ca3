"""Bundles: a folder with everything needed to translate one language pair; docs/bundles.md.

Weights are in safetensors under fairseq's parameter names, settings in readable JSON. Nothing is
unpickled, and fairseq is not needed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NewType, TypedDict, TypeVar, get_args, get_type_hints, is_typeddict

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_plugins.decoding.networks.reading import LazyState, Parts
from specdec_plugins.decoding.networks.trained import NETWORKS, Digests, Model
from specdec_plugins.decoding.registry import misfit
from specdec_plugins.errors import UserError, located, read_object, require, warn_once
from specdec_plugins.formats.checkpoints import not_finite
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.eight_bits import in_8_bits, without_codes
from specdec_plugins.formats.output import is_file_name, new_folder
from specdec_plugins.formats.pretrained.config import CONFIG, GENERATION
from specdec_plugins.formats.pretrained.tokenizer import FILES
from specdec_plugins.formats.tensors import StoredTensors

FORMAT = "specdec-bundle"
# 1: a drafter shares no tensors with its verifier; 3: the tokenizer is a transformers model's;
# 4: matrices in 8 bits
VERSIONS = (1, 2, 3, 4)
PRETRAINED = "pretrained"  # the name of such a tokenizer
SETTINGS = "bundle.json"
DEFAULT = "en-de"  # the bundle that comes with this project
CARD, CODES = "README.md", "bpe.codes"
WEIGHTS_SUFFIX = ".safetensors"
# Metadata of a weights file: names of tensors that are stored in it under another name, or in the
# verifier's file. It is one entry, because the order of several would vary.
ALIASES, OF_VERIFIER = "aliases", "verifier:"

FileName = NewType("FileName", str)  # of a file in the bundle's own folder
_Record = TypeVar("_Record")
_Content = tuple[torch.Size, bytes]  # of a tensor: its shape, and a digest of its numbers


class Text(TypedDict, total=False):
    """Arguments of `TextPipeline`."""

    tokenizer: str | None
    bpe: str | None
    bpe_codes: FileName | None
    lowercase: bool
    dash_splits: bool
    strip_diacritics: bool


class Defaults(TypedDict, total=False):
    """Decoding settings that a bundle may give."""

    strategy: str  # AR: it has a drafter that does not pay
    block_size: int
    beta: int
    tau: float
    max_len_a: float
    max_len_b: int
    schedule: str
    schedule_options: Mapping[str, Any]
    few_rows: int  # the largest batch in which its drafts pay, for the schedule of that name


@dataclass(frozen=True)
class Part:
    """A trained network of a bundle."""

    weights: FileName
    kind: str  # a name in NETWORKS
    architecture: Mapping[str, Any]  # the fields of its configuration

    def __post_init__(self) -> None:
        NETWORKS.get(self.kind)


@dataclass(frozen=True)
class DraftingPart:
    """How a bundle drafts; a drafter without weights of its own has no network."""

    name: str  # registered name
    options: Mapping[str, Any]
    network: Part | None = None  # its entries are beside these in the file


@dataclass(frozen=True)
class BundleSettings:
    """The contents of `bundle.json`."""

    source_lang: str  # empty = one of several must be chosen
    target_lang: str
    text: Mapping[str, Any]  # as in Text
    verifier: Part
    drafter: DraftingPart | None
    defaults: Mapping[str, Any]  # as in Defaults

    @property
    def files(self) -> list[str]:
        """The names of the files that it mentions: weights and codes."""
        drafter, codes = self.drafter, self.text.get("bpe_codes")
        drafted = drafter and drafter.network and drafter.network.weights
        found = [self.verifier.weights, codes, drafted]
        return [name for name in found if name]

    def to_dict(self, dtype: torch.dtype) -> dict[str, Any]:
        """For JSON. dtype: of the stored weights."""
        record = asdict(self)
        if (drafter := record["drafter"]) is not None:
            network = drafter.pop("network") or {}
            record["drafter"] = {**drafter, **network}
        version = 3 if self.text.get("tokenizer") == PRETRAINED else 2
        version = 4 if dtype is torch.int8 else version
        return {"format": FORMAT, "version": version, **record}


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a transformers model's folder that define its symbols."""
    paths = (folder / name for name in (CONFIG, GENERATION, *FILES))
    return [path for path in paths if path.exists()]


def is_bundle(folder: str | Path) -> bool:
    return (Path(folder) / SETTINGS).is_file()


def default_bundle() -> Path:
    """The pair of models that comes with this project, in an installed package or a clone.

    Raises UserError where there is none.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "bundles" / DEFAULT, package.parent / "data" / "models" / DEFAULT):
        if is_bundle(folder):
            return folder
    raise UserError(
        "no pair of models is bundled with this copy of the project; give the folder of a bundle, "
        "as specdec convert bundle writes it."
    )


def read_bundle(folder: str | Path) -> BundleSettings:
    """The settings of a bundle; weights are not opened.

    Raises UserError, naming the file and the entry, where they are missing or malformed.
    """
    path = Path(folder) / SETTINGS
    record = read_object(path, "the settings", "give the folder of a bundle")
    if record.get("format") != FORMAT:
        raise UserError(f"{path}: expected the format {FORMAT!r}; this is not a bundle.")
    if (version := record.get("version")) not in VERSIONS:
        raise UserError(
            f"{path}: has format version {version}, but this program reads versions 1 to "
            f"{VERSIONS[-1]}; use the program that wrote it, or convert its models again."
        )

    def entry(kind: type[_Record], name: str, **known: Any) -> _Record:
        return _read(kind, record.get(name), f"{path}, {name}", **known)

    found, drafter = record.get("drafter"), None
    if found is not None:
        network = entry(Part, "drafter") if isinstance(found, dict) and "weights" in found else None
        drafter = _without_bigrams(entry(DraftingPart, "drafter", network=network), found, path)
    return _read(
        BundleSettings,
        record,
        str(path),
        text=entry(Text, "text"),
        verifier=entry(Part, "verifier"),
        drafter=drafter,
        defaults=entry(Defaults, "defaults"),
    )


def _without_bigrams(drafter: DraftingPart, record: Mapping[str, Any], path: Path) -> DraftingPart:
    """The drafter of a bundle that may be of an earlier version, which drafted by bigrams."""
    weight = "bigram_weight"
    if "bigrams" in record or weight in drafter.options:
        warn_once(f"{path}: its bigrams are not used any more, so fewer drafts are accepted.")
    options = {name: value for name, value in drafter.options.items() if name != weight}
    return replace(drafter, options=options)


def _read(kind: type[_Record], record: Any, where: str, **known: Any) -> _Record:
    """A JSON object as a dataclass, or as a TypedDict, which allows no other entries.

    known: fields that are not read from it. Raises UserError naming the entry that does not fit.
    """
    require(
        isinstance(record, dict), f"{where}: must be an object, not {record!r}; correct the file."
    )
    hints = get_type_hints(kind)
    names = list(record) if is_typeddict(kind) else [n for n in hints if n not in known]
    if unknown := [name for name in names if name not in hints]:
        raise UserError(
            f"{where}: there is no entry {unknown[0]!r}; choose one of: {', '.join(hints)}."
        )
    values = {name: record.get(name) for name in names}
    for name, value in values.items():
        wanted = misfit(hints[name], value)
        told = f"{where}: {name!r} must be {wanted}, not {value!r}; correct the file."
        require(wanted is None, told)
        if value is not None and FileName in (hints[name], *get_args(hints[name])):
            # A bundle is self-contained.
            told = f"{where}: {value!r} must be the name of a file in the same folder."
            require(is_file_name(value), told)
    with located(where):
        return kind(**values, **known)


def read_weights(path: str | Path) -> Model:
    """The model in a weights file of a bundle.

    Raises UserError if the file is missing, damaged, or not named by the bundle's settings.
    """
    path = Path(path)
    if not is_bundle(path.parent):
        raise UserError(
            f"{path}: weights are read together with the {SETTINGS} of their bundle, but there is "
            "none beside them; give a file inside a bundle, or a fairseq checkpoint."
        )
    settings = read_bundle(path.parent)
    drafter = settings.drafter and settings.drafter.network
    part = next((p for p in (settings.verifier, drafter) if p and p.weights == path.name), None)
    if part is None:
        raise UserError(f"{path}: {path.parent / SETTINGS} does not name {path.name}.")
    state = _read_tensors(path, path.parent / settings.verifier.weights)
    try:
        with located(path):
            config = NETWORKS.get(part.kind).described(dict(part.architecture), state)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path.parent / SETTINGS}: the architecture of {path.name} does not fit the kind "
            f"{part.kind} ({error}); convert the model again."
        ) from error
    return Model(path, part.kind, part.kind, config, state, digests=_digests(path.parent, settings))


def _digests(folder: Path, settings: BundleSettings) -> Digests:
    if settings.text.get("tokenizer") == PRETRAINED:
        return None, None
    return load_dictionaries(folder, settings.source_lang, settings.target_lang).digests


def _read_tensors(path: Path, verifier: Path) -> LazyState:
    """All tensors of a file, including those that are stored in the verifier's file."""
    stored = _stored_tensors(path, verifier)
    with located(path):
        return LazyState(without_codes(stored))


def _stored_tensors(path: Path, verifier: Path) -> Parts:
    """As they are stored."""
    stored = StoredTensors([path], finite=True)
    state = stored.parts()
    text, known = stored.metadata.get(ALIASES, "{}"), dict(state)
    if path != verifier and OF_VERIFIER in text:
        others = _stored_tensors(verifier, verifier)
        known |= {OF_VERIFIER + name: part for name, part in others.items()}
    try:
        return {**state, **{name: known[other] for name, other in json.loads(text).items()}}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: is damaged, or the verifier beside it is another one (its {ALIASES}: "
            f"{type(error).__name__} {error}); copy the bundle again."
        ) from error


@dataclass(frozen=True)
class Contents:
    """Everything that goes into a bundle."""

    data: Path  # folder with dict.<lang>.txt of both languages, or with a tokenizer of its own
    source_lang: str  # empty = the model has several, and none is the default
    target_lang: str
    verifier: Model
    drafter_name: str | None = None  # registered name
    drafter: Model | None = None  # None = a drafter without weights of its own, or no drafter
    drafter_options: Mapping[str, Any] = field(default_factory=dict)
    codes: Path | None = None  # of BPE
    text: Mapping[str, Any] = field(default_factory=dict)  # tokenizer, lowercase, ...
    defaults: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""  # Markdown

    def symbols(self) -> list[Path]:
        if self.text.get("tokenizer") != PRETRAINED:
            return [self.data / f"dict.{lang}.txt" for lang in (self.source_lang, self.target_lang)]
        return tokenizer_files(self.data)


def write_bundle(
    contents: Contents,
    folder: Path,
    dtype: torch.dtype = torch.float16,
    force: bool = False,
    check: Callable[[Path], object] | None = None,
) -> None:
    """Write a bundle atomically.

    dtype: of the stored weights; int8 stores matrices in 8 bits (`eight_bits`). check: called with
    the finished bundle before it is moved into place. Raises UserError if the folder is taken
    (without `force`, or by something else), a file cannot be read or written, a weight is too large
    for the dtype, or `check` raises one.
    """
    languages = (contents.source_lang, contents.target_lang)
    files = {path.name: path for path in contents.symbols()}
    text = {**contents.text, "bpe": None, "bpe_codes": None}
    if contents.codes is not None:
        files[CODES] = contents.codes
        text |= {"bpe": "subword_nmt", "bpe_codes": CODES}
    with new_folder(folder, SETTINGS, force) as made:
        verifier, known = _write_part(contents.verifier, made, "verifier", dtype, {})
        drafter = network = None
        if contents.drafter is not None:
            known = {content: OF_VERIFIER + name for content, name in known.items()}
            network, _ = _write_part(contents.drafter, made, "drafter", dtype, known)
        if contents.drafter_name is not None:
            drafter = DraftingPart(contents.drafter_name, contents.drafter_options, network)
        for name, path in files.items():
            shutil.copyfile(path, made / name)
        settings = BundleSettings(*languages, text, verifier, drafter, contents.defaults)
        record = json.dumps(settings.to_dict(dtype), indent=1, ensure_ascii=False)
        (made / SETTINGS).write_text(record + "\n", encoding="utf-8")
        (made / CARD).write_text(contents.card, encoding="utf-8")
        if check is not None:
            check(made)


def _write_part(
    model: Model, folder: Path, name: str, dtype: torch.dtype, known: Mapping[_Content, str]
) -> tuple[Part, dict[_Content, str]]:
    """Store each distinct tensor once, except those that the verifier's file holds (`known`).

    Returns the entry of the settings, and the name of each stored tensor by its content.
    """
    state = _rounded(model, dtype)
    first: dict[_Content, str] = {}
    aliases = {}
    for tensor_name in sorted(state):
        content = _content(state[tensor_name])
        owner = known.get(content) or first.setdefault(content, tensor_name)
        if owner != tensor_name:
            aliases[tensor_name] = owner
    weights = FileName(name + WEIGHTS_SUFFIX)
    stored = {stored_name: state[stored_name].clone() for stored_name in first.values()}
    save_file(stored, folder / weights, {ALIASES: json.dumps(aliases)})
    (folder / weights).chmod(0o644)
    return Part(weights, model.kind, asdict(model.config)), first


def _content(tensor: Tensor) -> _Content:
    numbers = tensor.flatten().view(torch.uint8).numpy().tobytes()
    return tensor.shape, hashlib.sha256(numbers).digest()


def _rounded(model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    if (name := not_finite(model.state)) is not None:
        raise UserError(
            f"{model.path}: {name} holds NaN or infinity, so its training had diverged; give an "
            "earlier checkpoint."
        )
    if dtype is torch.int8:
        rounded = in_8_bits(model.state)
    else:
        rounded = {
            name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
            for name, tensor in model.state.items()
        }
    if (name := not_finite(rounded)) is not None:
        raise UserError(
            f"{model.path}: {name} holds values that {str(dtype).removeprefix('torch.')} cannot "
            "represent; store it with --dtype float32."
        )
    return rounded
