"""Reads the weights of a transformers folder as our model: fairseq's names, rows in our order."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_plugins.decoding.networks import TransformerConfig
from specdec_plugins.decoding.networks.fairseq_names import stored_state
from specdec_plugins.decoding.networks.reading import (
    LazyState,
    Part,
    Parts,
    Unread,
    now,
    same_numbers,
    uninitialised,
)
from specdec_plugins.decoding.networks.trained import VERIFIER, Model
from specdec_plugins.decoding.networks.transformer import Transformer
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.dictionaries import Dictionary, ours
from specdec_plugins.formats.output import is_file_name
from specdec_plugins.formats.pretrained import t5
from specdec_plugins.formats.pretrained.config import PretrainedConfig
from specdec_plugins.formats.tensors import INDEX, PICKLED, SAFE, StoredTensors

_SHARED, _BIAS = "shared.weight", "final_logits_bias"
_TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
_OUTPUT = "decoder.output_projection"
_POSITIONS = tuple(f"{side}.embed_positions.weight" for side in ("encoder", "decoder"))
_NEVER = -1e4  # logit of a token that the model does not have; float16 can hold it

# Format marks of old files, and position tables that are computed anyway.
_IGNORED = re.compile(r"\.version$|\.embed_positions\.weights$")


def read_model(
    config: PretrainedConfig, source_order: Sequence[int], target_order: Sequence[int]
) -> Model:
    """The verifier in a folder; the orders map our rows to rows of the file's tables.

    If a row occurs twice in the target order, the first is a copy, which is never emitted. Raises
    UserError if the weights are missing, damaged or of another shape.
    """
    path, *shards = weight_files(config.folder)
    state = _own_names(StoredTensors(shards or [path]).parts(), config)
    _check(path, state, expected_shapes(config))
    source, target, output = (state.pop(name) for name in _TABLES)
    bias = now(state.pop(_BIAS))[0].float()[torch.tensor(target_order)]
    id_of = ours(target_order)
    bias[[index for index, theirs in enumerate(target_order) if id_of[theirs] != index]] = _NEVER
    shape = replace(
        config.network(len(source_order), len(target_order)),
        share_embeddings=list(source_order) == list(target_order) and same_numbers(source, target),
        tie_output=same_numbers(target, output),
        output_bias=bool(bias.any()),
    )
    state["decoder.embed_tokens.weight"] = _rows(target, target_order)
    state["encoder.embed_tokens.weight"] = (
        state["decoder.embed_tokens.weight"]
        if shape.share_embeddings
        else _rows(source, source_order)
    )
    state[f"{_OUTPUT}.weight"] = (
        state["decoder.embed_tokens.weight"] if shape.tie_output else _rows(output, target_order)
    )
    if shape.output_bias:
        state[f"{_OUTPUT}.bias"] = bias
    if shape.encoder.positions == "learned":
        for name in _POSITIONS:
            state[name] = pad(now(state[name]), (0, 0, _rows_before(config), 0))
    return Model(path, VERIFIER, config.model_type, shape, LazyState(state))


def _rows(table: Part, order: Sequence[int]) -> Part:
    if list(order) == list(range(table.shape[0])):
        return table
    return table.picked(order) if isinstance(table, Unread) else table[torch.tensor(order)]


def _own_names(stored: Parts, config: PretrainedConfig) -> Parts:
    """The state without prefix, with what files omit: names of tied tables, computed positions."""
    state = {n.removeprefix("model."): t for n, t in stored.items() if not _IGNORED.search(n)}
    if config.family.is_t5:
        state = t5.own_names(stored, config.fields)
    if config.family.is_t5 or config.fields["tie_word_embeddings"]:
        shared = config.fields.get("share_encoder_decoder_embeddings", True)
        group = (_SHARED, *_TABLES) if shared else _TABLES[1:]
        held = [state[name] for name in group if name in state]
        for name in group if held else ():
            state.setdefault(name, held[0])
    state.pop(_SHARED, None)
    state.setdefault(_BIAS, torch.zeros(1, config.decoder_vocab_size))
    if config.model_type == "marian":
        for name in _POSITIONS:
            shape = config.fields["max_position_embeddings"], config.fields["d_model"]
            state.setdefault(name, marian_positions(*shape))
    return state


def marian_positions(num_positions: int, dim: int) -> Tensor:
    """MarianMT's sinusoids, whose frequencies are not fairseq's: [num_positions, dim] float32.

    Vaswani et al. 2017, section 3.5, as written there, but all sines first, then the cosines.
    """
    places = np.arange(num_positions)[:, None]
    sines, cosines = (places / 10000 ** (2 * np.arange(n) / dim) for n in (-(-dim // 2), dim // 2))
    return torch.from_numpy(np.concatenate([np.sin(sines), np.cos(cosines)], 1)).float()


def expected_shapes(config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of everything that a file holds, under transformers' names without the prefix."""
    target = config.decoder_vocab_size
    shapes = stored_shapes(config.network(config.vocab_size, target))
    shapes["lm_head.weight"] = shapes.pop(f"{_OUTPUT}.weight")
    shapes[_BIAS] = (1, target)
    for name in shapes.keys() & {*_POSITIONS}:
        rows, dim = shapes[name]
        shapes[name] = (rows - _rows_before(config), dim)
    return shapes


def stored_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of a network's weights, under fairseq's names."""
    with uninitialised():  # takes no memory; numbers on the device "meta" import sympy, in a second
        state = stored_state(Transformer(config).state_dict())
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _rows_before(config: PretrainedConfig) -> int:
    """Rows of our tables of positions that the file's lack: ours begin after the padding id."""
    return Dictionary.pad + 1 - config.family.position_rows


def _check(path: Path, state: Parts, expected: dict[str, tuple[int, ...]]) -> None:
    """Raises UserError unless the state has these weights, of these shapes, and no others."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for what, names in (
        ("lacks the weights", expected.keys() - shapes.keys()),
        ("has weights that config.json does not describe,", shapes.keys() - expected.keys()),
    ):
        require(
            not names,
            f"{path}: {what} {_listed(names)}; download config.json and weights of the same model.",
        )
    wrong = next((name for name in sorted(expected) if shapes[name] != expected[name]), "")
    require(
        not wrong,
        f"{path}: {wrong} has the shape {shapes.get(wrong)}, but config.json implies "
        f"{expected.get(wrong)}; download config.json and weights of the same model.",
    )


def _listed(names: Iterable[str]) -> str:
    first, more = sorted(names)[:3], max(0, len(list(names)) - 3)
    return ", ".join(first) + (f" and {more} more" if more else "")


def weight_files(folder: Path) -> list[Path]:
    """The file of a folder's weights, or an index and the shards that it names.

    Raises UserError if there is none, or the index is damaged.
    """
    found = weights_among({path.name for path in folder.iterdir()}, folder)
    require(
        bool(found),
        f"{folder}: holds no weights, neither {SAFE} nor {PICKLED}; download one of them into it.",
    )
    return [folder / name for name in found]


def weights_among(names: Collection[str], folder: Path) -> list[str]:
    """The file of weights of these names, or an index and its shards; none if there is neither.

    folder: where the index lies. Raises UserError if that is damaged.
    """
    for name in (SAFE, PICKLED):
        if name in names:
            return [name]
        if (index := name + INDEX) in names:
            return [index, *_shards(folder / index)]
    return []


def _shards(index: Path) -> list[str]:
    """The shards that an index names, each beside it."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: not an index of weights; download it again.") from error
    require(
        all(map(is_file_name, names)),
        f"{index}: names files outside its folder; download it again.",
    )
    return names
