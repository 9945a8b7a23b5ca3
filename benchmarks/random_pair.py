"""A pair of any size with random weights: for what an engine costs where no such pair is trained.

Its outputs mean nothing and end nowhere, so all rows decode to one length, and nothing is scored.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.grow import made_up_dictionary, write_pair
from benchmarks.pair import Pair, Sentence, TestSet
from specdec_plugins.decoding.networks import BlockConfig, StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import Contents
from specdec_plugins.formats.dictionaries import Dictionary

_BLOCK_SIZE = 25  # as published
_HEAD, _MAX_POSITIONS = 64, 1000
_LENGTHS = 8, 40  # source tokens, the end of the sentence included


@dataclass(frozen=True)
class Shape:
    """Sizes of both models."""

    layers: int  # of each stack
    dim: int  # a multiple of 64, the width of a head
    types: int  # special symbols included
    drafter_layers: int  # of its decoder

    @classmethod
    def parse(cls, text: str) -> Shape:
        """LAYERSxDIMxTYPES, or LAYERSxDIMxTYPESxDRAFTER_LAYERS. Raises UserError."""
        numbers = [int(part) if part.isdecimal() else 0 for part in text.split("x")]
        layers, dim, types, *last = numbers if len(numbers) in (3, 4) else (0, 0, 0)
        least = 2 * len(Dictionary())
        require(
            layers >= 1 and dim >= _HEAD and dim % _HEAD == 0 and types >= least,
            f"--random-weights {text}: wants LAYERSxDIMxTYPES, the drafter's decoder layers behind "
            f"it if they are others; 1 layer or more, a width that is a multiple of {_HEAD}, and "
            f"{least} types or more.",
        )
        return cls(layers, dim, types, last[0] if last else layers)


def random_pair(shape: Shape, work: Path, seed: int = 0) -> Pair:
    """Write a bundle into a folder of `work`."""
    name = f"random.{shape.layers}x{shape.dim}x{shape.types}.drafter{shape.drafter_layers}"
    stack = StackConfig(
        *(shape.layers, shape.dim, 4 * shape.dim, shape.dim // _HEAD, shape.types, _MAX_POSITIONS)
    )
    verifier = TransformerConfig(stack, stack, share_embeddings=True, tie_output=True)
    learned = replace(stack, positions="learned")
    drafter = BlockConfig(
        *(learned, replace(learned, num_layers=shape.drafter_layers)),
        share_embeddings=True,
        tie_output=True,
        scale_embedding=False,
        block_size=_BLOCK_SIZE,
        copy_source=True,
    )
    generator = torch.Generator().manual_seed(seed)
    words = made_up_dictionary(Dictionary(), shape.types)
    contents = Contents(
        *(Path(), "en", "de", _model("transformer", verifier, generator)),
        drafter_name="block",
        drafter=_model("block", drafter, generator),
    )
    write_pair(contents, (words, words), work / name, force=True)
    return Pair.of(work / name, "en", "de")


def random_sentences(shape: Shape, count: int, seed: int = 0) -> TestSet:
    """Sentences of random words, of lengths as news has them."""
    draw, words = random.Random(seed), made_up_dictionary(Dictionary(), shape.types)
    first = len(Dictionary())
    sentences = []
    for number in range(1, count + 1):
        ids = [draw.randrange(first, shape.types) for _ in range(draw.randint(*_LENGTHS) - 1)]
        sentences.append(Sentence(number, [words.symbols[i] for i in ids], [*ids, words.eos]))
    return TestSet("random sentences", sentences, None)


def _model(kind: str, config: TransformerConfig, generator: torch.Generator) -> Model:
    dim = config.decoder.dim

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    words = matrix(config.decoder.vocab_size, dim)
    # The embeddings are the output projection, too: so no special symbol ever wins.
    words[: len(Dictionary())] *= 0.01
    state = {f"{side}.embed_tokens.weight": words for side in ("encoder", "decoder")}
    state["decoder.output_projection.weight"] = words
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack.positions == "learned":
            num_positions = stack.max_positions + config.pad + 1
            state[f"{side}.embed_positions.weight"] = matrix(num_positions, dim)
        for name, rows, columns in _products(side, stack):
            state[f"{name}.weight"] = matrix(rows, columns)
            state[f"{name}.bias"] = torch.zeros(rows)
            if name.endswith(("out_proj", "fc2")):  # a norm stands behind it
                norm = name.replace(".out_proj", "_layer_norm").replace("fc2", "final_layer_norm")
                state[f"{norm}.weight"], state[f"{norm}.bias"] = torch.ones(dim), torch.zeros(dim)
    if isinstance(config, BlockConfig):
        state["decoder.copy_attn.weight"] = matrix(dim, dim)
    return Model(Path("random"), kind, kind, config, state)


def _products(side: str, stack: StackConfig) -> Iterator[tuple[str, int, int]]:
    """Names under which fairseq has them, rows and columns."""
    attentions = ("self_attn", "encoder_attn")[: 1 if side == "encoder" else 2]
    for number in range(stack.num_layers):
        layer = f"{side}.layers.{number}"
        for attention in attentions:
            for product in ("q_proj", "k_proj", "v_proj", "out_proj"):
                yield f"{layer}.{attention}.{product}", stack.dim, stack.dim
        yield f"{layer}.fc1", stack.ffn_dim, stack.dim
        yield f"{layer}.fc2", stack.dim, stack.ffn_dim
