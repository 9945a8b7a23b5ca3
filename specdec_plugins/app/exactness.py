"""Is speculative decoding token for token the verifier's greedy output? Checked on real text.

In real arithmetic it is, always. In float32 a block product and a one-row product round
differently, so an argmax may flip where the two best logits are nearly equal. Hence a difference is
excused only if that gap is far below what a wrong decoder would show, and if it is gone in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch

from specdec_plugins.app.settings import Settings
from specdec_plugins.app.strategies import EngineDecoder
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator
from specdec_plugins.app.types import Sentence
from specdec_plugins.decoding.batch import collate, open_prefix
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.types import Draft, Guarantee, Request, Verifier
from specdec_plugins.errors import UserError

NEAR_TIE = 1e-4  # nats; float32 products of these sizes differ by up to 8e-5


@dataclass(frozen=True)
class Difference:
    """One sentence on which speculative and plain greedy decoding disagree."""

    number: int  # of its line, from 1
    position: int  # of the first token that differs, from 0
    gap: float  # nats between the verifier's two best logits there
    identical_in_float64: bool

    @property
    def is_near_tie(self) -> bool:
        return self.gap < NEAR_TIE and self.identical_in_float64

    def __str__(self) -> str:
        double = "identical" if self.identical_in_float64 else "DIFFERENT"
        return (
            f"line {self.number}: first difference at token {self.position}, gap of the two best "
            f"logits {self.gap:.1e}, in float64 {double}"
        )


@dataclass(frozen=True)
class Exactness:
    """The outcome over a whole text."""

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

    Raises UserError where the settings do not promise the greedy output in the first place.
    """
    differing = list(_differing(load_translator(settings), sentences))
    differences = []
    if differing:
        again = [sentence for sentence, _, _ in differing]
        double = load_translator(replace(settings, dtype="float64"))
        still = {sentence.number for sentence, _, _ in _differing(double, again)}
        differences = [
            Difference(sentence.number, position, gap, sentence.number not in still)
            for sentence, position, gap in differing
        ]
    return Exactness(len(sentences), differences)


def exactness_of(
    settings: Settings, sentences: Sequence[Sentence], differing: Sequence[int]
) -> tuple[bool, str]:
    """What to say of an exact decoding of which sentences `differing`, from 0, are not greedy's.

    Whether all is well, and the words: either nothing differs, or a second run shows the same
    differences and rounding explains each.
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
) -> Iterator[tuple[Sentence, int, float]]:
    """Sentences that come out differently, with the place and the gap of the logits there."""
    speculative = translator.decoder
    if (
        not isinstance(speculative, EngineDecoder)
        or speculative.method.rule.guarantee(translator.settings.beta) is not Guarantee.GREEDY
    ):
        raise UserError("Only --strategy specdec with --beta 1 promises the greedy output.")
    verifier = speculative.verifier
    plain = Method(None, Exact(), Constant(Constant.Config()))
    greedy = EngineDecoder(verifier, plain, speculative.config)
    requests: dict[str, Request] = {}
    for sentence in sentences:
        prepared = translator.prepare(sentence)
        if isinstance(prepared, Request):
            requests[prepared.id] = prepared
    expected = {r.id: r.token_ids for r in greedy.run(list(requests.values()))}
    found = {r.id: r.token_ids for r in speculative.run(list(requests.values()))}
    by_id = {str(sentence.number): sentence for sentence in sentences}
    for id_, request in requests.items():
        if found[id_] != expected[id_]:
            common = common_prefix(found[id_], expected[id_])
            yield by_id[id_], len(common), logit_gap(verifier, request, common)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """What two lists of ids begin with alike."""
    return [x for x, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))]


def logit_gap(verifier: Verifier, request: Request, prefix_ids: Sequence[int]) -> float:
    """Nats between the verifier's two best logits after a target prefix; empties the verifier."""
    nobody = torch.zeros(0, dtype=torch.int64, device=verifier.device)
    verifier.select(nobody)
    forced = replace(request, forced_ids=list(prefix_ids))
    source = collate([forced], verifier.special.pad, verifier.special.start, verifier.device)
    verifier.admit(source)
    prefix = open_prefix(source, request.params.max_len)
    scores = verifier.score(prefix, Draft.empty(1, verifier.device))
    verifier.select(nobody)
    best, second = scores.logits[0, 0].double().topk(2).values.tolist()
    return float(best - second)
