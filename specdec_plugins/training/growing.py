"""The checkpoint that a deeper or wider verifier starts from.

Types are matched by name; a new one gets the mean of its pieces. Layers are matched by even
spacing: a deeper model has some of them twice, as in Gong et al. 2019 (Efficient training of BERT
by progressively stacking). A wider one has every unit several times, as in Net2Net (Chen et al.
2016, arXiv 1511.05641), and computes what the given one does: sinusoids depend on the width, so it
learns its positions, from the given ones.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.networks.layers import sinusoids
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import is_bundle, read_bundle
from specdec_plugins.formats.checkpoints import untrained
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.models import flags_of, read_model
from specdec_plugins.formats.text import BPE_SEPARATOR, load_codes
from specdec_plugins.models.assistant_transformer import chosen_layers

# Flags of fairseq and of specdec train verifier.
_WIDTHS = {"embed_dim": "width", "ffn_embed_dim": "ffn", "attention_heads": "heads"}
_PAD = 1  # in fairseq's dictionaries
_LEARNED = ("encoder_learned_pos", "decoder_learned_pos")
# How far the copies of a unit are apart, of a weight's deviation. The embeddings' are closer, since
# their difference passes the norms.
_NOISE, _EMBEDDING_NOISE = 0.3, 0.1


def grown_verifier(
    bundle: Path, data: Path, wanted: Mapping[str, int], seed: int
) -> tuple[dict[str, Any], str]:
    """The checkpoint that a verifier starts from, and a sentence that says what it took over.

    bundle: the folder of a verifier whose embeddings and output projection are one table.
    data: the folder of fairseq-preprocess with the new types, one dictionary for both sides.
    wanted: `encoder_layers`, `decoder_layers`, `width`, `ffn` and `heads` of the new verifier.
    Raises UserError if these conflict.
    """
    settings = read_bundle(bundle)
    path = bundle / settings.verifier.weights
    model = read_model(path)
    flags = flags_of(model)
    times = times_wider(bundle, wanted)
    old = load_dictionaries(bundle, settings.source_lang, settings.target_lang).target.symbols
    new = load_dictionaries(data).target.symbols
    generator = torch.Generator().manual_seed(seed)
    state = {name: tensor.float() for name, tensor in model.state.items()}
    codes = settings.text.get("bpe_codes")
    segment = load_codes(bundle / codes).segment if codes else str
    table, num_taken = _table(state["decoder.embed_tokens.weight"], old, new, segment, generator)
    for name in state:
        if name.endswith(("embed_tokens.weight", "output_projection.weight")):
            state[name] = table
    if times > 1:
        state = _positions(flags) | state
        state = _wider(state, times, flags["decoder_layers"] - 1, generator)
        flags |= dict.fromkeys(_LEARNED, True)
    for side in ("encoder", "decoder"):
        state = _deeper(state, f"{side}.layers.", wanted[f"{side}_layers"])
        flags[f"{side}_layers"] = wanted[f"{side}_layers"]
        flags |= {f"{side}_{flag}": wanted[name] for flag, name in _WIDTHS.items()}
    flags |= dict.fromkeys(("decoder_input_dim", "decoder_output_dim"), wanted["width"])
    told = f"{num_taken} of {len(new)} types and the layers of {path}"
    return untrained(Namespace(**flags), state), told


def learns_positions(start: Path, wanted: Mapping[str, int]) -> bool:
    """Whether a verifier learns its positions that starts from a bundle or a checkpoint."""
    if is_bundle(start):
        if times_wider(start, wanted) > 1:
            return True
        start = start / read_bundle(start).verifier.weights
    return bool(flags_of(read_model(start)).get(_LEARNED[0]))


def times_wider(bundle: Path, wanted: Mapping[str, int]) -> int:
    """How often the wanted verifier has every unit of the given one.

    Raises UserError if it is not a multiple of it.
    """
    path = bundle / read_bundle(bundle).verifier.weights
    flags = flags_of(read_model(path))
    require(
        bool(flags.get("share_all_embeddings")),
        f"{path}: has several embedding tables, but specdec train verifier trains one for both "
        "sides and the output; start from a bundle that has one, or leave --from out.",
    )
    times = wanted["width"] / flags["decoder_embed_dim"]
    for side in ("encoder", "decoder"):
        for flag, name in _WIDTHS.items():
            given = flags[f"{side}_{flag}"]
            require(
                times >= 1 and times == int(times) and wanted[name] == given * times,
                f"{path}: --{name} is {given} there and {wanted[name]} here; a verifier can become "
                "wider only if width, ffn and heads are the same multiple of its own: give "
                f"--{name} {given * max(int(times), 1)}, or leave --from out.",
            )
    scaled = not flags.get("no_scale_embedding")
    plain = not flags.get("decoder_normalize_before")
    require(
        times == 1 or (scaled and plain),
        f"{path}: only a verifier with scaled embeddings that normalises after its layers can "
        "become wider; give its own width, or leave --from out.",
    )
    return int(times)


def _wider(
    state: dict[str, Tensor], times: int, last_layer: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """The state with every unit ``times`` times.

    Units of the residual stream are copied side by side; heads and inner units are repeated as a
    whole. A matrix reads the sum of the copies, so it is divided by their number. Noise whose sum
    over the copies is zero makes them different without changing what is computed: otherwise they
    would have the same gradients for ever.
    """

    def repeated(name: str, tensor: Tensor) -> Tensor:
        if name.endswith("embed_positions.weight"):
            return tensor.repeat_interleave(times, 1)
        is_table = name.endswith(("embed_tokens.weight", "output_projection.weight"))
        if re.search(r"\.(q_proj|k_proj|v_proj|fc1)\.", name):
            tensor = tensor.repeat(times, *[1] * (tensor.dim() - 1))
        elif not is_table:
            tensor = tensor.repeat_interleave(times, 0)
        if tensor.dim() == 1:
            return tensor
        noise = torch.randn(*tensor.shape, times, generator=generator)
        noise -= noise.mean(2, keepdim=True)
        scale = tensor.std() * (_EMBEDDING_NOISE if is_table else _NOISE)
        copies = (tensor.unsqueeze(2) + scale * noise) / times
        if re.search(r"\.(out_proj|fc2)\.", name):  # reads whole heads, or inner units
            return copies.transpose(1, 2).flatten(1)
        return copies.flatten(1)

    made = {name: repeated(name, tensor) for name, tensor in state.items()}
    # Embeddings are multiplied by the root of the width, and their product with the last states
    # sums all copies.
    table = made["decoder.embed_tokens.weight"] * times**0.5
    for name in made:
        if name.endswith(("embed_tokens.weight", "output_projection.weight")):
            made[name] = table
    for kind in ("weight", "bias"):
        made[f"decoder.layers.{last_layer}.final_layer_norm.{kind}"] *= times**-0.5
    return made


def _positions(flags: Mapping[str, Any]) -> dict[str, Tensor]:
    """The sinusoids [max_positions + pad + 1, D] of both sides, as tables to be learned."""
    tables = {}
    for side, limit in (("encoder", "source"), ("decoder", "target")):
        size = int(flags[f"max_{limit}_positions"]) + _PAD + 1
        table = sinusoids(size, flags[f"{side}_embed_dim"])
        table[_PAD] = 0  # that of padding
        tables[f"{side}.embed_positions.weight"] = table
    return tables


def _table(
    given: Tensor,
    old: Sequence[str],
    new: Sequence[str],
    segment: Callable[[str], str],
    generator: torch.Generator,
) -> tuple[Tensor, int]:
    """Embeddings [V, D] of the new types, and how many are copied.

    A type missing from the old ones gets the mean of those that spell it, and if there are none is
    initialised as by fairseq. segment: the pieces of a word in the old types.
    """
    width = given.size(1)
    table = torch.randn(len(new), width, generator=generator) * width**-0.5
    ids = {symbol: index for index, symbol in enumerate(old)}
    num_copied = 0
    for row, symbol in enumerate(new):
        found = [symbol] if symbol in ids else _spelling(symbol, segment)
        if all(piece in ids for piece in found):
            table[row] = given[[ids[piece] for piece in found]].mean(0)
        num_copied += symbol in ids
    return table, num_copied


def _spelling(symbol: str, segment: Callable[[str], str]) -> list[str]:
    """The old pieces of a new type; those of one within a word end within it, too."""
    word = symbol.removesuffix(BPE_SEPARATOR)
    pieces = segment(word).split() or [word]
    return [*pieces[:-1], pieces[-1] + symbol[len(word) :]]


def _deeper(state: dict[str, Tensor], prefix: str, depth: int) -> dict[str, Tensor]:
    """The state with ``depth`` layers: first, last and evenly between, some of them twice."""
    there = 1 + max(int(name.split(".")[2]) for name in state if name.startswith(prefix))
    chosen = spread_layers(depth, there)
    others = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
    return others | {n: t.clone() for n, t in chosen_layers(state, chosen, prefix).items()}


def spread_layers(num_wanted: int, num_given: int) -> Sequence[int]:
    """Numbers, from 0, of the given layers that initialise the wanted ones.

    >>> spread_layers(6, 4)
    [0, 1, 1, 2, 2, 3]
    """
    steps = max(num_wanted - 1, 1)
    return [round(index * (num_given - 1) / steps) for index in range(num_wanted)]
