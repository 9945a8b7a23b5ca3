"""The running batch: draft, score, judge, extend, commit. Names no drafter and no rule."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch, collate
from specdec_plugins.decoding.constraints import strike
from specdec_plugins.decoding.extend import Extension, extend
from specdec_plugins.decoding.latecomers import Latecomers
from specdec_plugins.decoding.networks.cpu.ops import leading_log_prob
from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from specdec_plugins.decoding.types import (
    AcceptanceRule,
    DecodeParams,
    Draft,
    Drafter,
    DraftSchedule,
    FinishReason,
    Request,
    Round,
    RowEvent,
    RowResult,
    Scores,
    Stateful,
    Verifier,
)
from specdec_plugins.errors import require


@dataclass(frozen=True)
class EngineConfig:
    """How a session runs its batch. Only `ban_pad` can change an output."""

    max_rows: int = 32  # rows that decode at once
    compact_at: float = 0.25  # share of finished rows from which they are dropped and refilled
    ban_pad: bool = False  # never emit padding, as fairseq's own search never does
    with_scores: bool = False  # sum the verifier's log-probabilities of what is emitted
    measure_time: bool = True  # seconds by part; on an accelerator this synchronises every part
    clock: Callable[[], float] = time.perf_counter  # seconds, for that; may count CPU time only

    def __post_init__(self) -> None:
        require(self.max_rows >= 1, f"max_rows must be 1 or more, not {self.max_rows}.")
        require(
            0 < self.compact_at <= 1,
            f"compact_at must be above 0 and at most 1, not {self.compact_at}.",
        )


@dataclass(frozen=True)
class Method:
    """How to speculate: the three parts that a user chooses."""

    drafter: Drafter | None  # None = every round is a plain autoregressive step
    rule: AcceptanceRule
    schedule: DraftSchedule


class Session:
    """A batch of rows that join, decode each at its own pace, and leave.

    Serving, streaming and files all drive it: `add` requests at any time, call `step` until it
    has no rows, read the events. One device-to-host copy a round, and one more when rows join.
    """

    def __init__(self, verifier: Verifier, method: Method, config: EngineConfig) -> None:
        self.stats = DecodeStats()
        self._verifier = verifier
        self._method = method
        self._config = config
        self._waiting: deque[Request] = deque()
        self._timer = PartTimer(verifier.device, config.measure_time, config.clock)
        self.stats.seconds = self._timer.seconds
        self._parts: list[Stateful] = [verifier, method.schedule]
        self._drafter: Latecomers | None = None
        if method.drafter is not None:
            self._drafter = Latecomers(method.drafter, verifier.special)
            self._parts.append(self._drafter)
        self._batch = self._emptied()

    def __len__(self) -> int:
        """Requests that are not finished, waiting ones included."""
        return len(self._waiting) + sum(not row.finished for row in self._batch.rows)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests. Raises UserError, and queues none, where one cannot be decoded."""
        requests = list(requests)
        present = [r.id for r in (*requests, *self._waiting)]
        present += [row.request.id for row in self._batch.rows if not row.finished]
        require(len(set(present)) == len(present), "Two requests have the same id.")
        for request in requests:
            check_request(request, self._verifier, self._method)
        self._waiting.extend(requests)

    @torch.inference_mode()
    def cancel(self, ids: Collection[str]) -> list[RowEvent]:
        """Drop these requests, wherever they are; rows are freed at the next boundary."""
        dropped = [r for r in self._waiting if r.id in ids]
        self._waiting = deque(r for r in self._waiting if r.id not in ids)
        results = [RowResult(r.id, list(r.forced_ids)) for r in dropped]
        for index, row in enumerate(self._batch.rows):
            if row.request.id in ids and not row.finished:
                row.finished, row.budget = True, 0
                self._batch.prefix.active[index] = False
                self._batch.budget[index] = 0
                results.append(row.result)
        for result in results:
            result.finish_reason = FinishReason.CANCELLED
        return [RowEvent(result.id, [], 0, [], result) for result in results]

    @torch.inference_mode()
    def step(self) -> list[RowEvent]:
        """One round for every active row; an empty list when nothing is left to do."""
        self._refill()
        if not self._batch.rows:
            return []
        before = self._timer.total("draft", "verify")
        draft = self._propose()
        with self._timer.part("verify"):
            scores = self._verifier.score(self._batch.prefix, draft)
        seconds = self._timer.total("draft", "verify") - before
        with self._timer.part("rest"):
            extension = self._conclude(draft, scores, seconds or None)
            return self._report(draft, extension)

    def run(self) -> Iterator[RowEvent]:
        """Step until everything is decoded, yielding events as they happen."""
        while len(self):
            yield from self.step()

    def _refill(self) -> None:
        """At a bucket boundary, drop finished rows; where there is room, admit waiting ones."""
        num_rows = len(self._batch.rows)
        num_finished = sum(row.finished for row in self._batch.rows)
        if num_finished >= max(1.0, self._config.compact_at * num_rows):
            with self._timer.part("rest"):
                self._compact()
        room = self._config.max_rows - len(self._batch.rows)
        joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if joining:
            with self._timer.part("encode"):
                self._admit(joining)

    def _compact(self) -> None:
        keep = [i for i, row in enumerate(self._batch.rows) if not row.finished]
        if not keep:
            self._batch = self._emptied()
            return
        index = torch.tensor(keep, device=self._verifier.device)
        self._batch = self._batch.select(keep, index)
        for part in self._parts:
            part.select(index)

    def _emptied(self) -> Batch:
        """An empty batch; whatever the parts still hold of an earlier one is dropped."""
        device = self._verifier.device
        for part in self._parts:
            part.select(torch.zeros(0, dtype=torch.int64, device=device))
        return Batch.empty(device)

    def _admit(self, requests: Sequence[Request]) -> None:
        special = self._verifier.special
        source = collate(requests, special.pad, special.start, self._verifier.device)
        for part in self._parts:
            part.admit(source)
        self._batch = self._batch.append(Batch.open(requests, source))
        self._plan_budget()
        for row, budget in zip(self._batch.rows, self._batch.budget.tolist(), strict=True):
            row.budget = budget

    def _plan_budget(self) -> None:
        """What the next round drafts: never past max_len, nothing for finished rows."""
        batch, wanted = self._batch, None
        if self._method.drafter is not None:
            wanted = self._wanted_budget()
        if wanted is None:
            batch.budget = torch.zeros_like(batch.params.block_size)
            return
        # `lengths` counts the start token, and the verifier adds a token of its own to each draft.
        room = batch.params.max_len - batch.prefix.lengths
        batch.budget = torch.minimum(wanted, room).clamp(min=0) * batch.prefix.active

    def _wanted_budget(self) -> Tensor | None:
        """What the schedule asks for, but for rows whose text would then follow a clock."""
        params, schedule = self._batch.params, self._method.schedule
        samples = self._method.rule.samples
        wanted = schedule.next_budget(params)
        is_free = params.all_greedy_if_sampled if samples else params.all_greedy
        if is_free or not schedule.follows_clock:
            return wanted
        if wanted is None:
            wanted = torch.zeros_like(params.block_size)
        return torch.where(params.greedy_mask(samples), wanted, params.block_size)

    def _propose(self) -> Draft:
        batch, drafter = self._batch, self._drafter
        width = max(row.budget for row in batch.rows)
        if drafter is None or width == 0:
            return Draft.empty(len(batch.rows), self._verifier.device)
        if drafter.num_waiting:
            with self._timer.part("encode"):
                drafter.join(batch)
        with self._timer.part("draft"):
            return drafter.propose(batch, width)

    def _conclude(self, draft: Draft, scores: Scores, seconds: float | None) -> Extension:
        """Judge, extend, commit, and plan the next round; the host waits for nothing here."""
        batch, special = self._batch, self._verifier.special
        first = batch.prefix.lengths.clone()
        if self._config.ban_pad or any(row.request.params.min_len for row in batch.rows):
            strike(scores.logits, first, batch.params.min_len, special, self._config.ban_pad)
        verdict = self._method.rule.judge(draft, scores, batch.params, batch.random, first)
        extension = extend(batch.prefix, draft, verdict, batch.params, special.eos)
        if self._config.with_scores:
            emitted = (extension.tokens, extension.lengths)
            batch.log_probs += leading_log_prob(scores.logits, *emitted)
        last = Round(draft, scores, verdict, seconds)
        for part in self._parts:
            part.commit(batch.prefix, last)
        self._plan_budget()
        return extension

    def _report(self, draft: Draft, extension: Extension) -> list[RowEvent]:
        """The round's one copy to the host, and what it says."""
        batch = self._batch
        counts = [draft.lengths, extension.num_accepted, extension.lengths, extension.ended]
        counts += [extension.full, batch.budget, batch.prefix.lengths]
        # The float64 sums ride along bit by bit, so that it stays one copy.
        counts.append(batch.log_probs.view(torch.int64))
        host = torch.cat([torch.stack(counts, 1), draft.tokens, extension.tokens], 1).cpu()
        log_probs = host[:, len(counts) - 1].contiguous().view(torch.float64).tolist()
        new_at = len(counts) + draft.tokens.shape[1]
        events = []
        for row, log_prob, values in zip(batch.rows, log_probs, host.tolist(), strict=True):
            if row.finished:
                continue
            drafted, accepted, emitted, ended, full, row.budget, row.length = values[:7]
            if emitted == 0:
                raise RuntimeError(f"request {row.request.id!r} made no progress in a round")
            draft_ids = values[len(counts) : len(counts) + drafted]
            row.result.observe(drafted, accepted, values[new_at : new_at + emitted])
            if ended or full:
                row.finished = True
                row.result.finish_reason = FinishReason.EOS if ended else FinishReason.LENGTH
                row.result.score = log_prob if self._config.with_scores else None
            events.append(
                RowEvent(
                    id=row.request.id,
                    draft_ids=draft_ids,
                    num_accepted=accepted,
                    emitted_ids=values[new_at : new_at + emitted],
                    result=row.result if row.finished else None,
                )
            )
            self.stats.observe(events[-1])
        batch.prefix.width = max(row.length for row in batch.rows)
        return events


