"""`specdec convert`: convert models into a bundle, and bundles for fairseq or other engines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import MISSING, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from specdec_plugins.app.defaults import check_folder, make_settings, settings_from_files
from specdec_plugins.app.loading import read_words
from specdec_plugins.app.settings import DRAFTER, DTYPES, RAW_TEXT, VERIFIER, Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.corpus.cli import CommandLine, Option, flags_of, removed_from
from specdec_plugins.corpus.resume import sha256
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.errors import read_text, require
from specdec_plugins.formats.bundle import (
    CODES,
    PRETRAINED,
    BundleSettings,
    Contents,
    Defaults,
    is_bundle,
    read_bundle,
    write_bundle,
)
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.eight_bits import fits_8_bits
from specdec_plugins.formats.exports import export_ctranslate2, export_marian
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.models import (
    check_direction,
    dictionaries_of,
    read_model,
    read_model_of,
    to_checkpoint,
)
from specdec_plugins.formats.output import check_output, new_folder
from specdec_plugins.formats.pretrained.config import is_pretrained
from specdec_plugins.formats.text import load_codes

STORED = {**DTYPES, "int8": torch.int8}  # dtypes of weights in a bundle

_CARD = """\
# {source} to {target}

| | |
|---|---|
{rows}

    specdec translate FOLDER --input-path raw.{source} --output-path raw.{target}

The training data of these models, their licences, quality and limits were not recorded when this
bundle was made. Describe them here before you pass the bundle on.
"""


def _to_bundle(args: SimpleNamespace) -> None:
    text, languages, sides, verifier = _verifier(args)
    name, drafter = args.drafter or ("block" if args.drafter_checkpoint else None), None
    if args.drafter_checkpoint is not None:
        drafter = read_model(args.drafter_checkpoint)
        check_direction(args.drafter_checkpoint, drafter.languages, languages)
        drafter.check_dictionaries(*sides)
    if args.bpe_codes is not None:
        load_codes(args.bpe_codes)
    card = args.card and read_text(args.card, "the model card", "name another file")
    given = {name: getattr(args, name) for name in Defaults.__annotations__}
    contents = Contents(
        *(Path(args.data), *languages, verifier, name, drafter, args.drafter_options),
        codes=args.bpe_codes and Path(args.bpe_codes),
        text=text,
        defaults={name: value for name, value in given.items() if value is not None},
        card=card or _default_readme(*languages, verifier, name, drafter),
    )
    dtype = STORED[args.dtype or "float16"]
    if args.dtype is None and (text["tokenizer"] == PRETRAINED or is_bundle(args.data)):
        table = verifier.state["encoder.embed_tokens.weight"]
        dtype = torch.int8 if fits_8_bits(table[:1024]) else table.dtype
    write_bundle(contents, args.output, dtype, args.force, check=_load)


# Text settings, languages, dictionaries, and the model itself
_Verifier = tuple[dict[str, Any], tuple[str, str], tuple[Dictionary, Dictionary], Model]


def _verifier(args: SimpleNamespace) -> _Verifier:
    if args.verifier is None and (is_bundle(args.data) or is_pretrained(args.data)):
        return _described(args)
    check_folder(args.data)
    if args.verifier is None:  # a folder of fairseq's files with their usual names
        found = settings_from_files(Path(args.data), {})
        for name in ("verifier", "drafter_checkpoint", "bpe_codes"):
            setattr(args, name, getattr(args, name) or found.get(name))
    require(args.verifier is not None, "give the verifier's checkpoint with --AR-path.")
    if args.tokenizer is not None:
        args.bpe_codes = _codes(Path(args.data), args.bpe_codes)
    both = dictionaries_of(args.data, (args.source_lang, args.target_lang), args.verifier)
    verifier = read_model_of(Transformer, args.verifier, both.source, both.target)
    text = {"tokenizer": args.tokenizer, **{n: True for n in RAW_TEXT if getattr(args, n)}}
    return text, (both.source_lang, both.target_lang), (both.source, both.target), verifier


def _codes(data: Path, given: str | None) -> str | None:
    """The BPE codes by which the text of a data folder was split, which it may hold."""
    own = data / CODES
    if not own.is_file():
        return given
    require(
        given is None or sha256(Path(given)) == sha256(own),
        f"--bpe-codes {given}: differ from {own}, by which the text was split; omit the flag.",
    )
    return str(own)


def _described(args: SimpleNamespace) -> _Verifier:
    """The verifier of a folder that describes it: a transformers model, or a bundle, whose settings
    replace flags; its drafter is left out.
    """
    folder, has_bundle = Path(args.data), is_bundle(args.data)
    names = ("data", *_LANGUAGES, *(() if has_bundle else ("bpe_codes",)))
    named = {name: getattr(args, name) for name in names if getattr(args, name)}
    words = read_words(make_settings({**named, "strategy": "AR"}))
    sides = (words.dictionaries.source, words.dictionaries.target)
    languages = (words.codec.source_lang or "", words.codec.target_lang or "")
    if not has_bundle:
        return {"tokenizer": PRETRAINED}, languages, sides, words.read_model()
    bundle = read_bundle(folder)
    if codes := bundle.text.get("bpe_codes"):
        args.bpe_codes = str(folder / codes)
    for name in ("max_len_a", "max_len_b"):
        if getattr(args, name) is None:
            setattr(args, name, bundle.defaults.get(name))
    return dict(bundle.text), languages, sides, read_model(folder / bundle.verifier.weights)


def _load(bundle: Path) -> None:
    """Load the new bundle; raises UserError if it cannot decode, with drafts if it has any."""
    drafts = {"strategy": "specdec"} if read_bundle(bundle).drafter else {}
    load_translator(make_settings({"data": str(bundle), "device": "cpu", **drafts}))


def _default_readme(
    source: str, target: str, verifier: Model, drafter_name: str | None, drafter: Model | None
) -> str:
    """A model card with the facts that the files contain."""
    source, target = source or "any", target or "any"
    rows = [f"| verifier | {verifier.describe()} |"]
    if drafter_name is not None:
        of = f", {drafter.describe()}" if drafter else ""
        rows.append(f"| drafter | {drafter_name}{of} |")
    return _CARD.format(source=source, target=target, rows="\n".join(rows))


def _direction(folder: Path, bundle: BundleSettings) -> tuple[str, str]:
    """A bundle's languages. Raises UserError if no other engine can read its dictionaries."""
    require(
        bundle.text.get("tokenizer") != PRETRAINED,
        f"{folder}: was made from a transformers model; convert that model with the other engine's "
        "own converter.",
    )
    return bundle.source_lang, bundle.target_lang


