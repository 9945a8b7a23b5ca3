"""Bans and forced ends: every method's text is what one token at a time would give under them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from specdec_plugins.decoding.constraints import Constraints, constrain
from specdec_plugins.decoding.contract import Draft
from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from specdec_plugins.decoding.requests import FinishReason, Request
from tests.decoding.drafters.factories import FACTORIES, SCRIPTED
from tests.decoding.greedy import greedy
from tests.decoding.toys import (
    NO_TOKEN,
    SPECIAL,
    TableVerifier,
    banned,
    draft_of,
    method_of,
    oracle,
    prefix_of,
    random_table,
    requests,
    row_params,
)

TABLE = random_table(seed=3)
NEVER_PAD = ((SPECIAL.pad,),)
CASES = {
    "none": Constraints(),
    "no padding": Constraints(NEVER_PAD),
    "phrases": Constraints(((4, 5), (6,), (SPECIAL.start, 4, 7), (7, 7, 7), (8, 0))),
    "no pair twice": Constraints(no_repeat_ngram_size=2),
    "no triple twice": Constraints(NEVER_PAD, no_repeat_ngram_size=3),
    "ends in eos": Constraints(forced_last=SPECIAL.eos),
    "other first tokens": Constraints(banned_first=(2, 4, 5, 6, 7)),
    "other second tokens": Constraints(banned_first=(2, 3, 4, 5, 6), num_opening=2),
    "tokens that are new": Constraints(repetition_penalty=1.4),
    "tokens that are not": Constraints(NEVER_PAD, repetition_penalty=0.8),
    "all": Constraints(
        (*NEVER_PAD, (4, 5)), 2, forced_last=8, banned_first=(4, 6), repetition_penalty=1.2
    ),
}


@cache
def jobs(block_size: int) -> list[Request]:
    """Forced prefixes, least and greatest lengths, all ragged."""
    return requests(
        9,
        num_forced=lambda i: i % 3,
        block_size=block_size,
        max_len=lambda i: (1, 6, 30)[i % 3] + i,
        min_len=lambda i: (i % 2) * 5,
    )


@cache
def expected(case: str) -> list[list[int]]:
    return [oracle(TABLE, job, CASES[case]) for job in jobs(0)]


# All constraints with every drafter, and each alone with one that is right here and wrong there.
PAIRS = [(name, "all") for name in sorted({**FACTORIES, **SCRIPTED})]
PAIRS += [("scripted:ragged", case) for case in CASES if case != "all"]


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_every_drafter_gives_the_constrained_greedy_text(name: str, case: str) -> None:
    verifier = TableVerifier(TABLE)
    config = EngineConfig(max_rows=4, constraints=CASES[case])
    for rule, block_size in (("exact", 5), ("top_beta", 25)):
        method = method_of({**FACTORIES, **SCRIPTED}[name](verifier), rule)
        results = SpeculativeDecoder(verifier, method, config).decode(jobs(block_size))
        assert [r.token_ids for r in results] == expected(case)


@pytest.mark.parametrize("case", CASES)
def test_greedy_is_the_oracle(case: str) -> None:
    assert greedy(TableVerifier(TABLE), jobs(0), CASES[case]) == expected(case)
    assert (expected(case) == expected("none")) == (case == "none")


@pytest.mark.parametrize("case", CASES)
def test_samples_and_tolerated_tokens_keep_to_them(case: str) -> None:
    verifier, constraints = TableVerifier(TABLE), CASES[case]
    options: dict[str, Callable[[int], float]]
    for rule, options in (
        ("speculative_sampling", {"seed": lambda i: i, "temperature": lambda i: 3.0}),
        ("top_beta", {"beta": lambda i: 5, "tau": lambda i: 9.0}),
    ):
        wanted = requests(12, block_size=6, max_len=20, **options)
        method = method_of(FACTORIES["lookup"](verifier), rule)
        config = EngineConfig(constraints=constraints)
        for result in SpeculativeDecoder(verifier, method, config).decode(wanted):
            text = [SPECIAL.start, *result.token_ids]
            for place in range(1, min(len(text), 20)):
                assert text[place] not in banned(text[:place], constraints)
            assert constraints.forced_last in (None, *text[20:]) or text[-1] == SPECIAL.eos


def test_a_text_that_the_limit_ends_is_said_to_be_cut() -> None:
    verifier = TableVerifier(TABLE)
    config = EngineConfig(constraints=Constraints(forced_last=SPECIAL.eos))
    method = method_of(FACTORIES["lookup"](verifier), "exact")
    results = SpeculativeDecoder(verifier, method, config).decode(jobs(5))
    free = SpeculativeDecoder(verifier, method, EngineConfig()).decode(jobs(5))
    assert [r.finish_reason for r in results] == [r.finish_reason for r in free]
    assert {r.finish_reason for r in results} == {FinishReason.EOS, FinishReason.LENGTH}
    assert all(r.token_ids[-1] == SPECIAL.eos for r in results)


def test_no_token_comes_twice() -> None:
    logits = torch.zeros(1, 3, 9)
    few = row_params(1)
    once = Constraints(no_repeat_ngram_size=1)
    constrain(logits, prefix_of([[4]]), draft_of([[5, 4]]), few, SPECIAL.eos, once)
    struck = logits[0].isinf()
    # The start token counts, and stands for the end here.
    assert [row.nonzero()[:, 0].tolist() for row in struck] == [[2, 4], [2, 4, 5], [2, 4, 5]]


def test_nothing_is_computed_where_nothing_is_asked() -> None:
    """Not even the draft's tokens are looked at."""
    logits = torch.zeros(1, 2, 9)
    nobody = Draft(torch.full((1, 1), NO_TOKEN), torch.tensor([1]))
    constrain(logits, prefix_of([[4]]), nobody, row_params(1), SPECIAL.eos)
    assert not logits.any()


OWN = {  # of a request, and what it amounts to for a model that has `NEVER_PAD`
    "none": ({}, Constraints(NEVER_PAD)),
    "no pair twice": ({"no_repeat_ngram_size": 2}, Constraints(NEVER_PAD, 2)),
    "banned": ({"banned": (4, 7)}, Constraints((*NEVER_PAD, (4,), (7,)))),
    "all": (
        {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3, "banned": (5,)},
        Constraints((*NEVER_PAD, (5,)), 3, repetition_penalty=1.3),
    ),
}


@pytest.mark.parametrize("rule", ["exact", "top_beta"])
def test_requests_with_constraints_of_their_own_share_a_batch(rule: str) -> None:
    asked = [[*OWN.values()][number % len(OWN)] for number in range(len(jobs(5)))]
    some = [
        replace(job, params=replace(job.params, **own))
        for job, (own, _) in zip(jobs(5), asked, strict=True)
    ]
    wanted = [oracle(TABLE, job, own) for job, (_, own) in zip(jobs(0), asked, strict=True)]
    assert wanted != expected("no padding")
    verifier = TableVerifier(TABLE)
    config = EngineConfig(max_rows=4, constraints=Constraints(NEVER_PAD))
    method = method_of(SCRIPTED["scripted:ragged"](verifier), rule)
    results = SpeculativeDecoder(verifier, method, config).decode(some)
    assert [r.token_ids for r in results] == wanted
