"""Keep what the verifier itself would emit: greedy decoding, token for token."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_plugins.decoding.contract import RULES, Case, Guarantee, Verdict
from specdec_plugins.decoding.networks.cpu.ops import leading_best


@RULES.register("exact")
@dataclass(frozen=True)
class Exact:
    """Accept a draft token while it equals the verifier's argmax.

    Blockwise decoding with exact match (Stern et al. 2018, section 3); SpecDec with beta = 1.
    """

    samples: bool = False

    def guarantee(self, beta: int) -> Guarantee:
        return Guarantee.GREEDY

    def judge(self, case: Case) -> Verdict:
        return Verdict(*leading_best(case.scores.logits, case.draft.tokens, case.draft.lengths))
