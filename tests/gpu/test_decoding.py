"""Decoding on the device: the CPU's tokens in float64, and in 16 bits up to their rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.pair import Pair
from specdec_plugins.app.exactness import check_exactness, rounding, scored
from specdec_plugins.app.settings import DTYPES as TORCH_DTYPES
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator, number_sentences
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.contract import Verifier
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from tests.bundles import BUNDLED, CAPTIONS
from tests.gpu.conftest import DTYPES, NAME, SIMULATED, Device

OTHER = {"drafter_checkpoint": None}  # than the drafter of the folder
ASSISTANT = {**OTHER, "drafter": "assistant", "drafter_checkpoint": "assistant.pt", "block_size": 4}
# Every drafter, with models that are in the repository.
DRAFTERS: dict[str, tuple[Path, dict[str, Any]]] = {
    "block": (CAPTIONS, {"drafter_checkpoint": "drafter.pt"}),
    "block_fast with head": (BUNDLED, {}),
    "assistant": (CAPTIONS, {**ASSISTANT, "drafter_options": {"encoder": "verifier"}}),
    "assistant, own encoder": (CAPTIONS, ASSISTANT),
    "medusa": (CAPTIONS, {**OTHER, "drafter": "medusa", "drafter_checkpoint": "medusa.pt"}),
    "early_exit": (
        CAPTIONS,
        {**OTHER, "verifier": "early_exit.pt", "drafter": "early_exit",
         "drafter_options": {"exit_layer": 2}},
    ),
    "lookup": (BUNDLED, {**OTHER, "drafter": "lookup"}),
}  # fmt: skip
GIVEN = {"top_beta": {"beta": 3, "tau": 1.0}, "speculative_sampling": {"top_k": 4, "seed": 3}}
CONSTRAINTS = Constraints(((1,), (5, 6), (4, 5)), no_repeat_ngram_size=2, forced_last=2)
VERIFIERS = dict[str | None, Verifier]()  # in float64 on the CPU


def decodings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Drafters and settings: each with each rule, and in exact mode with each schedule."""
    for drafter in DRAFTERS if not SIMULATED else ():
        yield drafter, {}
        for rule in sorted({*RULES.names()} - {"exact"}):
            yield drafter, {"rule": rule, **GIVEN.get(rule, {})}
        for schedule in sorted({*SCHEDULES.names()} - {"constant"}):
            yield drafter, {"schedule": schedule}
        if drafter.startswith("block") and NAME.startswith("cuda"):
            yield drafter, {"cuda_graphs": True}
    for given in ({"strategy": "AR"}, {"strategy": "drafter"}, {"batch": 1}):
        if not SIMULATED or given == {"batch": 1}:  # test_simulated.py has small models
            yield "block_fast with head", given


def settings_of(drafter: str, **given: Any) -> Settings:
    """Without the tokenisers, words are tokens."""
    folder, own = DRAFTERS[drafter]
    paths = ("verifier", "drafter_checkpoint")
    own = {k: str(folder / v) if k in paths and v is not None else v for k, v in own.items()}
    if not (find_spec("sacremoses") and find_spec("subword_nmt")):
        own |= {"tokenizer": None, "bpe": None, "bpe_codes": None}
    # Fewer rows than sentences, so that rows join and leave.
    own |= {"max_len_a": 2.0, "max_len_b": 8, "batch": 4}
    return replace(Pair.of(folder, "en", "de").settings, **{**own, **given})


def in_double(settings: Settings) -> SpeculativeTranslator:
    double = {"dtype": "float64", "drafter_dtype": None, "cuda_graphs": False}
    return load_translator(replace(settings, device="cpu", **double))


def verifier_in_double(settings: Settings) -> Verifier:
    """Loaded once in a process, as that takes longer than what it computes."""
    if settings.verifier not in VERIFIERS:
        plain = replace(settings, **OTHER, strategy="AR", drafter="lookup", rule=None, beta=1,
                        tau=0.0, top_k=0, drafter_options={}, schedule="constant")  # fmt: skip
        decoder = in_double(plain).decoder
        assert isinstance(decoder, SpeculativeDecoder)
        VERIFIERS[settings.verifier] = decoder.verifier
    return VERIFIERS[settings.verifier]


