"""What the server should answer, and whether what it counts agrees with what its clients have seen.

The right answer is the plain decoding of every text, in this process.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.serving.server import LogLine
from benchmarks.serving.traffic import Tally
from specdec_plugins.app.exactness import NEAR_TIE, logit_gap
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import Options, make_plan
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.translate_cli import LocalTranslator

_PLAIN = Options(use_drafter=False)

Change = Callable[[str], float]  # of a metric in a run, by name; `name:label` for one of them

_METRICS = {
    "sentences": "specdec_sentences_total",
    "tokens": "specdec_tokens_total",
    "rounds": "specdec_rounds_total",
    "drafted": "specdec_drafted_tokens_total",
    "accepted": "specdec_accepted_tokens_total",
}
_KINDS = {400: "bad_request", 413: "too_large", 429: "overloaded", 499: "cancelled"}
# What holds between metrics, whatever the load.
_IDENTITIES = (
    ("specdec_accepted_tokens_per_round_sum", "specdec_accepted_tokens_total"),
    ("specdec_position_drafted_tokens_total", "specdec_drafted_tokens_total"),
    ("specdec_position_accepted_tokens_total", "specdec_accepted_tokens_total"),
    ("specdec_token_seconds_count", "specdec_sentences_total"),
    ("specdec_tokens_per_round_of_a_sentence_count", "specdec_sentences_total"),
)


class Reference:
    """Right answers; and, decoded one after the other, the loop to compare a server with."""

    def __init__(self, model: ServedModel, texts: Sequence[str]) -> None:
        self.model = model
        self.texts = texts
        self.answers: list[str] = []
        self.num_tokens: list[int] = []  # of each text, ends of sentences included
        self.num_sentences: list[int] = []
        translator = LocalTranslator(model, ServerSettings(), _PLAIN)
        begin = time.perf_counter()
        for text in texts:
            before = translator.num_tokens
            self.answers += [answer or "" for answer in translator.translate([text])]
            self.num_tokens.append(translator.num_tokens - before)
        self.seconds = time.perf_counter() - begin
        for text in texts:
            self.num_sentences.append(len(self._plan(text).requests))

    @property
    def tokens_per_second(self) -> float:
        return sum(self.num_tokens) / self.seconds

    def compare(self, tally: Tally) -> tuple[list[str], list[str]]:
        """Answers that differ from the plain decoding: near-ties, and faults."""
        ties: list[str] = []
        faults: list[str] = []
        wrong = {
            answer.index for answer in tally.answers if not self.is_right(answer.index, answer.text)
        }
        for index in sorted(wrong):
            gap = self._gap(index)
            said = f"text {index + 1}: differs; smallest gap of its two best logits {gap:.1e}"
            (ties if gap < NEAR_TIE else faults).append(said)
        if len(tally.answers) != tally.num_good:
            faults.append(f"{tally.num_good} good requests, {len(tally.answers)} answers")
        return ties, faults

    def is_right(self, index: int, text: str) -> bool:
        return text == self.answers[index]

    def _gap(self, index: int) -> float:
        """The smallest gap of the two best logits along the plain decoding of a text."""
        smallest = math.inf
        plan = self._plan(self.texts[index])
        decoded = LocalTranslator(self.model, ServerSettings(), _PLAIN).decode(plan)
        for request, result in zip(plan.requests, decoded, strict=True):
            for end in range(len(result.token_ids)):
                gap = logit_gap(self.model.verifier, request, result.token_ids[:end])
                smallest = min(smallest, gap)
        return smallest

    def _plan(self, text: str):  # type: ignore[no-untyped-def]
        return make_plan([text], _PLAIN, self.model, ServerSettings())


@dataclass
class Account:
    """One figure, counted on both sides."""

    name: str
    server: int
    least: int  # by the clients' count
    most: int  # the same, and all that the server may have done for clients that left

    @property
    def agrees(self) -> bool:
        return self.least <= self.server <= self.most

    def __str__(self) -> str:
        span = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{self.name}: server {self.server}, clients {span}"


@dataclass
class Accounts:
    """All of a run's figures, and what is wrong with them."""

    figures: list[Account] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def all_faults(self) -> list[str]:
        return [*self.faults, *(str(figure) for figure in self.figures if not figure.agrees)]


def balance(
    reference: Reference, tally: Tally, change: Change, lines: Sequence[LogLine], block_size: int
) -> Accounts:
    """Compare tokens, requests and failures. `lines`: the log's of this run's requests."""
    figures = [
        Account(name, round(change(_METRICS[name])), least, most)
        for name, least, most in _work(reference, tally, block_size)
    ]
    accounts = Accounts(figures)
    logged = Counter(line.code for line in lines)
    for code, num in sorted(logged.items()):
        counted = round(change(f"specdec_requests_total:{code}"))
        figures.append(Account(f"answers {code}, by the log", counted, num, num))
    for code, kind in _KINDS.items():
        counted = round(change(f"specdec_request_failures_total:{kind}"))
        figures.append(Account(f"failures, {kind}", counted, logged[code], logged[code]))
    accounts.faults += _log_faults(tally, lines)
    for one, other in _IDENTITIES:
        if change(one) != change(other):
            accounts.faults.append(f"{one} {change(one):.0f}, {other} {change(other):.0f}")
    skipped = change("specdec_tokens_total") - change("specdec_rounds_total")
    if change("specdec_skipped_tokens_total") != skipped:
        accounts.faults.append("skipped tokens are not tokens less rounds")
    return accounts


def _work(reference: Reference, tally: Tally, block_size: int) -> list[tuple[str, int, int]]:
    """Name, least and most of what was decoded."""
    known: Counter[str] = Counter()
    slack: Counter[str] = Counter()
    unknown = list(tally.left)
    for answer in tally.answers:
        if answer.details is not None:
            for row in answer.details["speculation"]:
                known["sentences"] += 1
                known["rounds"] += row["rounds"]
                known["tokens"] += sum(row["emitted"])
                known["drafted"] += sum(row["drafted"])
                known["accepted"] += sum(row["accepted"])
        elif reference.is_right(answer.index, answer.text):
            num_tokens = reference.num_tokens[answer.index]
            known["sentences"] += reference.num_sentences[answer.index]
            known["tokens"] += num_tokens
            slack["rounds"] += num_tokens
            slack["drafted"] += num_tokens * block_size
            slack["accepted"] += num_tokens
        else:
            unknown.append(answer.index)
    for index in unknown:
        num_tokens = reference.num_tokens[index]
        slack["sentences"] += reference.num_sentences[index]
        slack["drafted"] += num_tokens * block_size
        for name in ("tokens", "rounds", "accepted"):
            slack[name] += num_tokens
    return [(name, known[name], known[name] + slack[name]) for name in _METRICS]


def _log_faults(tally: Tally, lines: Sequence[LogLine]) -> list[str]:
    """Every answer has one line in the log, under its id and with its status."""
    by_id: dict[str, list[int]] = {}
    for line in lines:
        by_id.setdefault(line.request_id, []).append(line.code)
    faults = [
        f"request {request_id}: answered {code}, the log has {by_id.get(request_id)}"
        for request_id, code in tally.codes.items()
        if by_id.get(request_id) != [code]
    ]
    for request_id in by_id.keys() - tally.codes.keys():
        if by_id[request_id] not in ([200], [429], [499]):
            faults.append(f"request {request_id}: left, the log has {by_id[request_id]}")
    return faults
