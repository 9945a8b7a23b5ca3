"""The lanes of the kernels: rows of plain requests live in C++, and a call is as many rounds, or
steps of searches, as the caller can wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from specdec_plugins.decoding.constraints import Constraints, has_own
from specdec_plugins.decoding.contract import SpecialTokens, Verifier
from specdec_plugins.decoding.lane import EngineConfig, Method, RowReport
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.requests import FINISHING, BeamParams, Hypothesis, Request, RowResult
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.decoding.rules.speculative_sampling import SpeculativeSampling
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.schedules.few_rows import FewRows
from specdec_plugins.decoding.stats import PartTimer
from specdec_plugins.decoding.verifier import TransformerVerifier

_PARTS = ("encode", "draft", "verify", "rest")


class _Compiled:
    """Rows that live in C++."""

    def __init__(self, compiled: Any, special: SpecialTokens, timer: PartTimer) -> None:
        self.rows: list[RowResult] = []
        self._compiled = compiled
        self._special = special
        self._timer = timer

    def select(self, keep: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in keep]
        self._compiled.select(list(keep))

    def stop(self, row: int) -> None:
        self._compiled.stop(row)


class NativeLane(_Compiled):
    """Rows whose drafter the kernels have, or none. See lane.h, and `TorchLane`, the slow twin."""

    def __init__(
        self, compiled: Any, special: SpecialTokens, own: Constraints, timer: PartTimer
    ) -> None:
        """own: of the model."""
        super().__init__(compiled, special, timer)
        self._own = own

    def takes(self, request: Request) -> bool:
        return self._special.pad not in request.source_ids  # which has to be masked

    def admit(self, requests: Sequence[Request], now: float) -> None:
        joining = []
        for request in requests:
            p, text = request.params, [self._special.start, *request.forced_ids]
            numbers = (p.block_size, p.max_len, p.min_len, p.beta, p.tau)
            switches = (p.with_scores, p.ends_loops)
            ngram, penalty = p.no_repeat_ngram_size, p.repetition_penalty
            ngram = ngram or self._own.no_repeat_ngram_size
            penalty = self._own.repetition_penalty if penalty == 1.0 else penalty
            drawing = (p.temperature, p.top_k, p.top_p, p.seed)
            told = (request.source_ids, text, *numbers, list(p.banned), *switches)
            joining.append((*told, ngram, penalty, drawing))
            self.rows.append(RowResult(request, list(request.forced_ids), joined_at=now))
        self._compiled.admit(joining, threads=torch.get_num_threads())

    def run(self, most: int) -> list[RowReport]:
        told = self._compiled.run(most, threads=torch.get_num_threads())
        self._timer.add(zip(_PARTS, self._compiled.seconds, strict=True))
        self._compiled.seconds = [0.0] * len(_PARTS)
        return [RowReport(*row) for row in told]


class NativeSearches(_Compiled):
    """Beam searches without phrases, for a verifier that the kernels have whole. See search.h, and
    `hypotheses.Search`, the slow twin.
    """

    def __init__(
        self, compiled: Any, special: SpecialTokens, timer: PartTimer, num_opening: int
    ) -> None:
        """num_opening: as of `hypotheses.Search`."""
        super().__init__(compiled, special, timer)
        self._num_opening = num_opening

    def takes(self, request: Request) -> bool:
        is_plain = not request.required_ids and not has_own(request.params)
        return is_plain and self._special.pad not in request.source_ids

    def admit(self, requests: Sequence[Request], now: float) -> None:
        asked = []
        for request in requests:
            p, beam = request.params, request.params.beam or BeamParams(size=1)
            lengths = (self._special.start, beam.size, p.max_len, p.min_len)
            ranking = (beam.length_penalty, beam.unknown_penalty, FINISHING.index(beam.finishing))
            asked.append((list(request.forced_ids), *lengths, *ranking, self._num_opening))
            self.rows.append(RowResult(request, list(request.forced_ids), joined_at=now))
        sources = [list(request.source_ids) for request in requests]
        with self._timer.part("encode"):
            self._compiled.admit(sources, asked, threads=torch.get_num_threads())

    def search(self, most: int) -> list[tuple[RowResult, list[Hypothesis], int]]:
        """Steps until a search is over, and at most so many: of those that are, the best
        hypotheses, the best first, and their number of steps.
        """
        found = []
        with self._timer.part("verify"):
            over = self._compiled.run(most, threads=torch.get_num_threads())
        for index in over:
            row, told = self.rows[index], self._compiled.results(index)
            num_best = (row.request.params.beam or BeamParams(size=1)).num_best
            best = [Hypothesis(*one) for one in told[:num_best]]
            found.append((row, best, self._compiled.steps(index)))
        return found


def native_searches(
    verifier: Verifier, banned: Collection[int], num_opening: int, timer: PartTimer
) -> NativeSearches | None:
    """Searches that never emit `banned`; None where the verifier needs torch's operations."""
    special = verifier.special
    if type(verifier) is not TransformerVerifier or verifier.network.at_once is None:
        return None
    compiled = ops.native.Searches(
        verifier=verifier.network.at_once, eos=special.eos, unk=special.unk, banned=[*banned]
    )
    return NativeSearches(compiled, special, timer, num_opening)


def native_lane(
    verifier: Verifier, method: Method, config: EngineConfig, timer: PartTimer
) -> NativeLane | None:
    """The kernels' lane, or None where these parts need torch's."""
    drafter, rule, schedule = method.drafter, method.rule, method.schedule
    if type(verifier) is not TransformerVerifier or verifier.network.at_once is None:
        return None
    if not isinstance(rule, (Exact, TopBeta, MixedRule, SpeculativeSampling)):
        return None
    if not isinstance(schedule, (Constant, FewRows)):
        return None
    drafting = None
    if drafter is not None:
        # Of the class itself, as one that inherits it may draft otherwise.
        native = vars(type(drafter)).get("native")
        drafting = native and native(drafter, verifier.network.at_once)
        if drafting is None:
            return None
    special, own = verifier.special, config.constraints
    compiled = ops.native.Lane(
        verifier=verifier.network.at_once,
        drafter=drafting,
        rules=(
            special.eos,
            isinstance(rule, (TopBeta, MixedRule)),
            rule.samples,
            schedule.most_rows if isinstance(schedule, FewRows) else 2**62,
            list(map(list, own.bad_words)),
            *(list(own.banned_first), own.num_opening),
            -1 if own.forced_last is None else own.forced_last,
        ),
    )
    return NativeLane(compiled, special, own, timer)
