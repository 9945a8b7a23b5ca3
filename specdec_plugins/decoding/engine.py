"""The decoding loop: draft, score, judge, extend, commit. Independent of drafters and rules."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch, LateDrafter, collate, to_host
from specdec_plugins.decoding.constraints import FREE, Constraints, constrain
from specdec_plugins.decoding.extend import Extension, extend, fitting, loop_end
from specdec_plugins.decoding.networks.cpu.ops import failed, leading_log_probs
from specdec_plugins.decoding.stats import DecodeStats, PartTimer
from specdec_plugins.decoding.types import (
    AcceptanceRule,
    Case,
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
    Verdict,
    Verifier,
)
from specdec_plugins.errors import require


@dataclass(frozen=True)
class EngineConfig:
    """How a session runs its batch. Only `constraints` can change an output."""

    max_rows: int = 32  # rows that decode at once
    compact_at: float = 0.25  # share of finished rows at which they are dropped and replaced
    constraints: Constraints = FREE  # tokens that are banned, penalised or forced
    measure_time: bool | None = None  # time the parts, which synchronises a GPU; None = CPU only
    clock: Callable[[], float] = time.perf_counter  # seconds; may count CPU time only

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
    """A running batch: rows join, decode at their own pace, and leave.

    Serving, streaming and files all use it: `add` requests at any time, call `step` until it
    has no rows, read the events. One device-to-host copy a round, and one more when rows join.

    Verifier, drafter and schedule belong to this session until it is closed;
    `SpeculativeDecoder.open` lends them.
    """

    _num_own = 1  # tokens that the verifier adds to each draft

    def __init__(
        self,
        verifier: Verifier,
        method: Method,
        config: EngineConfig,
        on_close: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """on_close: called once, when the parts are empty again."""
        self.stats = DecodeStats()
        self.verifier = verifier
        self.method = method
        self._config = config
        self._on_close = on_close
        self._closed = False
        self._waiting: deque[Request] = deque()
        self._timer = PartTimer(verifier.device, config.measure_time, config.clock)
        self.stats.seconds = self._timer.seconds
        self._parts: list[Stateful] = [verifier, method.schedule]
        self._drafter: LateDrafter | None = None
        if method.drafter is not None:
            self._drafter = LateDrafter(method.drafter, verifier.special)
            self._parts.append(self._drafter)
        self._batch = Batch.empty(verifier.device)

    def __len__(self) -> int:
        """Unfinished requests, waiting ones included."""
        return len(self._waiting) + sum(not row.finished for row in self._batch.rows)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests. Raises UserError, and queues none, where one cannot be decoded."""
        requests = list(requests)
        present = [r.id for r in (*requests, *self._waiting)]
        present += [row.id for row in self._batch.rows if not row.finished]
        require(len(set(present)) == len(present), "Two requests have the same id.")
        for request in requests:
            check_request(request, self.verifier, self.method)
        self._waiting.extend(requests)

    @torch.inference_mode()
    def cancel(self, ids: Collection[str]) -> list[RowEvent]:
        """Drop these requests, waiting or decoding; rows are freed at the next compaction."""
        dropped = [r for r in self._waiting if r.id in ids]
        self._waiting = deque(r for r in self._waiting if r.id not in ids)
        results = [RowResult(r, list(r.forced_ids)) for r in dropped]
        for index, row in enumerate(self._batch.rows):
            if row.id in ids and not row.finished:
                self._stop(index)
                results.append(row)
        for result in results:
            result.finish_reason = FinishReason.CANCELLED
        return [RowEvent(result.id, [], 0, [], result) for result in results]

    def _stop(self, index: int) -> None:
        """End a row between two rounds."""
        self._batch.rows[index].budget = 0
        self._batch.prefix.active[index] = False
        self._batch.budget[index] = 0

    @torch.inference_mode()
    def close(self) -> None:
        """Discard what is left and hand the emptied parts back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._batch = self._emptied()
        self._on_close(self)

    @torch.inference_mode()
    def step(self) -> list[RowEvent]:
        """One round for every active row; an empty list when nothing is left to do."""
        assert not self._closed, "step after close"
        self._refill(self._config.clock())
        if not self._batch.rows:
            return []
        events = self._round()
        now = self._config.clock()
        for event in events:
            if event.result is not None:
                event.result.seconds = now - event.result.joined_at
        return events

    def _round(self) -> list[RowEvent]:
        draft = self._propose()
        with self._timer.part("verify"):
            scores = self.verifier.score(self._batch.prefix, draft)
        with self._timer.part("rest"):
            return self._report(draft, *self._conclude(draft, scores))

    def run(self) -> Iterator[RowEvent]:
        """Step until everything is decoded, yielding events as they happen."""
        while len(self):
            yield from self.step()

    def _refill(self, now: float) -> None:
        """Drop finished rows once there are enough; admit waiting requests if there is room."""
        num_rows = len(self._batch.rows)
        num_finished = sum(row.finished for row in self._batch.rows)
        if num_finished >= max(1.0, self._config.compact_at * num_rows):
            with self._timer.part("rest"):
                self._compact()
        room = self._config.max_rows - len(self._batch.rows)
        joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if joining:
            with self._timer.part("encode"):
                self._admit(joining, now)

    def _compact(self) -> None:
        keep = [i for i, row in enumerate(self._batch.rows) if not row.finished]
        if not keep:
            self._batch = self._emptied()
            return
        index = torch.tensor(keep, device=self.verifier.device)
        self._batch = self._batch.select(keep, index)
        for part in self._parts:
            part.select(index)

    def _emptied(self) -> Batch:
        """An empty batch; also empties the parts."""
        device = self.verifier.device
        for part in self._parts:
            part.select(torch.zeros(0, dtype=torch.int64, device=device))
        return Batch.empty(device)

    def _admit(self, requests: Sequence[Request], now: float) -> None:
        special = self.verifier.special
        source = collate(requests, special.pad, special.start, self.verifier.device)
        for part in self._parts:
            part.admit(source)
        self._batch = self._batch.append(Batch.open(requests, source, now))
        self._plan_budget()
        for row, budget in zip(self._batch.rows, self._batch.budget.tolist(), strict=True):
            row.budget = budget

    def _plan_budget(self) -> None:
        """Set the budget of the next round: within all limits, 0 for finished rows."""
        batch, drafter = self._batch, self.method.drafter
        wanted = None if drafter is None else self._wanted_budget()
        if drafter is None or wanted is None:
            batch.budget = torch.zeros_like(batch.params.block_size)
            return
        limits = (batch.params.max_len, self._num_own, drafter.max_positions)
        batch.budget = fitting(wanted, batch.prefix, *limits)

    def _wanted_budget(self) -> Tensor | None:
        """The schedule's budget, except for rows whose text would then depend on other rows."""
        params, samples = self._batch.params, self.method.rule.samples
        wanted = self.method.schedule.next_budget(params)
        if not self.method.schedule.follows_load or params.all_greedy(samples):
            return wanted
        if wanted is None:
            wanted = torch.zeros_like(params.block_size)
        return torch.where(params.greedy_mask(samples), wanted, params.block_size)

    def _propose(self) -> Draft:
        batch, drafter = self._batch, self._drafter
        width = max(row.budget for row in batch.rows)
        if drafter is None or width == 0:
            return Draft.empty(len(batch.rows), self.verifier.device)
        if drafter.num_waiting:
            with self._timer.part("encode"):
                drafter.join(batch)
        with self._timer.part("draft"):
            return drafter.propose(batch, width)

    def _conclude(self, draft: Draft, scores: Scores) -> tuple[Extension, Tensor, Tensor | None]:
        """Judge, extend, commit, and plan the next round, without synchronising the host.

        Returns what was appended, which rows failed, [B] bool, and the log-probabilities of what
        was appended, [B, K+1] float64, if a row asks for them.
        """
        batch, eos = self._batch, self.verifier.special.eos
        verdict, has_failed = self._judge(draft, scores)
        batch.prefix.active ^= has_failed  # only active rows fail
        extension = extend(batch.prefix, draft, verdict, batch.params, eos)
        log_probs = self._log_probs(scores, extension)
        for part in self._parts:
            part.commit(batch.prefix, Round(draft, scores, verdict))
        self._plan_budget()
        return extension, has_failed, log_probs

    def _log_probs(self, scores: Scores, extension: Extension) -> Tensor | None:
        if not any(p.with_scores for p in self._batch.params.requested):
            return None
        return leading_log_probs(scores.logits, extension.tokens, extension.lengths)

    def _judge(self, draft: Draft, scores: Scores) -> tuple[Verdict, Tensor]:
        """The rule's verdict, and the rows that failed as their logits are not finite, [B] bool."""
        batch = self._batch
        eos, constraints = self.verifier.special.eos, self._config.constraints
        constrain(scores.logits, batch.prefix, draft, batch.params, eos, constraints)
        case = Case(draft, scores, batch.params, batch.random, batch.prefix.lengths)
        verdict = self.method.rule.judge(case)
        return verdict, failed(scores.logits, verdict.num_accepted, batch.prefix.active)

    def _report(
        self, draft: Draft, extension: Extension, failed: Tensor, log_probs: Tensor | None
    ) -> list[RowEvent]:
        """Copy the round to the host, once, and turn it into events."""
        batch, events = self._batch, list[RowEvent]()
        told = [draft.tokens, draft.lengths, extension.tokens, extension.lengths]
        told += [extension.num_accepted, extension.ended, extension.full, failed]
        told += [batch.budget, batch.prefix.lengths, *([] if log_probs is None else [log_probs])]
        for index, (row, *values) in enumerate(zip(batch.rows, *to_host(told), strict=True)):
            if row.finished:
                continue
            tokens, drafted, new, emitted, accepted, ended, full, broken, *values = values
            row.budget, row.length, *scores = values
            if emitted == 0 and not broken:
                self._refuse_standstill(row)
            num, reason = self._reason(row, new[:emitted], ended, full)
            if reason is FinishReason.REPETITION:
                self._stop(index)
            reason = FinishReason.ERROR if broken else reason
            own = scores[0][:num] if scores and row.request.params.with_scores else []
            result = None if reason is None else row
            event = RowEvent(row.id, tokens[:drafted], min(accepted, num), new[:num], result, own)
            row.observe(event)
            row.finish_reason = reason
            if broken:
                row.token_ids, row.token_scores = [], []
            self.stats.observe(event)
            events.append(event)
        batch.prefix.width = max(row.length for row in batch.rows)
        return events

    def _reason(
        self, row: RowResult, emitted_ids: list[int], ended: bool, full: bool
    ) -> tuple[int, FinishReason | None]:
        """How many of the emitted tokens count, and why the row ends with them, if it does."""
        begin, asked = len(row.token_ids), row.request.params
        if asked.ends_loops and (stop := loop_end([*row.token_ids, *emitted_ids], begin)):
            return stop - begin, FinishReason.REPETITION
        # The limit may force the end of the sentence.
        has_last = self._config.constraints.forced_last is not None
        if full or (ended and has_last and row.length > asked.max_len):
            return len(emitted_ids), FinishReason.LENGTH
        return len(emitted_ids), FinishReason.EOS if ended else None

    def _refuse_standstill(self, row: RowResult) -> None:
        raise RuntimeError(f"request {row.id!r} made no progress in a round")


