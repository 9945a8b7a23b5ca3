"""Rows that join the drafter late: nothing is computed for them before, and nothing changes after.

The slow twin admits every row to the drafter at once.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from specdec_plugins.decoding import lane
from specdec_plugins.decoding.batch import Batch, LateDrafter
from specdec_plugins.decoding.contract import DraftSchedule, Prefix, Round, SourceBatch
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.requests import Request, RowParams
from specdec_plugins.decoding.rules.exact import Exact
from tests.decoding.drafters.factories import FACTORIES, SCRIPTED, WITH_MEMORY
from tests.decoding.networks.toys import fast_pair, sentences
from tests.decoding.toys import (
    SCRIPTS,
    ScriptedDrafter,
    TableVerifier,
    events_of,
    oracle,
    random_table,
    requests,
)

TABLE = random_table()


class Every(DraftSchedule):
    """Asks for a draft in every n-th round only."""

    def __init__(self, period: int) -> None:
        super().__init__(None)
        self.period = period
        self.num_rounds = 0

    def commit(self, prefix: Prefix, last: Round) -> None:
        self.num_rounds += 1

    def next_budget(self, params: RowParams) -> Tensor:
        asks = self.num_rounds % self.period == self.period - 1
        return params.block_size * asks


class AtOnce(LateDrafter):
    """The slow twin."""

    def admit(self, source: SourceBatch) -> None:
        self._drafter.admit(source)
        self._num_joined += len(source)

    def join(self, batch: Batch) -> None:
        raise AssertionError("everybody has joined")


class Counting(ScriptedDrafter):
    """Says how many rows it was given, and checks that it is asked about these alone."""

    def __init__(self) -> None:
        super().__init__(TABLE, SCRIPTS["always"])
        self.num_admitted = 0

    def admit(self, source: SourceBatch) -> None:
        super().admit(source)
        self.num_admitted += len(source)

    def commit(self, prefix: Prefix, last: Round) -> None:
        parts = (prefix.tokens, last.draft.tokens, last.scores.logits, last.verdict.next_tokens)
        assert {len(part) for part in parts} == {len(self.keys)}


def jobs_for(name: str) -> list[Request]:
    make = sentences if name == "networks" else requests
    return make(9, lambda i: i % 3, block_size=4, max_len=lambda i: 20 + i)


def decoded(name: str, period: int, compact_at: float) -> tuple[list[list[int]], list[list[int]]]:
    """Texts and every draft of rows that join and leave."""
    verifier: Any
    if name == "networks":  # rows that join late read their own encodings
        verifier, drafter = fast_pair()
    else:
        verifier = TableVerifier(TABLE)
        drafter = {**FACTORIES, **SCRIPTED}[name](verifier)
    method = Method(drafter, Exact(), Every(period))
    events = events_of(verifier, method, jobs_for(name), max_rows=4, compact_at=compact_at)
    texts = {event.id: event.result.token_ids for event in events if event.result}
    return [texts[f"r{i}"] for i in range(9)], [event.draft_ids for event in events]


@pytest.mark.parametrize(("period", "compact_at"), [(2, 1.0), (7, 0.01)])
@pytest.mark.parametrize("name", ["networks", *sorted({**FACTORIES, **SCRIPTED})])
def test_drafts_are_those_of_rows_that_joined_at_once(
    name: str, period: int, compact_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, drafts = decoded(name, period, compact_at)
    if name != "networks":
        assert texts == [oracle(TABLE, job) for job in jobs_for(name)]
    monkeypatch.setattr(lane, "LateDrafter", AtOnce)
    expected = decoded(name, period, compact_at)
    assert texts == expected[0]
    if name not in WITH_MEMORY:
        assert drafts == expected[1]
    if name not in ("scripted:empty", "lookup:long"):  # which find nothing here
        assert any(drafts)


@pytest.mark.parametrize(("period", "least", "most"), [(10**6, 0, 0), (6, 4, 9)])
def test_rows_join_once_and_only_where_somebody_drafts(period: int, least: int, most: int) -> None:
    drafter = Counting()
    method = Method(drafter, Exact(), Every(period))
    jobs = requests(9, block_size=4, max_len=30)
    events = events_of(TableVerifier(TABLE), method, jobs, max_rows=4, compact_at=0.01)
    assert least <= drafter.num_admitted <= most
    drafted = [event for event in events if event.draft_ids]
    assert bool(drafted) == (most > 0)
    # A perfect drafter stays perfect; only what it drafts past the end of a sentence goes.
    assert all(event.num_accepted > 0 for event in drafted)
