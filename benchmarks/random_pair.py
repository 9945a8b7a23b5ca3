"""A pair of any size with random weights: for what an engine costs where no such pair is trained.

Its outputs mean nothing and end nowhere, so all rows decode to one length, and nothing is scored.
"""

from __future__ import annotations

import random
import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.pair import Pair, Sentence, TestSet
from specdec_plugins.app.loading import DRAFTER, VERIFIER
from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import save_checkpoint

_SPECIAL = 4  # ids before the first word
_BLOCK_SIZE = 25  # as published
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
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:x(\d+))?", text)
        if not found:
            raise UserError(
                f"--random-weights {text}: expected LAYERSxDIMxTYPES such as 6x512x32000, and the "
                "drafter's decoder layers behind it if they are others."
            )
        layers, dim, types = (int(number) for number in found.groups()[:3])
        if layers < 1 or dim < 64 or dim % 64 or types < 2 * _SPECIAL:
            raise UserError(
                f"--random-weights {text}: wants 1 layer or more, a width that is a multiple of "
                f"64, and {2 * _SPECIAL} types or more."
            )
        return cls(layers, dim, types, int(found[4] or layers))

    @property
    def name(self) -> str:
        return f"random.{self.layers}x{self.dim}x{self.types}.drafter{self.drafter_layers}"


def random_pair(shape: Shape, work: Path, seed: int = 0) -> Pair:
    """Write dictionaries and checkpoints into a folder of `work`, as fairseq would have them."""
    import specdec_plugins

    specdec_plugins.register()
    folder = work / shape.name
    folder.mkdir(parents=True, exist_ok=True)
    words = "".join(f"{_word(i)} 1\n" for i in range(_SPECIAL, shape.types))
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text(words, encoding="utf-8")
    with torch.random.fork_rng(devices=[]):  # fairseq's modules take no generator
        torch.default_generator.manual_seed(seed)
        for name, arch in ((VERIFIER, "transformer"), (DRAFTER, "block")):
            args = _settings(shape, arch)
            save_checkpoint(_checkpoint(_build(args, shape.types), args), folder / name)
    return Pair.of(folder, "en", "de")


def random_sentences(shape: Shape, count: int, seed: int = 0) -> TestSet:
    """Sentences of random words, of lengths as news has them."""
    draw = random.Random(seed)
    sentences = []
    for number in range(1, count + 1):
        ids = [draw.randrange(_SPECIAL, shape.types) for _ in range(draw.randint(*_LENGTHS) - 1)]
        sentences.append(Sentence(number, [_word(i) for i in ids], [*ids, 2]))
    return TestSet("random sentences", sentences, None)


def _word(index: int) -> str:
    return f"w{index}"


def _settings(shape: Shape, arch: str) -> Namespace:
    values: dict[str, Any] = {"arch": arch, "_name": arch, "task": "translation"}
    values["share_all_embeddings"] = True
    for side in ("encoder", "decoder"):
        values |= {
            f"{side}_layers": shape.layers,
            f"{side}_embed_dim": shape.dim,
            f"{side}_ffn_embed_dim": 4 * shape.dim,
            f"{side}_attention_heads": shape.dim // 64,
        }
    if arch == "block":
        values |= {
            "decoder_layers": shape.drafter_layers,
            "src_embedding_copy": True,
            "encoder_learned_pos": True,
            "decoder_learned_pos": True,
            "max_source_positions": 1000,
            "max_target_positions": 1000,
        }
    return Namespace(**values)


def _build(args: Namespace, types: int) -> nn.Module:
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    from specdec_plugins.training.initialise import numbered_dictionaries

    ARCH_CONFIG_REGISTRY[args.arch](args)
    model: nn.Module = ARCH_MODEL_REGISTRY[args.arch].build_model(
        args, numbered_dictionaries(types, types)
    )
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            # The embeddings are the output projection, too: so no special symbol ever wins.
            parameter.data[:_SPECIAL] *= 0.01
    return model


def _checkpoint(model: nn.Module, args: Namespace) -> dict[str, Any]:
    """As fairseq's trainer writes it."""
    from omegaconf import DictConfig

    task: dict[str, Any] = {
        "_name": "translation",
        "data": "",
        "source_lang": "en",
        "target_lang": "de",
    }
    if args.arch == "block":
        task |= {"_name": "translation_lev_modified", "block_size": _BLOCK_SIZE}
    config = DictConfig({"model": None, "task": task}, flags={"allow_objects": True})
    config.model = args
    last = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}
    return {
        "cfg": config,
        "args": None,
        "model": model.state_dict(),
        "optimizer_history": [last],
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": 0.0},
    }