class SpeculativeDecoder:
    """Decodes requests for any number of concurrent callers, each in its own session.

    Weights are shared. The next session reuses the emptied parts of a closed one, and with them
    what the schedule has learnt. Thread-safe.
    """

    new_session: ClassVar[Callable[..., Session]] = Session

    def __init__(
        self, verifier: Verifier, method: Method, config: EngineConfig | None = None
    ) -> None:
        """Sessions decode with `fresh` instances of the parts, never with the parts themselves."""
        self.verifier = verifier
        self.method = method
        self.config = config or EngineConfig()
        self.stats = DecodeStats()  # of all closed sessions
        self._lock = threading.Lock()
        self._idle: list[tuple[Verifier, Method]] = []

    def open(self) -> Session:
        """A session for one caller; its `close` returns the parts."""
        with self._lock:
            verifier, method = self._idle.pop() if self._idle else self._fresh()
        return self.new_session(verifier, method, self.config, self._take_back)

    def _fresh(self) -> tuple[Verifier, Method]:
        verifier, drafter = self.verifier.fresh(), self.method.drafter
        own = None if drafter is None else drafter.fresh(verifier)
        return verifier, Method(own, self.method.rule, self.method.schedule.fresh())

    def _take_back(self, session: Session) -> None:
        with self._lock:
            self._idle.append((session.verifier, session.method))
            self.stats += session.stats

    @contextmanager
    def session(self, requests: Sequence[Request]) -> Iterator[Session]:
        """A session with these requests, closed on any exit."""
        session = self.open()
        try:
            session.add(requests)
            yield session
        finally:
            session.close()

    def events(self, requests: Sequence[Request]) -> Iterator[RowEvent]:
        """Events round by round, until all requests are decoded or the caller stops.

        Raises UserError where two requests have the same id, or one cannot be decoded as asked.
        """
        with self.session(requests) as session:
            yield from session.run()

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        """Each result as it is finished."""
        yield from (event.result for event in self.events(requests) if event.result)

    def decode(self, requests: Sequence[Request]) -> list[RowResult]:
        """Results in the order of the requests, whatever order they finish in."""
        results = {result.id: result for result in self.run(requests)}
        return [results[r.id] for r in requests]


def check_request(request: Request, verifier: Verifier, method: Method) -> None:
    """Raises UserError where the parts cannot do what the request asks."""
    params, drafter = request.params, method.drafter
    _check_source(request, verifier)
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
            f"The drafter drafts at most {drafter.max_block_size} tokens; "
            f"ask for a block size of at most that, not {params.block_size}.",
        )
    if not method.rule.samples:
        plain = DecodeParams()
        require(
            (params.temperature, params.top_k, params.top_p)
            == (plain.temperature, plain.top_k, plain.top_p),
            "temperature, top_k and top_p need a rule that samples; this one does not.",
        )


def _check_source(request: Request, verifier: Verifier) -> None:
    longest, size = verifier.max_source_positions, verifier.source_vocab_size
    require(
        len(request.source_ids) <= longest,
        f"Request {request.id!r}: its source has {len(request.source_ids)} tokens, and the model "
        f"has positions for {longest}; split it.",
    )
    require(
        all(0 <= token < size for token in request.source_ids),
        f"Request {request.id!r}: its source must hold token ids below {size}.",
    )
