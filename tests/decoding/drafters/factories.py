"""How each registered drafter is built on a toy verifier. A new drafter enters itself here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    MedusaConfig,
    MedusaHeads,
    StackConfig,
)
from specdec_plugins.decoding.types import Drafter
from tests.decoding.networks.toys import randomise
from tests.decoding.toys import (
    SCRIPTS,
    SPECIAL,
    Script,
    ScriptedDrafter,
    TableVerifier,
    perturbed,
)

Factory = Callable[[TableVerifier], Drafter]

# Sources of the toys have symbols that their target vocabulary of 9 lacks.
SOURCE_TO_TARGET = torch.where(torch.arange(12) < 9, torch.arange(12), SPECIAL.unk)


def _built(name: str, **options: Any) -> Factory:
    return lambda verifier: build_drafter(
        name, DraftContext(verifier, source_to_target=SOURCE_TO_TARGET), options
    )


def _assistant(sampling: bool = False, noise: float = 0.7, **options: Any) -> Factory:
    def build(verifier: TableVerifier) -> Drafter:
        assistant = TableVerifier(perturbed(verifier.table, noise), keep_cache=verifier.keep_cache)
        context = DraftContext(verifier, assistant=assistant, sampling=sampling)
        return build_drafter("assistant", context, options)

    return build


def _early_exit(sampling: bool = False, **options: Any) -> Factory:
    def build(verifier: TableVerifier) -> Drafter:
        return build_drafter("early_exit", DraftContext(verifier, sampling=sampling), options)

    return build


@cache
def _block_network(
    num_layers: int = 1, cached_prefix: bool = False, sequential_head: int = 0
) -> BlockDrafter:
    stack = StackConfig(1, 8, 8, 2, vocab_size=12, max_positions=100, positions="learned")
    target = replace(stack, vocab_size=9, num_layers=num_layers)
    network = BlockDrafter(
        BlockConfig(
            encoder=stack,
            decoder=target,
            mask=SPECIAL.unk,
            block_size=25,
            scale_decoder=cached_prefix,
            cached_prefix=cached_prefix,
            tie_output=sequential_head > 0,
            sequential_head=sequential_head,
        )
    )
    randomise(network, seed=0)
    return network


def _block(verifier: TableVerifier) -> Drafter:
    return build_drafter("block", DraftContext(verifier, _block_network()))


def _block_fast(num_layers: int, **options: Any) -> Factory:
    network = _block_network(num_layers, cached_prefix=True)
    return lambda verifier: build_drafter("block", DraftContext(verifier, network), options)


def _block_head(sampling: bool = False, **options: Any) -> Factory:
    network = _block_network(2, cached_prefix=True, sequential_head=12)
    return lambda verifier: build_drafter(
        "block", DraftContext(verifier, network, sampling=sampling), options
    )


def _block_hint(sampling: bool = False, **options: Any) -> Factory:
    network = _block_network(2, cached_prefix=True, sequential_head=12)
    return lambda verifier: build_drafter(
        "hint", DraftContext(verifier, network, sampling=sampling), options
    )


def _medusa(verifier: TableVerifier) -> Drafter:
    heads = MedusaHeads(MedusaConfig(25, verifier.hidden_dim))
    randomise(heads, seed=0)
    return build_drafter("medusa", DraftContext(verifier, heads))


def _scripted(script: Script) -> Factory:
    return lambda verifier: ScriptedDrafter(verifier.table, script)


# By the registered name; behind a colon stand variants worth running through everything too.
FACTORIES: dict[str, Factory] = {
    "assistant": _assistant(),
    "assistant:confident": _assistant(confidence=0.5),
    "assistant:reading": _assistant(encoder="verifier"),
    "assistant:sampling": _assistant(sampling=True),
    "assistant:sampling confident": _assistant(sampling=True, confidence=0.5),
    "block": _block,
    "block:fast, one layer": _block_fast(1),
    "block:fast, two layers": _block_fast(2),
    "block:fast, nothing kept": _block_fast(2, cache=False),
    "block:head": _block_head(),
    "block:head, three candidates": _block_head(candidates=3),
    "block:head, sampling": _block_head(sampling=True, candidates=4),
    "early_exit": _early_exit(),
    "early_exit:confident": _early_exit(exit_layer=2, confidence=0.5),
    "early_exit:sampling": _early_exit(sampling=True, confidence=0.5),
    "hint": _built("hint"),
    "hint:block": _block_hint(),
    "hint:block, sampling": _block_hint(sampling=True, candidates=4),
    "lookup": _built("lookup"),
    "lookup:long": _built("lookup", max_ngram=5, min_ngram=2),
    "medusa": _medusa,
}

# These remember earlier rounds, so a fresh drafter on the same prefix proposes otherwise.
WITH_MEMORY = {"medusa"}

# The scripted drafters run through everything that the registered ones do.
SCRIPTED = {f"scripted:{name}": _scripted(script) for name, script in SCRIPTS.items()}
