from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec_plugins.decoding.contract import Case, Draft, Drafter, Prefix, Scores, Verdict
from specdec_plugins.decoding.engine import (
    EngineConfig,
    Method,
    Session,
    SpeculativeDecoder,
    check_request,
)
from specdec_plugins.decoding.requests import DecodeParams, FinishReason, Request, RowEvent
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules import SCHEDULES
from tests.decoding.drafters.factories import FACTORIES
from tests.decoding.toys import (
    SCRIPTS,
    SPECIAL,
    ScriptedDrafter,
    TableVerifier,
    method_of,
    oracle,
    random_table,
    requests,
)
from tests.refusals import refused

TABLE = random_table()


def method(script: str | None = "partly", rule: str = "exact") -> Method:
    drafter: Drafter | None = ScriptedDrafter(TABLE, SCRIPTS[script]) if script else None
    return method_of(drafter, rule)


def session(script: str | None = "partly", **config: Any) -> Session:
    return decoder(script, **config).open()


def decoder(script: str | None = "partly", **config: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(TableVerifier(TABLE), method(script), EngineConfig(**config))


@pytest.mark.parametrize(
    ("script", "block_size"),
    [(None, 5), ("always", 0), ("always", 1), ("always", 2), ("always", 5), ("always", 25)],
)
def test_a_perfect_drafter_needs_the_fewest_rounds(script: str | None, block_size: int) -> None:
    """Up to the last position, too; without a drafter every round emits one token."""
    jobs = requests(11, block_size=block_size, max_len=60)
    results = decoder(script, max_rows=4).decode(jobs)
    assert [r.token_ids for r in results] == [oracle(TABLE, job) for job in jobs]
    assert len(results[0].token_ids) == 60
    for result in results:
        assert result.rounds == -(-len(result.token_ids) // (block_size + 1 if script else 1))
        assert result.accepted_per_round[:-1] == result.drafted_per_round[:-1]


@pytest.mark.parametrize(
    ("rule", "options", "follows"),
    [
        ("exact", {}, True),
        ("top_beta", {"beta": 1}, True),
        ("top_beta", {"beta": 2, "tau": 9.0}, False),
        ("speculative_sampling", {"seed": 3}, False),
        ("speculative_sampling", {"top_k": 1}, True),
    ],
)
def test_a_text_that_depends_on_its_drafts_does_not_depend_on_other_rows(
    rule: str, options: dict[str, Any], follows: bool
) -> None:
    def drafted(schedule: str) -> list[tuple[list[int], list[int]]]:
        chosen = replace(method("always", rule), schedule=SCHEDULES.build(schedule))
        jobs = requests(6, block_size=4, **options)
        results = SpeculativeDecoder(TableVerifier(TABLE), chosen, EngineConfig(3)).decode(jobs)
        return [(r.token_ids, r.drafted_per_round) for r in results]

    assert (drafted("few_rows") != drafted("constant")) == follows


def test_block_size_is_each_rows_own_and_zero_is_plain() -> None:
    jobs = requests(4, block_size=lambda i: i, max_len=40)
    for size, result in enumerate(decoder("never", max_rows=4).decode(jobs)):
        drafted = result.drafted_per_round
        assert max(drafted) == size
        room = [40 - 1 - i for i in range(len(drafted))]
        assert drafted == [min(size, r) for r in room]


def test_events_tell_the_whole_story() -> None:
    reasons = set()
    jobs = requests(7, num_forced=lambda i: i % 2, block_size=4, max_len=25)
    running = session(max_rows=3)
    running.add(jobs)
    told: dict[str, list[RowEvent]] = {job.id: [] for job in jobs}
    for event in running.run():
        assert not told[event.id] or told[event.id][-1].result is None
        told[event.id].append(event)
    for job in jobs:
        events = told[job.id]
        result = events[-1].result
        assert result is not None
        emitted = [token for event in events for token in event.emitted_ids]
        assert job.forced_ids + emitted == result.token_ids == oracle(TABLE, job)
        for event in events:
            kept = event.num_accepted
            assert event.draft_ids[:kept] == event.emitted_ids[:kept]
            assert kept <= len(event.draft_ids) <= 4
            assert len(event.emitted_ids) - kept in (0, 1)
        assert [e.num_accepted for e in events] == result.accepted_per_round
        assert [len(e.draft_ids) for e in events] == result.drafted_per_round
        assert [len(e.emitted_ids) for e in events] == result.emitted_per_round
        ended = result.token_ids[-1] == SPECIAL.eos
        assert result.finish_reason is (FinishReason.EOS if ended else FinishReason.LENGTH)
        assert ended or len(result.token_ids) == 25
        reasons.add(result.finish_reason)
    assert reasons == {FinishReason.EOS, FinishReason.LENGTH}


def test_cancel_waiting_and_running_rows() -> None:
    jobs = requests(6, block_size=2, max_len=40, min_len=9)
    running = session(max_rows=3, compact_at=0.01)
    running.add(jobs)
    started = {event.id: event.emitted_ids for event in running.step()}
    assert set(started) == {"r0", "r1", "r2"}
    events = running.cancel({"r0", "r4", "nobody"})
    assert {e.id for e in events} == {"r0", "r4"}
    for event in events:
        assert event.result is not None
        assert event.result.finish_reason is FinishReason.CANCELLED
        assert event.result.token_ids == started.get(event.id, [])
    assert running.cancel({"r0", "r4"}) == []
    rest = list(running.run())
    assert not {"r0", "r4"} & {event.id for event in rest}
    done = {e.id: e.result.token_ids for e in rest if e.result}
    assert done == {j.id: oracle(TABLE, j) for j in jobs if j.id in ("r1", "r2", "r3", "r5")}
    running.add(jobs)
    running.step()
    running.cancel([job.id for job in jobs])
    assert len(running) == 0
    assert list(running.run()) == []
    running.add(jobs[:1])
    assert [e.result.token_ids for e in running.run() if e.result] == [oracle(TABLE, jobs[0])]


def test_ids_are_unique_among_the_unfinished() -> None:
    running = session("never", max_rows=1)
    jobs = requests(2, max_len=9, min_len=5)
    for again in (jobs, [replace(jobs[0], id="x")] * 2):
        refused("same id", running.add, again + jobs)
    running.add(jobs)
    running.step()
    for job in jobs:
        refused("same id", running.add, [job])
    list(running.run())
    running.add(jobs)
    assert len(running) == 2


def test_tokens_have_log_probabilities_where_they_are_asked_for() -> None:
    some = requests(6, num_forced=lambda i: i % 3, block_size=4, max_len=15)
    jobs = [replace(r, params=replace(r.params, with_scores=i != 2)) for i, r in enumerate(some)]
    events = dict[str, list[float]]()
    for event in decoder(max_rows=4).events(jobs):
        events.setdefault(event.id, []).extend(event.token_scores)
    plain = decoder(max_rows=4).decode(some)
    for job, result, other in zip(jobs, decoder(max_rows=4).decode(jobs), plain, strict=True):
        tokens, scores = [SPECIAL.start, *result.token_ids], list[float]()
        for i in range(len(job.forced_ids) + 1, len(tokens)):
            row = TABLE[job.source_ids[0], i, tokens[i - 1]].log_softmax(-1)
            scores.append(float(row[tokens[i]]))
        assert result.token_scores == pytest.approx(scores if job.params.with_scores else [])
        assert events[job.id] == result.token_scores
        assert (other.token_ids, other.token_scores) == (result.token_ids, [])


@pytest.mark.parametrize("script", [None, "partly", "always"])
def test_a_loop_ends_a_row_at_the_token_that_completes_it(script: str | None) -> None:
    steady = TABLE[:, :1].expand_as(TABLE)  # a token depends on the one before alone
    drafter = ScriptedDrafter(steady, SCRIPTS[script]) if script else None
    looping = SpeculativeDecoder(TableVerifier(steady), method_of(drafter), EngineConfig(4))
    options = {"block_size": lambda i: i % 9, "max_len": 60, "ends_loops": lambda i: i != 3}
    reasons = dict[str, FinishReason | None]()
    for job, result in zip(jobs := requests(12, **options), looping.decode(jobs), strict=True):
        text = oracle(steady, job)
        begun = ["".join(map(chr, text[:n])) for n in range(len(text) + 1)]
        loops = (n for n, one in enumerate(begun) if re.search(r"(.{1,8})\1{5}\Z", one, re.DOTALL))
        wanted = text[: next(loops, None)] if job.params.ends_loops else text
        reasons[job.id] = result.finish_reason
        assert result.token_ids == wanted
        assert sum(result.emitted_per_round) == len(wanted)
        assert (result.finish_reason is FinishReason.REPETITION) == (wanted != text)
    assert {*reasons.values()} >= {FinishReason.REPETITION, FinishReason.LENGTH}


class Stuck(Exact):
    """Keeps fewer than nothing."""

    def judge(self, case: Case) -> Verdict:
        return Verdict(case.draft.lengths * 0 - 1, case.draft.lengths * 0 + 5)


def test_a_round_without_progress_raises() -> None:
    stuck = replace(method(None), rule=Stuck())
    running = Session(TableVerifier(TABLE), stuck, EngineConfig())
    running.add(requests(2))
    with pytest.raises(RuntimeError, match="'r0' made no progress"):
        running.step()


def test_seconds_by_part() -> None:
    ours = decoder(max_rows=2)
    for _ in range(2):
        ours.decode(requests(4, max_len=10))
    assert set(ours.stats.seconds) == {"encode", "draft", "verify", "rest"}
    assert ours.stats.rows == 8


class Limited(ScriptedDrafter):
    max_block_size = 8


def request(forced_ids: list[int] | None = None, **params: Any) -> Request:
    chosen = DecodeParams(**{"block_size": 8, "max_len": 20, **params})
    return Request("a", [4, SPECIAL.eos], chosen, forced_ids or [])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request(max_len=61), "61 is more than the verifier's 60 target positions"),
        (request(block_size=9), "at most 8 tokens"),
        (request(temperature=0.5), "temperature, top_k and top_p need a rule that samples"),
        (request(top_k=2), "need a rule that samples"),
        (request(top_p=0.9), "need a rule that samples"),
        (replace(request(), source_ids=[12, 2]), "'a': its source must hold token ids below 12"),
        (replace(request(), source_ids=[-1, 2]), "its source must hold token ids below 12"),
        (replace(request(), source_ids=[4] * 61), "source has 61 tokens, and .* positions for 60"),
        (request([9]), "below 9"),
        (request([-1]), "below 9"),
        (request([4, SPECIAL.eos]), "no end of sentence"),
    ],
)
def test_impossible_requests_are_refused_before_decoding(bad: Request, words: str) -> None:
    good = request([8], max_len=60)
    limited = replace(method(), drafter=Limited(TABLE, SCRIPTS["always"]))
    running = Session(TableVerifier(TABLE), limited, EngineConfig())
    refused(words, running.add, [replace(good, id="b"), bad])
    assert len(running) == 0  # not even the good one
    check_request(good, TableVerifier(TABLE), limited)
    running.add([good])


