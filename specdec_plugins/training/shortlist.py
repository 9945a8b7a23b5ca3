"""The target types that each source type makes likely, which a drafter with a head may draft."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.indexed import Sentences

_SENTENCES = 30_000  # to align
_ITERATIONS = 4  # of IBM model 1
_TYPES, _LEAST = 40, 0.005  # most target types of a source type, and their smallest t
_COMMON = 200  # frequent target types that every sentence may draft


def aligned_shortlist(data: Path) -> dict[str, Tensor]:
    """The tensors of a shortlist, as a drafter's checkpoint has them, from a training text."""
    both = load_dictionaries(data)
    stem = data / f"train.{both.source_lang}-{both.target_lang}"
    sources, targets = (
        [ids.tolist() for ids in islice(Sentences(f"{stem}.{language}"), _SENTENCES)]
        for language in (both.source_lang, both.target_lang)
    )
    first, second, t = likely_types(sources, targets, _ITERATIONS)
    rank = numpy.arange(len(t)) - numpy.searchsorted(first, first)
    kept = (rank < _TYPES) & (t >= _LEAST)
    counts = numpy.bincount(numpy.concatenate(targets))
    common = numpy.argsort(-counts, kind="stable")[:_COMMON]
    tensors = {
        "common": common[counts[common] > 0],
        "types": second[kept],
        "starts": numpy.searchsorted(first[kept], numpy.arange(len(both.source) + 1)),
    }
    return {f"decoder.shortlist.{n}": torch.from_numpy(v).int() for n, v in tensors.items()}


def likely_types(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], iterations: int
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.float64]]:
    """Source types, target types and t(target | source), sorted by source, likeliest first.

    IBM model 1 (Brown et al. 1993): each target token translates one source token of its sentence,
    at any position; t is the share of a source type's expected translations.
    """
    places, firsts, seconds = 0, [], []
    positions = []
    for source, target in zip(sources, targets, strict=True):
        firsts.append(numpy.tile(numpy.asarray(source, numpy.int64), len(target)))
        seconds.append(numpy.repeat(numpy.asarray(target, numpy.int64), len(source)))
        positions.append(numpy.repeat(numpy.arange(places, places + len(target)), len(source)))
        places += len(target)
    width = 1 + max(map(max, targets))
    keys, pair = numpy.unique(
        numpy.concatenate(firsts) * width + numpy.concatenate(seconds), return_inverse=True
    )
    position = numpy.concatenate(positions)
    t: NDArray[numpy.float64] = numpy.ones(len(keys))
    for _ in range(iterations):
        share = t[pair]
        share /= numpy.bincount(position, share)[position]
        t = numpy.bincount(pair, share).astype(numpy.float64)
        t /= numpy.bincount(keys // width, t)[keys // width]
    order = numpy.lexsort((-t, keys // width))
    return keys[order] // width, keys[order] % width, t[order]