def few(lines: list[str]) -> list[str]:
    return lines[:1] if SIMULATED else lines[:40:4]


def decoded(
    translator: SpeculativeTranslator, lines: Sequence[str], constraints: Constraints = FREE
) -> list[tuple[Request, list[int]]]:
    """Each sentence's request and output."""
    decoder = translator.decoder
    if isinstance(decoder, SpeculativeDecoder) and constraints is not FREE:
        decoder.config = replace(decoder.config, constraints=constraints)
    prepared = map(translator.prepare, number_sentences(lines))
    requests = [request for request in prepared if isinstance(request, Request)]
    found = {result.id: result.token_ids for result in decoder.run(requests)}
    return [(request, found[request.id]) for request in requests]


def check_allowed(settings: Settings, dtype: str, request: Request, ids: list[int]) -> None:
    """In float64 the rule allows every token, up to the rounding of `dtype`."""
    logits = scored(verifier_in_double(settings), request, [], ids[:-1])  # [T, V]
    samples = settings.acceptance.samples
    best = logits.topk(settings.top_k if samples else settings.beta).values
    allowed = torch.maximum(best[:, -1], best[:, 0] - (math.inf if samples else settings.tau))
    gaps = allowed - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]  # [T]
    for at, gap in enumerate(gaps.tolist()):
        tolerance = rounding(TORCH_DTYPES[dtype], logits[at])
        assert gap < tolerance, f"sentence {request.id}, token {at}: {ids[at]} is {gap} nats below"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("drafter", "given"), [*decodings()], ids=lambda part: str(part).replace("'", "")
)
def test_only_rounding_changes_a_token(
    drafter: str, given: dict[str, Any], dtype: str, device: Device, lines: list[str]
) -> None:
    settings = settings_of(drafter, **given)
    with device.entered():
        there = load_translator(replace(settings, device=device.name, dtype=dtype))
        found = decoded(there, few(lines))
    is_verified = settings.strategy != "drafter"
    if dtype == "float32" and (same := decoded(in_double(settings), few(lines))) != found:
        assert is_verified, f"{found}, in float64 {same}"
    for request, ids in found if is_verified else ():
        check_allowed(settings, dtype, request, ids)


def test_a_token_that_is_not_allowed_is_found(lines: list[str]) -> None:
    settings = settings_of("block_fast with head")
    ((request, ids),) = decoded(in_double(settings), lines[:1])
    check_allowed(settings, "bfloat16", request, ids)
    with pytest.raises(AssertionError, match=r"token 1: .* nats below"):
        check_allowed(settings, "bfloat16", request, [ids[0], ids[1] + 1, *ids[2:]])


@pytest.mark.skipif(SIMULATED, reason="takes long")
@pytest.mark.parametrize("graphs", [False, True] if NAME.startswith("cuda") else [False])
def test_constraints(graphs: bool, device: Device, lines: list[str]) -> None:
    settings = settings_of("block", min_len=2, cuda_graphs=graphs)
    with device.entered():
        there = load_translator(replace(settings, device=device.name))
        found = decoded(there, few(lines), CONSTRAINTS)
    assert found == decoded(in_double(settings), few(lines), CONSTRAINTS)


@pytest.mark.skipif(SIMULATED, reason="takes long")
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_decoding_is_greedy_decoding(dtype: str, device: Device, lines: list[str]) -> None:
    settings = settings_of("block_fast with head", device=device.name, dtype=dtype, batch=16)
    found = check_exactness(settings, number_sentences(lines))
    assert found.holds, found


def test_every_drafter_is_decoded_with() -> None:
    from specdec_plugins.decoding.drafters import DRAFTERS as REGISTRY

    assert {settings_of(drafter).drafter for drafter in DRAFTERS} == {*REGISTRY.names()}
