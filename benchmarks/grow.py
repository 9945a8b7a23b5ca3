"""A trained pair in a larger shape: the same words and the same acceptance at that shape's cost.

python -m benchmarks.grow PAIR --output FOLDER

What a large pair costs can be measured with random weights, but these accept nothing, and end
nowhere. A pair that was grown from a trained one (`larger.py`) decodes to the same tokens, with the
same drafts kept, and every engine computes it as it would compute a trained one of its size. It is
no better a translator for it, and its results say that it is grown.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.larger import Size, enlarged
from benchmarks.pair import NOTE, Pair
from specdec_plugins.errors import Parser, UserError, refuse
from specdec_plugins.formats.bigrams import read_bigrams, write_bigrams
from specdec_plugins.formats.bundle import (
    BIGRAMS,
    SETTINGS,
    Contents,
    is_bundle,
    read_bundle,
    write_bundle,
)
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_model
from specdec_plugins.formats.output import new_folder

_TEXT = ("tokenizer", "lowercase", "dash_splits", "strip_diacritics")


def grow(pair: Pair, size: Size, folder: Path, force: bool = False) -> None:
    """Write the pair at that size as a bundle, in float32.

    The encoder of its drafter becomes as deep as the verifier's, as it may be the same; a block
    drafter's decoder keeps its layers. Raises UserError where the folder is taken (without
    `force`), or a model cannot be made that large.
    """
    settings, origin, found = pair.settings, Path(pair.settings.data), pair.dictionaries()
    note = note_of(pair, size)
    contents = Contents(
        *(origin, found.source_lang, found.target_lang, enlarged(read_model(pair.verifier), size)),
        codes=Path(settings.bpe_codes) if settings.bpe_codes else None,
        text={name: getattr(settings, name) for name in _TEXT},
        defaults=read_bundle(origin).defaults if is_bundle(origin) else {},
        card=f"# {pair.name}, grown\n\n{note}\n",
    )
    if pair.drafter is not None:
        options = settings.drafter_options
        contents = replace(contents, drafter_name=pair.drafter, drafter_options=options)
    if pair.drafter is not None and settings.drafter_checkpoint is not None:
        model = read_model(settings.drafter_checkpoint)
        if model.config is not None:
            size = replace(size, decoder_layers=model.config.decoder.num_layers)
        contents = replace(contents, drafter=enlarged(model, size))
    words = [made_up_dictionary(side, size.types) for side in (found.source, found.target)]
    with tempfile.TemporaryDirectory() as scratch:
        if settings.bigrams is not None:
            bigrams = read_bigrams(settings.bigrams, len(found.target)).widened(size.types)
            contents = replace(contents, bigrams=Path(scratch) / BIGRAMS)
            write_bigrams(bigrams, Path(scratch) / BIGRAMS)
        write_pair(contents, words, folder, force, note)


def write_pair(
    contents: Contents,
    words: Sequence[Dictionary],
    folder: Path,
    force: bool = False,
    note: str = "",
) -> None:
    """A bundle in float32 with these dictionaries, source and target; the note is for results."""
    with tempfile.TemporaryDirectory() as scratch, new_folder(folder, SETTINGS, force) as made:
        for language, side in zip((contents.source_lang, contents.target_lang), words, strict=True):
            symbols = side.symbols[len(Dictionary().symbols) :]
            text = "".join(f"{symbol} 1\n" for symbol in symbols)
            (Path(scratch) / f"dict.{language}.txt").write_text(text, encoding="utf-8")
        write_bundle(replace(contents, dictionaries=Path(scratch)), made, torch.float32)
        if note:
            (made / NOTE).write_text(f"{note}\n", encoding="utf-8")


def note_of(pair: Pair, size: Size) -> str:
    """What every result of the grown pair says."""
    return f"Grown from {pair.name}: its words and its acceptance, at the cost of {size}."


def made_up_dictionary(words: Dictionary, num_types: int) -> Dictionary:
    """The words, and behind them as many that no text holds, as fairseq fills dictionaries up."""
    known = set(words.symbols)
    symbols, number = words.symbols[len(Dictionary()) :], 0
    while len(known) < num_types:
        symbol = f"madeupword{number:05d}"
        number += 1
        if symbol not in known:
            known.add(symbol)
            symbols.append(symbol)
    return Dictionary(symbols)


def size_of(text: str) -> Size:
    """LAYERSxWIDTHxTYPES, both stacks as deep. Raises UserError."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if not found:
        raise UserError(f"--grow {text}: expected LAYERSxWIDTHxTYPES such as 6x512x32000.")
    layers, width, types = (int(number) for number in found.groups())
    return Size(layers, layers, width, types)


def _layers(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected ENCODERxDECODER such as 6x6, not {text!r}")
    return int(found[1]), int(found[2])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 bad input or settings."""
    parser = Parser(
        prog="python -m benchmarks.grow",
        description="Write a trained pair larger: same words, same acceptance, that shape's cost.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("pair", metavar="PAIR", help="a bundle, or a folder with verifier.pt and drafter.pt")
    add("--output", metavar="FOLDER", type=Path, required=True, help="new bundle")
    add("--layers", type=_layers, default=(6, 6), metavar="ENCxDEC", help="default: 6x6")
    add("--width", type=int, default=512, metavar="N", help="default: 512")
    add("--vocabulary", type=int, default=32000, metavar="N", help="types (default: 32000)")
    add("--source-lang", "-s", metavar="LANG", help="default: from the names of the dictionaries")
    add("--target-lang", "-t", metavar="LANG", help="default: from the names of the dictionaries")
    add("--force", action="store_true", help="replace what is there")
    args = parser.parse_args(argv)
    try:
        pair = Pair.of(Path(args.pair), args.source_lang, args.target_lang)
        encoder_layers, decoder_layers = args.layers
        size = Size(encoder_layers, decoder_layers, args.width, args.vocabulary)
        grow(pair, size, args.output, args.force)
    except UserError as error:
        return refuse(parser.prog, error)
    print(note_of(pair, size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