def _to_fairseq(args: SimpleNamespace) -> None:
    """Write files under the names that `defaults.settings_from_files` looks for."""
    source = args.source
    bundle = read_bundle(source)
    languages = _direction(source, bundle)
    parts, drafter = {VERIFIER: bundle.verifier}, bundle.drafter
    files = {CODES: bundle.text.get("bpe_codes")}
    files |= {f"dict.{lang}.txt": f"dict.{lang}.txt" for lang in languages}
    if drafter is not None and drafter.network is not None:
        parts[DRAFTER] = drafter.network
    with new_folder(args.output, VERIFIER, args.force) as made:
        for name, part in parts.items():
            checkpoint = to_checkpoint(read_model(source / part.weights), *languages)
            save_checkpoint(checkpoint, made / name)
        for name, file in files.items():
            if file is not None:
                shutil.copyfile(source / file, made / name)


def _to_marian(args: SimpleNamespace) -> None:
    verifier, dictionaries, text = _read_source(args)
    export_marian(verifier, dictionaries, args.output, args.force, text)


def _to_ctranslate2(args: SimpleNamespace) -> None:
    verifier, dictionaries, _ = _read_source(args)
    export_ctranslate2(verifier, dictionaries, args.output, args.quantization, args.force)


def _read_source(args: SimpleNamespace) -> tuple[Model, Dictionaries, dict[str, Any] | None]:
    """The verifier, its dictionaries, and how a bundle's text is prepared."""
    source, text = args.source, None
    if is_bundle(source):
        for name in ("data", *_LANGUAGES):
            told = f"--{name.replace('_', '-')}: the bundle {source} has its own; omit it."
            require(getattr(args, name) is None, told)
        bundle = read_bundle(source)
        dictionaries = load_dictionaries(source, *_direction(source, bundle))
        text = dict(bundle.text)
        if text.get("bpe_codes") is not None:
            text["bpe_codes"] = source / text["bpe_codes"]
        source = source / bundle.verifier.weights
    else:
        check_folder(source)
        require(args.data is not None, f"{source}: not a bundle; add --data with dict.<lang>.txt.")
        asked = (args.source_lang, args.target_lang)
        dictionaries = dictionaries_of(args.data, asked, source)
    verifier = read_model_of(Transformer, source, dictionaries.source, dictionaries.target)
    return verifier, dictionaries, text


