"""The block drafter that a training begins with, from its verifier, and the checkpoint it ends in.

It reads the verifier's frozen encoder and, where the verifier has one table for both sides, the
frozen embeddings. If the verifier's output projection has a table of its own, that is the drafter's
table, frozen, too. Its layers start as the verifier's first and last if those are post-norm.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    StackConfig,
    Transformer,
    TransformerConfig,
)
from specdec_plugins.decoding.networks.fairseq_names import stored_state
from specdec_plugins.decoding.networks.layers import LayerStack
from specdec_plugins.decoding.networks.trained import Model, State
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import is_bundle, read_bundle
from specdec_plugins.formats.checkpoints import untrained
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.indexed import Sentences
from specdec_plugins.formats.models import DIGESTS, flags_of, read_model

NUM_LAYERS = 2


def new_drafter(verifier: Model, block_size: int, seed: int) -> BlockDrafter:
    """The drafter before its first update, with gradients for all that is not the verifier's.

    Raises UserError where the verifier is of a kind that no such drafter can read.
    """
    network = verifier.network(torch.float32, torch.device("cpu"))
    require(
        isinstance(network, Transformer),
        f"{verifier.path}: expected a Transformer that translates; found {verifier.arch}",
    )
    assert isinstance(network, Transformer)
    with torch.random.fork_rng(devices=[]):  # modules take no generator
        torch.default_generator.manual_seed(seed)
        drafter = BlockDrafter(drafter_config(network.config, block_size))
        _initialise(drafter.decoder.layers)
        _copy(network, drafter)
    drafter.encoder.requires_grad_(False)  # with the table, if it is shared
    if _has_output_table(network.config):
        drafter.decoder.tokens.requires_grad_(False)
    return drafter


def _has_output_table(config: TransformerConfig) -> bool:
    """True if the output projection's weights are not embeddings, of T5 1.1, MADLAD and others."""
    return bool(config.decoder.switches) and not config.tie_output


def drafter_config(config: TransformerConfig, block_size: int) -> BlockConfig:
    """The shape of the drafter for a verifier of that configuration.

    Raises UserError where there is no such drafter.
    """
    theirs, width = config.decoder, config.output_dim
    require(
        config.decoder.positions != "none",
        "the model has no positions, so a block drafter cannot read it; train one in fairseq",
    )
    has_table = _has_output_table(config)
    is_tied = config.tie_output or has_table
    decoder = StackConfig(
        num_layers=NUM_LAYERS,
        dim=theirs.dim,
        ffn_dim=theirs.ffn_dim,
        # T5's heads need not divide its width.
        num_heads=theirs.num_heads if theirs.dim % theirs.num_heads == 0 else gcd(theirs.dim, 8),
        vocab_size=theirs.vocab_size,
        max_positions=theirs.max_positions,
        positions="learned",
    )
    shape = {name: value for name, value in vars(config).items() if name != "output_bias"}
    shape |= {"decoder": decoder, "tie_output": is_tied}
    shape["share_embeddings"] = config.share_embeddings and not has_table
    return BlockConfig(
        **shape,
        block_size=block_size,
        copy_source=config.encoder.dim == theirs.dim and not has_table,
        scale_decoder=not theirs.switches,
        cached_prefix=True,
        sequential_head=2 * width if is_tied else 0,
        head_attention=decoder.num_heads if is_tied else 0,
    )


def _initialise(layers: LayerStack) -> None:
    """As fairseq initialises fresh layers."""
    for name, part in layers.named_modules():
        if isinstance(part, nn.Linear):
            gain = 2**-0.5 if "qkv" in name or "query" in name or "key_value" in name else 1.0
            nn.init.xavier_uniform_(part.weight, gain)
            nn.init.zeros_(part.bias)


def _copy(verifier: Transformer, drafter: BlockDrafter) -> None:
    drafter.encoder.load_state_dict(verifier.encoder.state_dict())
    mine, theirs = drafter.decoder, verifier.decoder
    if not verifier.config.decoder.normalize_before:
        chosen = sorted({0, len(theirs.layers) - 1})
        for layer, index in zip(mine.layers, chosen, strict=False):
            layer.load_state_dict(theirs.layers[index].state_dict())
    with torch.no_grad():
        if (places := theirs.embedding.positions) is not None:
            mine.positions.weight.copy_(places.weight)
        if not drafter.config.share_embeddings:
            table = theirs.output if _has_output_table(verifier.config) else theirs.embedding.tokens
            mine.tokens.weight.copy_(table.weight)
        if theirs.embedding.positions is None:  # as large as what they are added to
            mine.positions.weight.normal_(std=float(mine.tokens.weight.std()))
        if not drafter.config.tie_output:
            mine.output.weight.copy_(theirs.output.weight)
        if mine.head is not None:  # at first it changes nothing
            nn.init.zeros_(mine.head.out.weight)
            nn.init.zeros_(mine.head.out.bias)


def go_on_from(path: Path, drafter: BlockDrafter) -> None:
    """Take over what an earlier drafter, in a bundle or a checkpoint, has learnt.

    Raises UserError where it holds no drafter of the same network.
    """
    found = _read(path)
    learnt = {name for name, weight in drafter.named_parameters() if weight.requires_grad}
    state = drafter.state_dict()
    for name in learnt:
        mine, theirs = list(state[name].shape), list(found.get(name, torch.empty(0)).shape)
        require(
            mine == theirs,
            f"--from {path}: its {name} is {theirs if name in found else 'missing'}, but this "
            f"drafter's is {mine}; give one that was trained for a verifier of these sizes, or "
            "leave --from out",
        )
    drafter.load_state_dict({**state, **{name: found[name] for name in learnt}})


