"""Check on real text that speculative decoding is token for token the verifier's greedy output.

In real arithmetic it always is. In floating point, a block product and a one-row product round
differently, so an argmax may flip where the two best logits are nearly equal. A difference is
excused only if rounding explains that gap and the difference vanishes in float64.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_plugins.app.files import open_sentences
from specdec_plugins.app.main import FLAGS, command_line, read_options
from specdec_plugins.app.settings import DTYPES, Settings
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator
from specdec_plugins.app.types import Sentence
from specdec_plugins.decoding.batch import collate, open_prefix
from specdec_plugins.decoding.contract import Draft, Guarantee, Verifier
from specdec_plugins.decoding.engine import Method, SpeculativeDecoder
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.errors import UserError, run_command

# How far rounding moves two logits apart, in steps (eps) of the largest one. Seen on the bundled
# pair: 45 in float32, 1 in 16 bits, which accumulate sums in float32.
_STEPS = {torch.float16: 8, torch.bfloat16: 8}
_STEPS_OF_SUMS = 64


@dataclass(frozen=True)
class Difference:
    """One sentence on which speculative and plain greedy decoding disagree."""

    number: int  # of its line, from 1
    position: int  # of the first token that differs, from 0
    gap: float  # nats between the verifier's two best logits there
    tolerance: float  # nats that rounding explains there
    identical_in_float64: bool

    @property
    def is_near_tie(self) -> bool:
        return self.gap < self.tolerance and self.identical_in_float64

    def __str__(self) -> str:
        double = "identical" if self.identical_in_float64 else "DIFFERENT"
        return (
            f"line {self.number}: first difference at token {self.position}, gap of the two best "
            f"logits {self.gap:.1e} (rounding: up to {self.tolerance:.1e}), in float64 {double}"
        )


@dataclass(frozen=True)
class Exactness:
    num_sentences: int
    differences: list[Difference]

    @property
    def holds(self) -> bool:
        """True if every difference is a near-tie."""
        return all(difference.is_near_tie for difference in self.differences)

    def __str__(self) -> str:
        same = self.num_sentences - len(self.differences)
        lines = [f"{same} of {self.num_sentences} sentences identical to greedy decoding"]
        return "\n".join([*lines, *map(str, self.differences)])


def check_exactness(settings: Settings, sentences: Sequence[Sentence]) -> Exactness:
    """Decode everything twice, with and without the drafter, and explain each difference.

    Raises UserError if the settings do not promise the greedy output.
    """
    differing = _differing(load_translator(settings), sentences)
    differences = []
    if differing:
        again = [sentence for sentence in sentences if sentence.number in differing]
        double = load_translator(replace(settings, dtype="float64", drafter_dtype=None))
        still = _differing(double, again)
        differences = [
            Difference(number, *found, identical_in_float64=number not in still)
            for number, found in differing.items()
        ]
    return Exactness(len(sentences), differences)


def exactness_of(
    settings: Settings, sentences: Sequence[Sentence], differing: Sequence[int]
) -> tuple[bool, str]:
    """Verdict and message on an exact decoding; `differing`: sentences, from 0, unlike greedy's.

    The verdict is True if nothing differs, or if a second run shows the same differences and
    rounding explains each.
    """
    if not differing:
        return True, "exact: 100 % identical to greedy, sentence for sentence"
    exactness = check_exactness(settings, [sentences[index] for index in differing])
    return (
        exactness.holds and len(exactness.differences) == len(differing),
        "exact: not identical everywhere; the gap of the logits where a sentence first differs:\n"
        f"{exactness}",
    )


def _differing(
    translator: SpeculativeTranslator, sentences: Sequence[Sentence]
) -> dict[int, tuple[int, float, float]]:
    """Sentences that differ, by number: the position, the gap there, its tolerance."""
    speculative = translator.decoder
    if (
        not isinstance(speculative, SpeculativeDecoder)
        or speculative.method.rule.guarantee(translator.settings.beta) is not Guarantee.GREEDY
    ):
        raise UserError("Only --strategy specdec with --beta 1 promises the greedy output.")
    verifier = speculative.verifier
    plain = Method(None, Exact(), Constant(Constant.Config()))
    greedy = SpeculativeDecoder(verifier, plain, speculative.config)
    requests = {r.id: r for r in map(translator.prepare, sentences) if isinstance(r, Request)}
    # Only the verifier limits the length here, so a drafter that cuts outputs would show.
    longest = verifier.max_target_positions - 1
    undrafted = {}
    for id_, request in requests.items():
        max_len = translator.settings.max_len(len(request.source_ids), longest)
        undrafted[id_] = replace(request, params=replace(request.params, max_len=max_len))
    expected = {r.id: r.token_ids for r in greedy.run(list(undrafted.values()))}
    found = {r.id: r.token_ids for r in speculative.run(list(requests.values()))}
    places = {}
    for id_, request in undrafted.items():
        if found[id_] != expected[id_]:
            common = os.path.commonprefix([found[id_], expected[id_]])
            [logits] = scored(verifier, request, common, [])
            tolerance = rounding(DTYPES[translator.settings.dtype], logits)
            best, second = logits.topk(2).values.tolist()
            places[int(id_)] = (len(common), best - second, tolerance)
    return places


def rounding(dtype: torch.dtype, logits: Tensor) -> float:
    """Nats by which rounding may move two of these logits [V] apart, in a network of that dtype."""
    steps = _STEPS.get(dtype, _STEPS_OF_SUMS)
    return float(logits.abs().max()) * torch.finfo(dtype).eps * steps


def scored(
    verifier: Verifier, request: Request, forced_ids: Sequence[int], drafted_ids: Sequence[int]
) -> Tensor:
    """Logits [K+1, V] float64 after a target prefix, and after each of K ids that follow it."""
    verifier = verifier.fresh()
    forced = replace(request, forced_ids=list(forced_ids))
    source = collate([forced], verifier.special.pad, verifier.special.start, verifier.device)
    verifier.admit(source)
    prefix = open_prefix(source, request.params.max_len)
    tokens = torch.tensor([list(drafted_ids)], dtype=torch.int64).to(verifier.device)
    scores = verifier.score(prefix, Draft(tokens, (tokens == tokens).sum(1)))
    return scores.logits[0].double()


COMMAND = command_line("specdec evaluate exactness", FLAGS)


def main(words: Sequence[str] | None = None) -> int:
    """Run `specdec evaluate exactness`; returns 1 where rounding does not explain a difference."""
    given = COMMAND.given(words)

    def work() -> int:
        settings, files = read_options({"schedule": "constant", **given})  # drafts in batches, too
        with open_sentences(files) as sentences:
            exactness = check_exactness(settings, list(sentences))
        sys.stdout.write(f"{exactness}\n")
        return 0 if exactness.holds else 1

    return run_command(COMMAND.name, work, "debug" in given, "interrupted.")
