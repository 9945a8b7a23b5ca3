"""Bigrams on disk: safetensors, with tensors named after the fields of `Bigrams`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.errors import UserError
from specdec_plugins.formats.dictionaries import Dictionary

_NAMES = [f.name for f in fields(Bigrams)]
_DIGEST = "dictionary"  # of the metadata
_INTEGERS = ("starts", "tokens")


def count_bigrams(sentences: Iterable[Sequence[int]], dictionary: Dictionary) -> Bigrams:
    """Count the bigrams of target sentences, in the dictionary's ids, each ending in eos."""
    return Bigrams.count(sentences, len(dictionary), dictionary.special.start)


def write_bigrams(bigrams: Bigrams, path: Path, dictionary: Dictionary | None = None) -> None:
    """Probabilities are stored in half precision. Raises UserError if writing fails.

    dictionary: the one whose symbols they count; the file then records its content.
    """
    stored = {
        name: tensor if name in _INTEGERS else tensor.half()
        for name, tensor in ((name, getattr(bigrams, name)) for name in _NAMES)
    }
    try:
        save_file(stored, path, {_DIGEST: dictionary.digest} if dictionary else None)
        path.chmod(0o644)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be written ({error}).") from error


def read_bigrams(path: str | Path, dictionary: Dictionary) -> Bigrams:
    """Raises UserError where the file is missing, damaged, or counts another dictionary."""
    try:
        with safe_open(path, framework="pt") as file:
            digest = (file.metadata() or {}).get(_DIGEST, dictionary.digest)
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path}: cannot be read as bigrams ({error}); give a file that "
            "specdec convert bigrams has written."
        ) from error
    if sorted(stored) != sorted(_NAMES):
        raise UserError(
            f"{path}: not bigrams (it holds {', '.join(sorted(stored))}); give a file that "
            "specdec convert bigrams has written."
        )
    size = len(stored["frequencies"])
    if size != len(dictionary) or digest != dictionary.digest:
        told = (
            f"has {len(dictionary)}" if size != len(dictionary) else "has others, or another order"
        )
        raise UserError(
            f"{path}: counts {size} symbols, but the target dictionary {told}; count again with "
            "the models' own dictionary."
        )
    bigrams = Bigrams(
        **{name: t.int() if name in _INTEGERS else t.float() for name, t in stored.items()}
    )
    if not _is_sound(bigrams):
        raise UserError(f"{path}: damaged; count the bigrams again.")
    return bigrams


def _is_sound(bigrams: Bigrams) -> bool:
    """True if shapes, indices and values are valid; later code reads them without checks."""
    starts, tokens, size = bigrams.starts, bigrams.tokens, bigrams.vocab_size
    shapes = [tuple(t.shape) for t in (starts, tokens, bigrams.log_probs, bigrams.backoffs)]
    if shapes != [(size + 1,), (len(tokens),), (len(tokens),), (size,)]:
        return False
    if int(starts[0]) != 0 or int(starts[-1]) != len(tokens) or bool((starts.diff() < 0).any()):
        return False
    return bool(((tokens >= 0) & (tokens < size)).all()) and all(
        bool(torch.isfinite(t).all())
        for t in (bigrams.log_probs, bigrams.backoffs, bigrams.frequencies)
    )
