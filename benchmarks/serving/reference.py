"""What the server should answer: the plain decoding of every text, in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from benchmarks.serving.traffic import Tally
from specdec_plugins.app.exactness import NEAR_TIE, logit_gap
from specdec_plugins.serving.local import LocalTranslator
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import Options, make_plan
from specdec_plugins.serving.settings import ServerSettings

_PLAIN = Options(use_drafter=False)


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
            self.answers += translator.translate([text])
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
