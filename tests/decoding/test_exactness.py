"""Every drafter under every rule that promises the greedy output gives it, token for token."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
from torch import Tensor

from specdec_plugins.decoding import engine
from specdec_plugins.decoding.contract import Drafter, Guarantee, Verifier
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.lane import TorchLane
from specdec_plugins.decoding.native import NativeLane
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from tests.decoding.drafters.factories import FACTORIES, SCRIPTED, network_verifier
from tests.decoding.greedy import greedy
from tests.decoding.toys import TableVerifier, method_of, oracle, random_table, requests

GREEDY_RULES = [n for n in RULES.names() if RULES.get(n)().guarantee(1) is Guarantee.GREEDY]
NUM_ROWS = 4  # fewer than the requests, so that rows join and leave


@cache
def table(seed: int) -> Tensor:
    return random_table(seed=seed)


def jobs(block_size: int, max_len: int) -> list[Request]:
    """Rows with forced prefixes and without, with a minimal length and without."""
    return requests(
        9,
        num_forced=lambda i: i % 3,
        block_size=block_size,
        max_len=lambda i: max_len - (i % 2 if max_len > 7 else 0),
        min_len=lambda i: (i % 2) * 4,
    )


@cache
def expected(seed: int, block_size: int, max_len: int) -> list[list[int]]:
    return [oracle(table(seed), request) for request in jobs(block_size, max_len)]


def check(name: str, rule: str, block_size: int, max_len: int, seed: int, schedule: str) -> int:
    """Returns how many tokens were drafted."""
    verifier = TableVerifier(table(seed))
    drafter = {**FACTORIES, **SCRIPTED}[name](verifier)
    compact_at = (0.01, 1.0)[seed % 2]
    config = EngineConfig(NUM_ROWS, compact_at)
    decoder = SpeculativeDecoder(verifier, method_of(drafter, rule, schedule), config)
    results = decoder.decode(jobs(block_size, max_len))
    assert [r.token_ids for r in results] == expected(seed, block_size, max_len)
    stats = decoder.stats
    # Each round emits what it accepted and one token of the verifier's own, but where a row's last
    # round is cut at eos or max_len.
    assert 0 <= stats.rounds - (stats.emitted - stats.accepted) <= len(results)
    assert stats.rounds == sum(r.rounds for r in results)
    return stats.drafted


def test_every_registered_drafter_has_a_factory() -> None:
    missing = sorted(set(DRAFTERS.names()) - {name.split(":")[0] for name in FACTORIES})
    assert not missing, f"enter these drafters in tests/decoding/drafters/factories.py: {missing}"


@pytest.mark.parametrize("block_size", [1, 2, 5, 25])
@pytest.mark.parametrize("name", sorted({**FACTORIES, **SCRIPTED}))
def test_output_is_greedy(name: str, block_size: int) -> None:
    """Each two of rule, length and table come together."""
    for (i, rule), (j, max_len) in itertools.product(
        enumerate(GREEDY_RULES), enumerate((1, 7, 40))
    ):
        check(name, rule, block_size, max_len, (i + j) % 2, "constant")


# The drafters with a state of their own, and scripts: what a change of the budget could disturb.
UNDER_SCHEDULES = [
    *("assistant:reading", "block:head, shortlist", "early_exit:confident", "lookup", "medusa"),
    *("scripted:always", "scripted:partly", "scripted:ragged"),
]


@pytest.mark.parametrize("name", UNDER_SCHEDULES)
@pytest.mark.parametrize("schedule", sorted({*SCHEDULES.names()} - {"constant"}))
def test_output_is_greedy_under_every_schedule(schedule: str, name: str) -> None:
    num_drafted = [
        check(name, "exact", block_size, max_len, seed, schedule)
        for block_size, max_len, seed in ((1, 7, 0), (1, 40, 1), (5, 7, 1), (5, 40, 0))
    ]
    assert sum(num_drafted) > 0


PLAIN = "no drafter"
# What the kernels' lane takes, if the networks' layers are kernels.
_BY_TORCH = ("assistant", "sampling", "nothing kept")
_DRAFTERS = [name for name in FACTORIES if not any(word in name for word in _BY_TORCH)]
IN_KERNELS = set(itertools.product([PLAIN, *_DRAFTERS], ("constant", "few_rows")))


def story(
    verifier: Verifier, method: Method, num_rows: int, asked: list[Request], native: bool
) -> tuple[dict[str, list[Any]], list[list[int]]]:
    """What the rounds of each request did, and all texts."""
    decoder = SpeculativeDecoder(verifier, method, EngineConfig(num_rows))
    rounds: dict[str, list[Any]] = {job.id: [] for job in asked}
    with decoder.session([]) as session:
        assert isinstance(session._lanes[0], NativeLane if native else TorchLane)
        session.add(asked)
        for event in session.run():
            rounds[event.id].append((event.draft_ids, event.num_accepted, event.emitted_ids))
    return rounds, [job.forced_ids + [i for r in rounds[job.id] for i in r[2]] for job in asked]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", [PLAIN, *sorted(FACTORIES)])
def test_networks_give_greedy_output_in_both_lanes(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each round is the same in both, where both can do it."""
    verifier, asked = network_verifier(precision), jobs(block_size=5, max_len=10)[:7]
    for job in asked:
        job.source_ids[:] = [token % 9 + 3 for token in job.source_ids]  # no padding
    drafter: Drafter | None = None if name == PLAIN else FACTORIES[name](verifier, precision)
    expected = greedy(verifier, asked)
    assert len({str(text) for text in expected}) > 4  # or the test could not fail
    for number, (schedule, rule) in enumerate(itertools.product(SCHEDULES.names(), GREEDY_RULES)):
        native = (name, schedule) in IN_KERNELS
        if native or schedule == "constant":
            num_rows = (1, 4)[(number + (schedule == "few_rows")) % 2]  # both with each rule
            decoding = (verifier, method_of(drafter, rule, schedule), num_rows, asked)
            own = story(*decoding, native)
            assert own[1] == expected
            with monkeypatch.context() as patch:
                patch.setattr(engine, "native_lane", lambda *parts: None)
                assert not native or story(*decoding, native=False) == own
