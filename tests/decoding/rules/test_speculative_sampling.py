"""Rules that promise the verifier's distribution keep it: all outputs of 1 to 3 tokens counted."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from specdec_plugins.decoding.contract import Drafter, Guarantee
from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.decoding.rules import RULES
from tests.decoding.drafters.factories import FACTORIES
from tests.decoding.test_sampling import slow_warp
from tests.decoding.toys import (
    SCRIPTS,
    SPECIAL,
    ScriptedDrafter,
    TableVerifier,
    decode_with,
    method_of,
    oracle,
    perturbed,
    random_table,
    requests,
)

LAW_RULES = [n for n in RULES.names() if RULES.get(n)().guarantee(1) is Guarantee.DISTRIBUTION]
TABLE = random_table() / 2  # flat enough that rare outputs are counted too
KEY = 1  # of the source that every row has
NUM_DRAWS = 20_000
MAX_LEN = 3
SOURCE = [KEY, 5, 4, 5, 6, SPECIAL.eos]


def decode(
    rule: str,
    drafter: Drafter | None,
    schedule: str = "constant",
    verifier: TableVerifier | None = None,
    **options: Any,
) -> Counter[tuple[int, ...]]:
    verifier = verifier or TableVerifier(TABLE, keep_cache=False)
    jobs = [
        Request(
            id=str(i), source_ids=SOURCE, params=DecodeParams(max_len=MAX_LEN, seed=i, **options)
        )
        for i in range(NUM_DRAWS)
    ]
    method = method_of(drafter, rule, schedule)
    results = decode_with(verifier, method, jobs, max_rows=NUM_DRAWS)
    return Counter(tuple(r.token_ids) for r in results)


def expected_distribution(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, **_: Any
) -> dict[tuple[int, ...], float]:
    """Every output and its probability, multiplied out."""
    done: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    for place in range(1, MAX_LEN + 1):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, p in open_.items():
            last = tokens[-1] if tokens else SPECIAL.start
            logits = TABLE[KEY, place, last].tolist()
            for token, q in enumerate(slow_warp(logits, temperature, top_k, top_p)):
                ends = token == SPECIAL.eos or place == MAX_LEN
                (done if ends else longer)[(*tokens, token)] = p * q
        open_ = longer
    return done


def z_score(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """How many standard deviations the chi-square statistic is from its mean."""
    assert set(counts) <= {tokens for tokens, p in expected.items() if p > 0}
    cells = [(counts[t], NUM_DRAWS * p) for t, p in expected.items() if NUM_DRAWS * p >= 5]
    rare = NUM_DRAWS - sum(e for _, e in cells), NUM_DRAWS - sum(c for c, _ in cells)
    if rare[0] >= 5:
        cells.append((rare[1], rare[0]))
    statistic = sum((count - e) ** 2 / e for count, e in cells)
    freedom = len(cells) - 1
    assert freedom > 5
    return (statistic - freedom) / math.sqrt(2 * freedom)


def check(rule: str, drafter: Drafter | None, schedule: str = "constant", **options: Any) -> None:
    counts, want = decode(rule, drafter, schedule, **options), expected_distribution(**options)
    assert abs(z_score(counts, want)) < 4
    for place in range(MAX_LEN):  # and each place by itself, where few tokens gather all draws
        for token in range(TABLE.shape[-1]):
            p = sum(q for t, q in want.items() if len(t) > place and t[place] == token)
            got = sum(n for t, n in counts.items() if len(t) > place and t[place] == token)
            spread = math.sqrt(NUM_DRAWS * p * (1 - p))
            assert abs(got - NUM_DRAWS * p) <= 4 * spread + 1e-9, (place, token)


def sampled(script: str, noise: float = 0.7) -> Drafter:
    return ScriptedDrafter(perturbed(TABLE, noise), SCRIPTS[script], sampling=True)


def scripted(script: str) -> Drafter:
    return ScriptedDrafter(TABLE, SCRIPTS[script])


GATE = "target_confidence"
TRUNCATED = {"temperature": 1.5, "top_k": 6, "top_p": 0.75}
LAWS: dict[str, tuple[Drafter | None, dict[str, Any]]] = {
    "without a draft": (None, {}),
    "deterministic, full": (scripted("always"), {"block_size": 2}),
    "deterministic, ragged": (scripted("ragged"), {"block_size": 2}),
    "sampled, full": (sampled("always"), {"block_size": 2}),
    "sampled, ragged": (sampled("ragged"), {"block_size": 2}),
    "sampled from a very different distribution": (sampled("always", noise=4.0), {"block_size": 2}),
    "temperature, top_k and top_p": (sampled("always"), {"block_size": 2, **TRUNCATED}),
    "truncated p, deterministic": (scripted("partly"), {"block_size": 2, "top_k": 4}),
    "a gate between drafts": (sampled("always"), {"block_size": 1, "schedule": GATE}),
}


@pytest.mark.parametrize("rule", LAW_RULES)
@pytest.mark.parametrize("name", LAWS)
def test_distribution(name: str, rule: str) -> None:
    drafter, options = LAWS[name]
    check(rule, drafter, **options)


# What is no matter of chance (test_contract.py) is judged as scripted drafts are.
DRAWING = sorted(name for name in FACTORIES if "sampling" in name)


@pytest.mark.parametrize("rule", LAW_RULES)
@pytest.mark.parametrize("name", DRAWING)
def test_every_drafter_that_draws_keeps_the_distribution(name: str, rule: str) -> None:
    verifier = TableVerifier(TABLE, keep_cache=False)
    check(rule, FACTORIES[name](verifier), verifier=verifier, block_size=2)


def samples(jobs: list[Request], max_rows: int, name: str) -> list[list[int]]:
    verifier = TableVerifier(TABLE)
    method = method_of(FACTORIES[name](verifier), "speculative_sampling", "heuristic")
    results = decode_with(verifier, method, jobs, max_rows=max_rows, compact_at=0.01)
    return [r.token_ids for r in results]


@pytest.mark.parametrize("name", ["lookup", *DRAWING])
def test_a_sample_depends_on_its_seed_and_not_on_its_batch(name: str) -> None:
    jobs = requests(7, block_size=4, max_len=25, seed=lambda i: 100 + i, temperature=1.3)
    together = samples(jobs, 3, name)
    assert together == [samples([job], 1, name)[0] for job in jobs]
    assert together == samples(jobs[::-1], 5, name)[::-1]
    others = requests(7, block_size=4, max_len=25, seed=lambda i: i, temperature=1.3)
    assert together != samples(others, 3, name)


def test_almost_no_temperature_is_greedy() -> None:
    jobs = requests(7, block_size=4, max_len=25, seed=lambda i: i, temperature=1e-4)
    for name in ("assistant:sampling", "lookup"):
        assert samples(jobs, 3, name) == [oracle(TABLE, job) for job in jobs]
