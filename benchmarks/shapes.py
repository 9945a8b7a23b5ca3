"""A trained pair made larger (`larger.py`), which shows what a pair of some size costs.

It decodes to the same tokens and accepts the same drafts, and every engine computes it like a
trained pair of its size. It translates no better, and its results say that it is grown.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.larger import Size, enlarged, stored
from benchmarks.pair import NOTE, Pair
from specdec_plugins.decoding.networks.trained import Model, State
from specdec_plugins.decoding.networks.transformer import Encoder, same_encoder
from specdec_plugins.errors import require
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


def grown_size(text: str) -> Size:
    """Parse `--grow LAYERSxWIDTHxTYPES`; both stacks are as deep. Raises UserError."""
    is_size = re.fullmatch(r"\d+x\d+x\d+", text) is not None
    require(is_size, f"--grow {text}: expected LAYERSxWIDTHxTYPES such as 6x512x32000.")
    layers, width, types = map(int, text.split("x"))
    return Size(layers, layers, width, types)


def grow(pair: Pair, size: Size, folder: Path, bits: int = 16) -> None:
    """Write the pair at that size as a bundle, in float32.

    With 16 `bits` its matrices are rounded to 16-bit numbers, as in published models; with 32 they
    are not rounded. The encoder of its drafter becomes as deep as the verifier's, as it may be the
    same; a block drafter's decoder keeps its layers. Raises UserError if the folder is taken by
    something else, or a model cannot be made that large.
    """
    settings, origin, found = pair.settings, Path(pair.settings.data), pair.dictionaries()
    note = f"Grown from {pair.name}: the same output and acceptance, at the cost of {size}"
    note += f", in {bits} bits."

    def grown(model: Model, size: Size) -> Model:
        return stored(enlarged(model, size)) if bits == 16 else enlarged(model, size)

    small = read_model(pair.verifier)
    verifier = grown(small, size)
    contents = Contents(
        *(origin, found.source_lang, found.target_lang, verifier),
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
        drafter = grown(model, size)
        if _encode_alike(small, model):
            # Its positions may be a table where the verifier's are computed, and round differently.
            drafter = replace(drafter, state={**drafter.state, **_encoder(verifier, drafter.state)})
        contents = replace(contents, drafter=drafter)
    words = [made_up_dictionary(side, size.types) for side in (found.source, found.target)]
    with tempfile.TemporaryDirectory() as scratch:
        if settings.bigrams is not None:
            bigrams = read_bigrams(settings.bigrams, found.target).widened(size.types)
            contents = replace(contents, bigrams=Path(scratch) / BIGRAMS)
            write_bigrams(bigrams, Path(scratch) / BIGRAMS)
        write_pair(contents, words, folder, note=note)


def _encode_alike(first: Model, second: Model) -> bool:
    """True if the encoders are the same, so that one model can use the other's states."""
    device = torch.device("cpu")
    networks = [model.network(torch.float32, device) for model in (first, second)]
    one, other = (getattr(network, "encoder", None) for network in networks)
    return isinstance(one, Encoder) and isinstance(other, Encoder) and same_encoder(one, other)


def _encoder(model: Model, like: Mapping[str, Tensor]) -> State:
    """The model's encoder tensors, except those whose shape differs from `like`."""
    own = {name: tensor for name, tensor in model.state.items() if name.startswith("encoder.")}
    return {n: t for n, t in own.items() if n in like and like[n].shape == t.shape}


def write_pair(
    contents: Contents,
    words: Sequence[Dictionary],
    folder: Path,
    dtype: torch.dtype = torch.float32,
    note: str = "",
) -> None:
    """Write a bundle with these dictionaries (source, target); the note is for results."""
    with tempfile.TemporaryDirectory() as scratch, new_folder(folder, SETTINGS, True) as made:
        for language, side in zip((contents.source_lang, contents.target_lang), words, strict=True):
            symbols = side.symbols[len(Dictionary()) :]
            text = "".join(f"{symbol} 1\n" for symbol in symbols)
            (Path(scratch) / f"dict.{language}.txt").write_text(text, encoding="utf-8")
        write_bundle(replace(contents, data=Path(scratch)), made, dtype)
        if note:
            (made / NOTE).write_text(f"{note}\n", encoding="utf-8")


def made_up_dictionary(words: Dictionary, num_types: int) -> Dictionary:
    """The words, filled up to `num_types` with made-up ones, as fairseq fills dictionaries up."""
    names = (f"madeupword{number:05d}" for number in count())
    known = set(words.symbols)
    new = islice((name for name in names if name not in known), num_types - len(words))
    return Dictionary([*words.symbols[len(Dictionary()) :], *new])