class SpeculativeDecoder:
    """Decodes lists of requests: what a program that is no server wants."""

    def __init__(
        self, verifier: Verifier, method: Method, config: EngineConfig | None = None
    ) -> None:
        self.verifier = verifier
        self.method = method
        self.config = config or EngineConfig()
        self.stats = DecodeStats()  # of everything decoded so far

    def decode(self, requests: Sequence[Request]) -> list[RowResult]:
        """Results in the order of the requests, whatever order they finish in.

        Raises UserError where two requests have one id, or one cannot be decoded as asked.
        """
        results: dict[str, RowResult] = {}
        session = Session(self.verifier, self.method, self.config)
        session.add(requests)
        for event in session.run():
            if event.result is not None:
                results[event.id] = event.result
        self.stats += session.stats
        return [results[r.id] for r in requests]


def check_request(request: Request, verifier: Verifier, method: Method) -> None:
    """Raises UserError where the parts cannot do what the request asks."""
    params, drafter = request.params, method.drafter
    longest = verifier.max_target_positions
    require(
        params.max_len <= longest,
        f"max_len {params.max_len} is more than the verifier's {longest} target positions; "
        "ask for a shorter output.",
    )
    require(
        all(0 <= t < verifier.vocab_size and t != verifier.special.eos for t in request.forced_ids),
        f"Request {request.id!r}: its target prefix must hold token ids below "
        f"{verifier.vocab_size} and no end of sentence ({verifier.special.eos}).",
    )
    if drafter is not None and drafter.max_block_size is not None:
        require(
            params.block_size <= drafter.max_block_size,
            f"The drafter was trained for blocks of {drafter.max_block_size} tokens; "
            f"ask for a block size of at most that, not {params.block_size}.",
        )
    if not method.rule.samples:
        plain = DecodeParams()
        require(
            (params.temperature, params.top_k, params.top_p)
            == (plain.temperature, plain.top_k, plain.top_p),
            "temperature, top_k and top_p need a rule that samples; this one does not.",
        )
