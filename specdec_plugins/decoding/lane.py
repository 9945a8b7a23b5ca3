"""Where rows decode: what a session asks of a lane, and the lane of torch's operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch, LateDrafter, collate, to_host
from specdec_plugins.decoding.constraints import FREE, Constraints, constrain
from specdec_plugins.decoding.contract import (
    AcceptanceRule,
    Case,
    Draft,
    Drafter,
    DraftSchedule,
    Round,
    Scores,
    Stateful,
    Verdict,
    Verifier,
)
from specdec_plugins.decoding.extend import Extension, extend, fitting, loop_end
from specdec_plugins.decoding.networks.cpu.ops import failed, leading_log_probs, on_device
from specdec_plugins.decoding.requests import Request, RowResult
from specdec_plugins.decoding.stats import PartTimer
from specdec_plugins.errors import require


@dataclass(frozen=True)
class EngineConfig:
    """How a session runs its batch. Only `constraints` can change an output."""

    max_rows: int = 32  # rows that decode at once
    compact_at: float = 0.25  # share of finished rows, 0..1, at which they are dropped and replaced
    constraints: Constraints = FREE  # tokens that are banned, penalised or forced
    static: bool = False  # rounds have fixed shapes, so that a GPU records each once: static.py
    measure_time: bool | None = None  # time the parts, which synchronises a GPU; None = CPU only
    clock: Callable[[], float] = time.perf_counter  # seconds; may count CPU time only

    def __post_init__(self) -> None:
        require(self.max_rows >= 1, f"max_rows must be 1 or more, not {self.max_rows}.")


@dataclass(frozen=True)
class Method:
    """How to speculate: the three parts that a user chooses."""

    drafter: Drafter | None  # None = every round is a plain autoregressive step
    rule: AcceptanceRule
    schedule: DraftSchedule


class Ending(IntEnum):
    """How a round left a row; the numbers are those of `Report` in the kernels' lane.h."""

    NONE = 0
    ENDED = 1  # with eos
    FULL = 2  # it holds max_len tokens
    FAILED = 3  # its logits are not finite
    LOOPED = 4  # it repeats itself: see `loop_end`


class RowReport(NamedTuple):
    """What one round did to one row, in the order of lane.h."""

    row: int  # its index in the lane
    draft_ids: list[int]
    emitted_ids: list[int]
    num_accepted: int  # drafted tokens among the emitted ones
    ending: int  # an `Ending`
    token_scores: list[float]  # log-probabilities of the emitted tokens, if asked for
    length: int  # tokens of the row now, start token included


class Lane(Protocol):
    """Rows at their own pace. Several lanes may serve one session."""

    @property
    def rows(self) -> list[RowResult]:
        """Finished ones included, until they are dropped."""

    def takes(self, request: Request) -> bool:
        """True if it can decode this request."""

    def admit(self, requests: Sequence[Request], now: float) -> None:
        """New rows, after the present ones; `now` by the session's clock."""

    def select(self, keep: Sequence[int]) -> None:
        """Keep these rows, in that order; none resets any state."""

    def stop(self, row: int) -> None:
        """Decode this row no further."""

    def run(self, most: int) -> list[RowReport]:
        """Rounds of the unfinished rows, one at least, until a row ends, and at most so many."""


