"""Many sessions on one decoder: each gives what it gives alone, as no two share a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pytest

from specdec_plugins.decoding.alone import DrafterDecoder, Unverified
from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from specdec_plugins.decoding.requests import Request, RowEvent
from tests.decoding.drafters.factories import FACTORIES
from tests.decoding.networks.toys import fast_pair, sentences
from tests.decoding.toys import (
    CPU,
    SCRIPTS,
    SPECIAL,
    ScriptedDrafter,
    TableVerifier,
    method_of,
    random_table,
    requests,
)

TABLE = random_table()
JOBS = requests(6, lambda i: i % 3, block_size=4, max_len=lambda i: 9 + i, seed=5)
Make = Callable[[], SpeculativeDecoder]


def on_tables(name: str, schedule: str = "constant", **options: Any) -> SpeculativeDecoder:
    verifier = TableVerifier(TABLE)
    rule = "speculative_sampling" if "sampling" in name else "exact"
    method = method_of(FACTORIES[name](verifier), rule, schedule, **options)
    return SpeculativeDecoder(verifier, method, EngineConfig(2, 0.01))


def on_networks() -> SpeculativeDecoder:
    verifier, drafter = fast_pair()
    return SpeculativeDecoder(verifier, method_of(drafter), EngineConfig(2, 0.01))


UNVERIFIED = Unverified(9, SPECIAL, CPU, source_vocab_size=12)


def alone() -> SpeculativeDecoder:
    drafter = ScriptedDrafter(TABLE, SCRIPTS["always"])
    return DrafterDecoder(drafter, UNVERIFIED, EngineConfig(2))


MAKES: dict[str, tuple[Make, list[Request]]] = {
    **{name: (lambda name=name: on_tables(name), JOBS) for name in FACTORIES},
    "heuristic": (lambda: on_tables("lookup", "heuristic", keep=True), JOBS),
    "gate": (lambda: on_tables("assistant", "target_confidence"), JOBS),
    "networks": (on_networks, sentences(6, block_size=4, max_len=12)),
    "alone": (alone, [replace(job, forced_ids=[]) for job in JOBS]),
}


def said(events: Iterable[RowEvent]) -> list[Any]:
    return [(e.id, e.draft_ids, e.emitted_ids) for e in events]


def told(decoder: SpeculativeDecoder, jobs: list[Request]) -> list[Any]:
    """What a session says of these, drafts included."""
    return said(decoder.events(jobs))


@pytest.mark.parametrize("name", sorted(MAKES))
def test_streams_in_turns_give_what_each_gives_alone(name: str) -> None:
    make, jobs = MAKES[name]
    parts = (jobs[::2], jobs[1::2])
    expected = [told(make(), part) for part in parts]
    decoder = make()
    in_turns = zip_longest(*(decoder.events(part) for part in parts))
    assert [said(filter(None, events)) for events in zip(*in_turns, strict=True)] == expected
    assert decoder.stats.rows == len(jobs)


@pytest.mark.parametrize("name", sorted(MAKES))
def test_a_stream_that_is_closed_early_leaves_nothing_behind(name: str) -> None:
    make, jobs = MAKES[name]
    expected = told(make(), jobs[3:])
    decoder = make()
    first = decoder.events(jobs[:2])
    next(first)
    beside = decoder.events(jobs[2:3])  # on a state of its own
    next(beside)
    first.close()
    beside.close()
    if name != "heuristic":  # which is to remember
        assert told(decoder, jobs[3:]) == expected
    assert [r.token_ids for r in decoder.decode(jobs)] == [r.token_ids for r in make().decode(jobs)]


@pytest.mark.parametrize("name", ["networks", "assistant:reading", "early_exit", "medusa"])
def test_threads_share_a_decoder(name: str) -> None:
    make, jobs = MAKES[name]
    expected = [told(make(), [job]) for job in jobs]
    decoder = make()
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda job: told(decoder, [job]), jobs))
    assert found == expected
    assert decoder.stats.rows == len(jobs)


def test_a_state_serves_one_session_after_the_other() -> None:
    decoder = on_tables("lookup")
    first = decoder.open()
    second = decoder.open()
    assert first.verifier is not second.verifier
    assert decoder.verifier not in (first.verifier, second.verifier)
    second.close()
    second.close()  # gives it back once
    assert decoder.open().verifier is second.verifier
    assert decoder.open().verifier not in (first.verifier, second.verifier)