class Broken(TableVerifier):
    """Its logits overflow for source 1 from the fourth position on."""

    def __init__(self, bad: float) -> None:
        super().__init__(TABLE)
        self.bad = bad

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        scores = super().score(prefix, draft)
        columns = prefix.lengths[:, None] + torch.arange(scores.logits.shape[1])
        is_bad = (self.keys == 1)[:, None] & (columns >= 4)
        # Only the best token overflows; a NaN spreads to all.
        best = scores.logits.nan_to_num(-9).argmax(-1, keepdim=True)
        bad = torch.full_like(scores.logits, torch.nan)
        if self.bad == torch.inf:
            bad = scores.logits.scatter(-1, best, torch.inf)
        return Scores(torch.where(is_bad[..., None], bad, scores.logits))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("rule", RULES.names())
def test_a_row_whose_logits_are_no_numbers_ends_at_once(rule: str, bad: float) -> None:
    jobs = requests(5, block_size=3, max_len=20, min_len=9, with_scores=True)
    chosen = method("partly", rule)
    healthy = SpeculativeDecoder(TableVerifier(TABLE), chosen, EngineConfig(3)).decode(jobs)
    decoder = SpeculativeDecoder(Broken(bad), chosen, EngineConfig(3))
    events = [event for event in decoder.events(jobs) if event.id == "r1"]
    assert [event.emitted_ids for event in events][-1] == []
    assert sum(len(event.emitted_ids) for event in events) < 7  # no junk up to the longest
    for job, result, expected in zip(jobs, decoder.decode(jobs), healthy, strict=True):
        if job.id == "r1":
            assert result.finish_reason is FinishReason.ERROR
            assert (result.token_ids, result.token_scores) == ([], [])
        else:
            assert result.token_ids == expected.token_ids


@pytest.mark.parametrize("name", ["block", "block:fast, two layers"])
def test_blocks_get_shorter_near_the_end_of_a_drafters_positions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And behind it nothing is drafted; what is decoded is as long as without a drafter."""
    verifier = TableVerifier(TABLE)
    drafter: Any = FACTORIES[name](verifier)
    fixed = property(lambda self: 12, lambda self, value: None)
    monkeypatch.setattr(type(drafter), "max_positions", fixed)
    chosen = replace(method(), drafter=drafter)
    jobs = requests(6, num_forced=lambda i: i % 3, block_size=5, max_len=30)
    results = SpeculativeDecoder(verifier, chosen, EngineConfig(3)).decode(jobs)
    assert [r.token_ids for r in results] == [oracle(TABLE, job) for job in jobs]
    assert max(len(r.token_ids) for r in results) == 30
    for job, result in zip(jobs, results, strict=True):
        place = len(job.forced_ids)
        rounds = zip(result.drafted_per_round, result.emitted_per_round, strict=True)
        for drafted, emitted in rounds:
            assert drafted <= max(12 - place, 0)
            place += emitted
