"""How each registered drafter is built on a toy verifier. A new drafter enters itself here."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch

from specdec_plugins.decoding.contract import Drafter
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    MedusaConfig,
    MedusaHeads,
    StackConfig,
    Transformer,
    TransformerConfig,
)
from specdec_plugins.decoding.networks.cpu.products import with_fast_products
from specdec_plugins.decoding.networks.trained import TrainedNetwork
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.networks.toys import randomise
from tests.decoding.toys import SCRIPTS, SPECIAL, Script, ScriptedDrafter, TableVerifier, perturbed

N = TypeVar("N", bound=TrainedNetwork)
Precision = str  # "float64", as the networks are made, "float32" or "int8"


class Factory(Protocol):
    """Builds a drafter whose networks compute in that precision."""

    def __call__(
        self, verifier: TableVerifier | TransformerVerifier, precision: Precision = ..., /
    ) -> Drafter: ...


# Sources of the toys have symbols that their target vocabulary of 9 lacks.
SOURCE_TO_TARGET = torch.where(torch.arange(12) < 9, torch.arange(12), SPECIAL.unk)


def _block_network(
    num_layers: int,
    cached_prefix: bool,
    sequential_head: int = 0,
    head_attention: int = 0,
    shortlist_types: int = 0,
) -> BlockDrafter:
    stack = StackConfig(1, 8, 8, 2, vocab_size=12, max_positions=100, positions="learned")
    network = BlockDrafter(
        BlockConfig(
            encoder=stack,
            decoder=replace(stack, vocab_size=9, num_layers=num_layers),
            mask=SPECIAL.unk,
            block_size=25,
            scale_decoder=cached_prefix,
            cached_prefix=cached_prefix,
            tie_output=sequential_head > 0,
            sequential_head=sequential_head,
            head_attention=head_attention,
            shortlist_common=shortlist_types and 2,
            shortlist_types=shortlist_types,
        )
    )
    randomise(network, seed=0)
    if network.decoder.shortlist is not None:
        # Two types for each source type, and the end of sentence and a type that all may draft.
        listed = network.decoder.shortlist
        listed.common[:] = torch.tensor([SPECIAL.eos, 4])
        listed.starts[:] = (2 * torch.arange(13)).clamp(max=shortlist_types)
        listed.types[:] = torch.arange(shortlist_types) * 5 % 9
    return network


def network_verifier(precision: Precision, seed: int = 0) -> TransformerVerifier:
    """A network with the vocabularies of the tables, of three layers as they say."""
    stack = StackConfig(3, 9, 8, 1, vocab_size=12, max_positions=60)
    network = Transformer(TransformerConfig(stack, replace(stack, vocab_size=9)))
    randomise(network, seed)
    return TransformerVerifier(_computing(network, precision), SPECIAL)


def _computing(network: N, precision: Precision) -> N:
    if precision == "float64":
        return network
    single = deepcopy(network).float()
    return with_fast_products(single, precision == "int8") if single.int8 else single


_FAST = _block_network(2, cached_prefix=True)
_HEAD = _block_network(2, cached_prefix=True, sequential_head=12)
_LISTED = _block_network(
    2, cached_prefix=True, sequential_head=12, head_attention=2, shortlist_types=24
)
_MEDUSA = MedusaHeads(MedusaConfig(num_heads=25, dim=9))  # a toy's state is its logits
randomise(_MEDUSA, seed=0)


def _built(
    name: str, network: TrainedNetwork | None = None, sampling: bool = False, **options: Any
) -> Factory:
    """The drafter of that name, `options` for its Config."""

    def build(
        verifier: TableVerifier | TransformerVerifier, precision: Precision = "float64", /
    ) -> Drafter:
        own = None if network is None else _computing(network, precision)
        context = DraftContext(verifier, own, SOURCE_TO_TARGET, sampling=sampling)
        if name == "assistant" and isinstance(verifier, TableVerifier):
            smaller = TableVerifier(perturbed(verifier.table, 0.7), keep_cache=verifier.keep_cache)
            context = replace(context, assistant=smaller)
        elif name == "assistant":
            context = replace(context, assistant=network_verifier(precision, seed=1))
        return DRAFTERS.build(name, context, options=options)

    return build


def _scripted(script: Script) -> Callable[[TableVerifier], Drafter]:
    return lambda verifier: ScriptedDrafter(verifier.table, script)


# By the registered name; behind a colon stand variants worth running through everything too.
FACTORIES: dict[str, Factory] = {
    "assistant": _built("assistant"),
    "assistant:confident": _built("assistant", confidence=0.5),
    "assistant:reading": _built("assistant", encoder="verifier"),
    "assistant:sampling": _built("assistant", sampling=True),
    "assistant:sampling confident": _built("assistant", sampling=True, confidence=0.5),
    "block": _built("block", _block_network(1, cached_prefix=False)),
    "block:fast, one layer": _built("block", _block_network(1, cached_prefix=True)),
    "block:fast, two layers": _built("block", _FAST),
    "block:fast, nothing kept": _built("block", _FAST, cache=False),
    "block:head": _built("block", _HEAD),
    "block:head, confident": _built("block", _HEAD, confidence=0.3),
    "block:head, three candidates": _built("block", _HEAD, candidates=3),
    "block:head, shortlist": _built("block", _LISTED),
    "block:head, shortlist, sampling": _built("block", _LISTED, sampling=True),
    "block:head, sampling confident": _built("block", _HEAD, sampling=True, confidence=0.3),
    "block:head, sampling": _built("block", _HEAD, sampling=True, candidates=4),
    # Certain also under a rule that samples.
    "early_exit": _built("early_exit"),
    "early_exit:confident": _built("early_exit", exit_layer=2, confidence=0.5),
    "early_exit:sampling": _built("early_exit", sampling=True, confidence=0.5),
    "lookup": _built("lookup"),
    "lookup:long": _built("lookup", max_ngram=5, min_ngram=2),
    "medusa": _built("medusa", _MEDUSA),
}

# These remember earlier rounds, so a fresh drafter on the same prefix proposes otherwise.
WITH_MEMORY = {"medusa"}

# The scripted drafters run through everything that the registered ones do.
SCRIPTED = {f"scripted:{name}": _scripted(script) for name, script in SCRIPTS.items()}
