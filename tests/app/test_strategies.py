"""The drafter alone, and the clock of every strategy."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch

from specdec_plugins.decoding.contract import Draft, DraftRequest
from specdec_plugins.decoding.requests import DecodeParams, FinishReason, Request
from tests.app.toys import EOS, ScriptedDrafter, drafter_alone, engine, reverse_twice
from tests.refusals import refused


def request(name: str, *words: int, block: int = 4, max_len: int = 50) -> Request:
    return Request(name, [*words, EOS], DecodeParams(block_size=block, max_len=max_len))


def test_the_drafter_alone_takes_every_drafted_token() -> None:
    strategy = drafter_alone(2)
    requests = [
        request("1", 4, 5, 6),
        request("2", 7, block=3),
        request("3", 8, 9, block=1),
        request("4", 8, 9, 10, 11, max_len=5),
    ]
    done = {r.id: r for r in strategy.run(requests)}
    for r in requests:
        answer = reverse_twice(r.source_ids)[: r.params.max_len]
        assert done[r.id].token_ids == answer
    emitted = {id_: row.emitted_per_round for id_, row in done.items()}
    assert emitted == {"1": [4, 3], "2": [3], "3": [1] * 5, "4": [4, 1]}
    drafted = [done[id_].drafted_per_round for id_ in ("1", "4")]
    assert drafted == [[4, 4], [4, 1]]
    reasons = [done[id_].finish_reason for id_ in ("3", "4")]
    assert reasons == [FinishReason.EOS, FinishReason.LENGTH]
    stats = strategy.stats
    assert (stats.rounds, stats.emitted, stats.eos, stats.rows) == (10, 20, 3, 4)


def test_a_silent_drafter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def propose(_: object, asked: DraftRequest) -> Draft:
        nothing = torch.zeros_like(asked.budget)
        return Draft(torch.zeros(len(nothing), asked.width).long(), nothing)

    monkeypatch.setattr(ScriptedDrafter, "propose", propose)
    refused("proposed nothing", lambda: list(drafter_alone(2).run([request("1", 4)])))


def test_a_drafter_alone_gives_no_scores() -> None:
    asked = request("1", 4)
    asked = replace(asked, params=replace(asked.params, with_scores=True))
    assert [r.token_scores for r in drafter_alone(2).run([asked])] == [[]]


def test_latency_runs_from_joining_to_the_end() -> None:
    ticks = count()
    plain = engine("AR", 1, measure_time=False, clock=lambda: float(next(ticks)))
    requests = [request("1", 4), request("2", 5, 6)]
    seconds = {r.id: r.seconds for r in plain.run(requests)}
    # Two readings a step, and the wait in the queue does not count: n steps take 2n - 1 ticks.
    assert seconds == {"1": 5.0, "2": 9.0}


def test_counts_survive_an_interruption() -> None:
    strategy = engine("AR", 1)
    running = strategy.run([request("1", 4), request("2", 5)])
    next(running)
    running.close()
    assert strategy.stats.rows == 1
