"""The server's expected answers, and whether its counts agree with those of its clients.

The right answer is the plain decoding of every text, in this process.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from benchmarks.serving.traffic import Answer, Tally
from specdec_plugins.app.exactness import NEAR_TIE, logit_gap, next_logits
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import TextPlan, make_plan, translate_texts
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ServerSettings

_PLAIN = Parameters(use_drafter=False)

_METRICS = ("sentences", "tokens", "rounds", "drafted_tokens", "accepted_tokens")
_KINDS = {400: "bad_request", 413: "too_large", 429: "overloaded", 499: "cancelled"}


class Reference:
    """Right answers, decoded one after the other: also the loop to compare a server with."""

    def __init__(self, model: ServedModel, texts: Sequence[str]) -> None:
        self.model = model
        self.texts = texts
        self.answers: list[str] = []
        self.num_tokens: list[int] = []  # of each text, ends of sentences included
        begin = time.perf_counter()
        for text in texts:
            before = model.decoder.stats.emitted
            answers = translate_texts([text], _PLAIN, model, ServerSettings())
            self.answers += [answer.text for answer in answers]
            self.num_tokens.append(model.decoder.stats.emitted - before)
        self.seconds = time.perf_counter() - begin
        self.num_sentences = [len(self._plan(text).requests) for text in texts]

    @property
    def tokens_per_second(self) -> float:
        return sum(self.num_tokens) / self.seconds

    def compare(self, tally: Tally) -> tuple[list[str], list[str]]:
        """Answers that differ from the plain decoding: near-ties, and faults."""
        ties: list[str] = []
        faults: list[str] = []
        for index in sorted({one.index for one in tally.answers if not self.is_right(one)}):
            gap = self._gap(index)
            said = f"text {index + 1}: differs; smallest gap between two best logits {gap:.1e}"
            (ties if gap < NEAR_TIE else faults).append(said)
        if len(tally.answers) != tally.num_good:
            faults.append(f"{tally.num_good} good requests, {len(tally.answers)} answers")
        return ties, faults

    def is_right(self, answer: Answer) -> bool:
        return answer.text == self.answers[answer.index]

    def _gap(self, index: int) -> float:
        """The smallest gap of the two best logits along the plain decoding of a text."""
        plan = self._plan(self.texts[index])
        decoded = self.model.decoder.decode(plan.requests)
        gaps = (
            logit_gap(next_logits(self.model.decoder.verifier, request, result.token_ids[:end]))
            for request, result in zip(plan.requests, decoded, strict=True)
            for end in range(len(result.token_ids))
        )
        return min(gaps, default=math.inf)

    def _plan(self, text: str) -> TextPlan:
        return make_plan([text], _PLAIN, self.model, ServerSettings())


def balance(
    reference: Reference,
    tally: Tally,
    change: Mapping[str, float],
    logged: Mapping[str, Sequence[int]],
) -> tuple[list[str], list[str]]:
    """Tokens, requests and failures as both sides count them, and the disagreements.

    change: of the server's metrics in this run. logged: the log's status codes of its requests.
    The clients' count is a range where the server may have worked for clients that left, or for
    answers that do not report it.
    """
    known, slack = _work(reference, tally, reference.model.limits.block_size)
    codes = Counter(chain.from_iterable(logged.values()))
    counts = [
        (name.removesuffix("_tokens"), f"specdec_{name}_total", known[name], slack[name])
        for name in _METRICS
    ]
    for code, num in sorted(codes.items()):
        counts.append((f"answers {code}, by the log", f"specdec_requests_total:{code}", num, 0))
    for code, kind in _KINDS.items():
        metric = f"specdec_request_failures_total:{kind}"
        counts.append((f"failures, {kind}", metric, codes[code], 0))
    figures, faults = [], _log_faults(tally, logged)
    for name, metric, least, more in counts:
        counted = round(change.get(metric, 0.0))
        span = f"{least} to {least + more}" if more else f"{least}"
        figures.append(f"{name}: server {counted}, clients {span}")
        if not least <= counted <= least + more:
            faults.append(figures[-1])
    return figures, faults


def _work(reference: Reference, tally: Tally, block_size: int) -> tuple[Counter[str], Counter[str]]:
    """The work done, by metric: what is certain, and the most beyond that."""
    known: Counter[str] = Counter()
    slack: Counter[str] = Counter()
    for row in (row for answer in tally.answers for row in answer.speculation):
        known.update(sentences=1, rounds=row["rounds"], tokens=sum(row["emitted"]))
        known.update({f"{name}_tokens": sum(row[name]) for name in ("drafted", "accepted")})
    untold = [answer for answer in tally.answers if not answer.speculation]
    texts = [(answer.index, reference.is_right(answer)) for answer in untold]
    for index, is_right in [*texts, *((index, False) for index in tally.left)]:
        num = reference.num_tokens[index]
        (known if is_right else slack).update(sentences=reference.num_sentences[index], tokens=num)
        slack.update(rounds=num, drafted_tokens=num * block_size, accepted_tokens=num)
    return known, slack


def _log_faults(tally: Tally, logged: Mapping[str, Sequence[int]]) -> list[str]:
    """Answers without exactly one line in the log, under their id and with their status."""
    faults = []
    for request_id in tally.codes.keys() | logged.keys():
        codes, answered = logged.get(request_id), tally.codes.get(request_id)
        if codes not in ([[200], [429], [499]] if answered is None else [[answered]]):
            faults.append(f"request {request_id}: answered {answered}, the log has {codes}")
    return faults