def _convert(convert: Callable[[SimpleNamespace], None], args: SimpleNamespace) -> None:
    names = ("source", "data", "verifier", "drafter_checkpoint", "bpe_codes", "card")
    inputs = [getattr(args, name, None) for name in names]
    check_output(args.output, "--output", inputs=inputs, folder=True)
    for name in ("source", "data"):
        if (given := getattr(args, name, None)) is not None:
            setattr(args, name, type(given)(local_model(given)))
    convert(args)
    size = sum(path.stat().st_size for path in args.output.iterdir())
    sys.stderr.write(f"specdec convert: wrote {args.output}, {size / 1e6:.1f} MB\n")


_LANGUAGES = ("source_lang", "target_lang")
_DEFAULTS = {**dict.fromkeys(RAW_TEXT, False), "tokenizer": "moses", "drafter_options": {}}


def _settings(*names: str) -> list[Option]:
    """Flags of settings, which are None, or their usual value, if they are not given."""
    found = flags_of(Settings, only=names)
    return [replace(one, default=_DEFAULTS.get(one.name), optional=True) for one in found]


def _command(
    to: str, told: str, convert: Callable[[SimpleNamespace], None], *flags: Option
) -> CommandLine:
    shared = (
        Option(MISSING, "new folder", name="output", type=Path),
        Option(False, "replace what is there", name="force", type=bool),
    )
    work, stopped = partial(_convert, convert), "interrupted; nothing was written."
    return CommandLine(
        *(f"specdec convert {to}", work, [*flags, *shared], told),
        interrupted=stopped,
        removed=removed_from(Settings),
    )


_SOURCE = Option(MISSING, "a bundle, or a checkpoint", name="source", type=Path, positional=True)
_OF_VERIFIER = (
    _SOURCE,
    Option(None, "for a checkpoint: folder with dict.<lang>.txt", name="data"),
    *_settings(*_LANGUAGES),
)
BUNDLE = _command(
    "bundle",
    "Convert fairseq checkpoints or a transformers model into a bundle.",
    _to_bundle,
    Option(MISSING, "folder with dict.<lang>.txt, a transformers model, or a bundle (its verifier)",
           name="data", positional=True),
    *_settings(
        *("verifier", "drafter_checkpoint", "drafter", "drafter_options", *_LANGUAGES),
        *(*Defaults.__annotations__, *RAW_TEXT, "tokenizer", "bpe_codes"),
    ),
    Option(None, "the largest batch in which drafts pay, for the schedule few_rows (default: 1)",
           name="few_rows", type=int, least=0),
    Option(None,
        "of stored weights (default: float16; bundles and transformers models keep theirs); int8: "
        "large matrices in 8 bits with a factor for each row, from which every precision decodes",
           name="dtype", choices=tuple(STORED)),
    Option(None, "Markdown about the models; becomes README.md", name="card", type=Path),
)  # fmt: skip
FAIRSEQ = _command(
    "fairseq",
    "Convert a bundle into fairseq checkpoints, with dictionaries and codes.",
    _to_fairseq,
    replace(_SOURCE, help="a bundle"),
)
MARIAN = _command(
    "marian",
    "Convert a verifier into a MarianMT model for transformers.",
    _to_marian,
    *_OF_VERIFIER,
)
CTRANSLATE2 = _command(
    "ctranslate2",
    "Convert a verifier into a CTranslate2 model.",
    _to_ctranslate2,
    *_OF_VERIFIER,
    Option(None, "of weights on disk (default: float32)", name="quantization"),
)