class TorchLane:
    """Any parts on any device: draft, score, judge, extend, commit. Runs one round at a time.

    Sessions call it outside of inference mode. One device-to-host copy a round, and one more
    when rows join.
    """

    _num_own = 1  # tokens that the verifier adds to each draft

    def __init__(
        self, verifier: Verifier, method: Method, config: EngineConfig, timer: PartTimer
    ) -> None:
        self.verifier = verifier
        self.method = method
        self._config = config
        self._timer = timer
        self._parts: list[Stateful] = [verifier, method.schedule]
        self._drafter: LateDrafter | None = None
        if method.drafter is not None:
            self._drafter = LateDrafter(method.drafter, verifier.special)
            self._parts.append(self._drafter)
        self.batch = Batch.empty(verifier.device)
        self._is_empty = True

    @property
    def rows(self) -> list[RowResult]:
        return self.batch.rows

    def takes(self, request: Request) -> bool:
        return True

    @torch.inference_mode()
    def admit(self, requests: Sequence[Request], now: float) -> None:
        special, self._is_empty = self.verifier.special, False
        with self._timer.part("encode"):
            source = collate(requests, special.pad, special.start, self.verifier.device)
            for part in self._parts:
                part.admit(source)
            self.batch = self.batch.append(Batch.open(requests, source, now))
            self._narrow()
            self._plan_budget()
            if self._drafter is not None:
                for row, budget in zip(self.batch.rows, self.batch.budget.tolist(), strict=True):
                    row.budget = budget

    def select(self, keep: Sequence[int]) -> None:
        if not self._is_empty:  # emptying parts that hold nothing takes a tenth of a millisecond
            self._select(keep)
            self._is_empty = not keep

    @torch.inference_mode()
    def _select(self, keep: Sequence[int]) -> None:
        device = self.verifier.device
        index = on_device(keep, device, torch.int64)
        self.batch = self.batch.select(keep, index) if keep else Batch.empty(device)
        for part in self._parts:
            part.select(index)
        self._narrow()

    def _narrow(self) -> None:
        """Tell the parts what the host knows of the sources; on a CPU they look themselves."""
        if self.verifier.device.type == "cpu":
            return
        pad, sources = self.verifier.special.pad, [r.request.source_ids for r in self.batch.rows]
        longest = max(map(len, sources), default=0)
        is_padded = any(len(ids) < longest or pad in ids for ids in sources)
        for part in self._parts:
            part.narrow(longest, is_padded)

    @torch.inference_mode()
    def stop(self, row: int) -> None:
        self.batch.rows[row].budget = 0
        self.batch.prefix.active[row] = False
        self.batch.budget[row] = 0

    @torch.inference_mode()
    def run(self, most: int) -> list[RowReport]:
        told = self._round()
        with self._timer.part("rest"):
            return self._report(to_host(told))

    def _round(self) -> list[Tensor]:
        """A round of all rows, without synchronising the host; returns what to tell it."""
        draft = self._propose()
        with self._timer.part("verify"):
            scores = self.verifier.score(self.batch.prefix, draft)
        with self._timer.part("rest"):
            return self._conclude(draft, scores)

    def _plan_budget(self) -> None:
        """Set the budget of the next round: within all limits, 0 for finished rows."""
        batch, drafter = self.batch, self.method.drafter
        wanted = None if drafter is None else self._wanted_budget()
        if drafter is None or wanted is None:
            batch.budget = torch.zeros_like(batch.params.block_size)
            return
        limits = (batch.params.max_len, self._num_own, drafter.max_positions)
        batch.budget = fitting(wanted, batch.prefix, *limits)

    def _wanted_budget(self) -> Tensor | None:
        """The schedule's budget, except for rows whose text would then depend on other rows."""
        params, samples = self.batch.params, self.method.rule.samples
        wanted = self.method.schedule.next_budget(params)
        if not self.method.schedule.follows_load or params.all_greedy(samples):
            return wanted
        if wanted is None:
            wanted = torch.zeros_like(params.block_size)
        return torch.where(params.greedy_mask(samples), wanted, params.block_size)

    def _propose(self) -> Draft:
        batch, drafter, width = self.batch, self._drafter, self._width()
        if drafter is None or width == 0:
            return Draft.empty(len(batch.budget), self.verifier.device)
        if drafter.num_waiting:
            with self._timer.part("encode"):
                drafter.join(batch)
        with self._timer.part("draft"):
            return drafter.propose(batch, width)

    def _width(self) -> int:
        """Columns of the next draft."""
        return max(row.budget for row in self.batch.rows)

    def _conclude(self, draft: Draft, scores: Scores) -> list[Tensor]:
        """Judge, extend, commit, and plan the next round; returns what `_report` reads."""
        batch, eos = self.batch, self.verifier.special.eos
        verdict, has_failed = self._judge(draft, scores)
        batch.prefix.active ^= has_failed  # only active rows fail
        extension = extend(batch.prefix, draft, verdict, batch.params, eos)
        log_probs = self._log_probs(scores, extension)
        for part in self._parts:
            part.commit(batch.prefix, Round(draft, scores, verdict))
        self._plan_budget()
        told = [draft.tokens, draft.lengths, extension.tokens, extension.lengths]
        told += [extension.num_accepted, extension.ended, extension.full, has_failed]
        told += [batch.budget, batch.prefix.lengths]
        return told if log_probs is None else [*told, log_probs]

    def _log_probs(self, scores: Scores, extension: Extension) -> Tensor | None:
        if not any(p.with_scores for p in self.batch.params.requested):
            return None
        return leading_log_probs(scores.logits, extension.tokens, extension.lengths)

    def _judge(self, draft: Draft, scores: Scores) -> tuple[Verdict, Tensor]:
        """The rule's verdict, and the rows that failed as their logits are not finite, [B] bool."""
        batch = self.batch
        eos, constraints = self.verifier.special.eos, self._config.constraints
        constrain(scores.logits, batch.prefix, draft, batch.params, eos, constraints)
        case = Case(draft, scores, batch.params, batch.random, batch.prefix.lengths)
        verdict = self.method.rule.judge(case)
        return verdict, failed(scores.logits, verdict.num_accepted, batch.prefix.active)

    def _report(self, told: list[list[Any]]) -> list[RowReport]:
        """What a round did to each row, of what it told."""
        batch, reports = self.batch, list[RowReport]()
        for index, (row, *values) in enumerate(zip(batch.rows, *told, strict=True)):
            if row.finished:
                continue
            tokens, drafted, new, emitted, accepted, ended, full, broken, *values = values
            row.budget, row.length, *scores = values
            ending = Ending(Ending.ENDED * ended + Ending.FULL * full + Ending.FAILED * broken)
            begin, asked = len(row.token_ids), row.request.params
            if asked.ends_loops and (stop := loop_end([*row.token_ids, *new[:emitted]], begin)):
                emitted, ending = stop - begin, Ending.LOOPED
                self.stop(index)
            own = scores[0][:emitted] if scores and asked.with_scores else []
            told_ids, accepted = (tokens[:drafted], new[:emitted]), min(accepted, emitted)
            reports.append(RowReport(index, *told_ids, accepted, ending, own, row.length))
        batch.prefix.width = max(row.length for row in batch.rows)
        return reports