def _read(path: Path) -> State:
    """The weights of a drafter in a bundle or a checkpoint."""
    part = read_bundle(path).drafter if is_bundle(path) else None
    file = path / part.network.weights if part and part.network else path
    return read_model(file).network(torch.float32, torch.device("cpu")).state_dict()


def checkpoint_of(drafter: BlockDrafter, learnt: State, verifier: Model) -> dict[str, Any]:
    """A checkpoint of the drafter with these weights, under the names of fairseq's.

    What is frozen is the verifier's, as that has stored it: training in 16 bits rounds it.
    """
    whole = {name: weight.float().cpu() for name, weight in drafter.state_dict().items()}
    state: dict[str, Tensor] = stored_state({**whole, **learnt})
    theirs = verifier.state
    frozen = {name for name in theirs if name.startswith("encoder.")}
    if drafter.config.share_embeddings:
        frozen |= {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    state |= {name: theirs[name].float() for name in frozen & state.keys()}
    model = Model(verifier.path, "block", "block_fast", drafter.config, state)
    settings = {**flags_of(model), "arch": "block_fast", DIGESTS: list(verifier.digests)}
    return untrained(Namespace(**settings), state)


_PAIRS = 50_000_000  # of tokens to align, in 3.6 GB of memory: 100,000 sentences of 22 tokens
_ITERATIONS = 4  # of IBM model 1
_TYPES, _LEAST = 80, 0.002  # most target types of a source type, and their smallest t
_TENSORS = tuple(f"decoder.shortlist.{name}" for name in ("common", "types", "starts"))
_COMMON = 500  # frequent target types that every sentence may draft


def new_shortlist(data: Path, start: Path | None) -> State:
    """The tensors of a shortlist for a training text, and all that the drafter in `start` lists:
    that may have been trained on more.
    """
    found, earlier = aligned_shortlist(data), _read(start) if start else {}
    name = _TENSORS[-1]  # one more than source types
    is_alike = name in earlier and len(earlier[name]) == len(found[name])
    return joined(found, earlier) if is_alike else found


def joined(first: State, second: State) -> State:
    """What either of two shortlists for the same vocabularies holds."""
    both = [[each[name].long() for name in _TENSORS] for each in (first, second)]
    sources = torch.arange(len(both[0][2]))
    rows = [sources[:-1].repeat_interleave(starts.diff()) for _, _, starts in both]
    entries = torch.stack([torch.cat(rows), torch.cat([types for _, types, _ in both])])
    row, types = entries.unique(dim=1)
    common = torch.cat([common for common, _, _ in both]).unique()
    tensors = (common, types, torch.searchsorted(row.contiguous(), sources))
    return {name: tensor.int() for name, tensor in zip(_TENSORS, tensors, strict=True)}


def aligned_shortlist(data: Path) -> State:
    """The tensors of a shortlist, as a drafter's checkpoint has them, from a training text."""
    both = load_dictionaries(data)
    stem = data / f"train.{both.source_lang}-{both.target_lang}"
    sides = [Sentences(f"{stem}.{language}") for language in (both.source_lang, both.target_lang)]
    pairs = numpy.cumsum(sides[0].sizes.astype(numpy.int64) * sides[1].sizes)
    number = max(1, int(numpy.searchsorted(pairs, _PAIRS, "right")))
    sources, targets = ([side[i].tolist() for i in range(number)] for side in sides)
    first, second, t = likely_types(sources, targets, _ITERATIONS)
    rank = numpy.arange(len(t)) - numpy.searchsorted(first, first)
    kept = (rank < _TYPES) & (t >= _LEAST)
    counts = numpy.bincount(numpy.concatenate(targets))
    common = numpy.argsort(-counts, kind="stable")[:_COMMON]
    starts = numpy.searchsorted(first[kept], numpy.arange(len(both.source) + 1))
    arrays = (common[counts[common] > 0], second[kept], starts)
    tensors = zip(_TENSORS, map(torch.from_numpy, arrays), strict=True)
    return {name: tensor.int() for name, tensor in tensors}


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
        firsts.append(numpy.tile(numpy.asarray(source, numpy.int32), len(target)))
        seconds.append(numpy.repeat(numpy.asarray(target, numpy.int32), len(source)))
        own = numpy.arange(places, places + len(target), dtype=numpy.int32)
        positions.append(numpy.repeat(own, len(source)))
        places += len(target)
    width, position = 1 + max(map(max, targets)), numpy.concatenate(positions)
    both = numpy.concatenate(firsts).astype(numpy.int64) * width + numpy.concatenate(seconds)
    del firsts, seconds, positions
    keys, pair = numpy.unique(both, return_inverse=True)
    t: NDArray[numpy.float64] = numpy.ones(len(keys))
    for _ in range(iterations):
        share = t[pair]
        share /= numpy.bincount(position, share)[position]
        t = numpy.bincount(pair, share).astype(numpy.float64)
        t /= numpy.bincount(keys // width, t)[keys // width]
    order = numpy.lexsort((-t, keys // width))
    return keys[order] // width, keys[order] % width, t[order]
