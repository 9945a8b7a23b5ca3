"""`exact` and `top_beta` by table, one case a boundary, and in the large."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_plugins.decoding.contract import (
    AcceptanceRule,
    Case,
    Draft,
    Guarantee,
    Scores,
    Verdict,
)
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.sampling import HashRandom
from tests.decoding.toys import NO_TOKEN, draft_of, row_params

EXACT: AcceptanceRule = RULES.get("exact")()
TOP_BETA: AcceptanceRule = RULES.get("top_beta")()
EOS = 2


def judge(
    rule: AcceptanceRule, draft: Draft, logits: Tensor, beta: object = 1, tau: object = 0.0
) -> Verdict:
    num_rows = logits.shape[0]
    params = row_params(num_rows, beta=beta, tau=tau)
    first = torch.ones(num_rows, dtype=torch.int64)
    return rule.judge(Case(draft, Scores(logits), params, HashRandom(params.seed), first))


class Example(NamedTuple):
    name: str
    draft: list[int]
    logits: list[list[float]]  # V = 5; shorter than the others' width means poison behind
    beta: int
    tau: float
    num_accepted: int
    next_token: int


A, B, C = 3, 4, 0  # three token ids
FIRST = [1.0, 0.0, 0.5, 3.0, 2.0]  # best A, then B (gap 1), 0 (gap 2), eos (2.5), 1 (3)
SECOND = [3.0, 0.0, 2.0, 1.0, -1.0]  # best C = 0, then eos (gap 1), A (gap 2)
TIED = [0.0, 0.0, 0.0, 2.0, 2.0]  # A and B equal; argmax takes A

EXACT_CASES = [
    Example("empty draft", [], [FIRST], 1, 0, 0, A),
    Example("first right, second wrong", [A, A], [FIRST, SECOND, FIRST], 1, 0, 1, C),
    Example("all right: bonus", [A, C], [FIRST, SECOND, FIRST], 1, 0, 2, A),
    Example("first wrong, second right", [B, C], [FIRST, SECOND, FIRST], 1, 0, 0, A),
    Example("tie: the lower id is the argmax", [A], [TIED, SECOND], 1, 0, 1, C),
    Example("tie: the higher id is not", [B], [TIED, SECOND], 1, 0, 0, A),
    Example("eos drafted and rejected", [EOS], [FIRST, SECOND], 1, 0, 0, A),
    Example("eos drafted and accepted", [A, EOS], [FIRST, [0, 0, 5, 0, 0], FIRST], 1, 0, 2, A),
    Example("huge tau means nothing with beta 1", [B], [FIRST, SECOND], 1, 1e9, 0, A),
]
STRUCK = [1.0, -torch.inf, 0.5, 3.0, 2.0]  # as FIRST, and 1 may not be said
TOLERANT_CASES = [
    Example("struck by a constraint", [1], [STRUCK, SECOND], 5, torch.inf, 0, A),
    Example("second best within tau", [B], [FIRST, SECOND], 2, 1.5, 1, C),
    Example("gap equals tau: kept", [B], [FIRST, SECOND], 2, 1.0, 1, C),
    Example("gap just above tau", [B], [FIRST, SECOND], 2, 0.999, 0, A),
    Example("third best, beta 2, within tau", [C], [FIRST, SECOND], 2, 9.0, 0, A),
    Example("third best, beta 3", [C], [FIRST, SECOND], 3, 9.0, 1, C),
    Example("beta = V: tau alone decides", [1], [FIRST, SECOND], 5, 3.0, 1, C),
    Example("beta = V, outside tau", [1], [FIRST, SECOND], 5, 2.5, 0, A),
    Example("beta above V", [1], [FIRST, SECOND], 50, 3.0, 1, C),
    Example("tie at tau 0: both are best", [B], [TIED, SECOND], 2, 0.0, 1, C),
    Example("tie at beta 1: only the argmax", [B], [TIED, SECOND], 1, 0.0, 0, A),
    Example("tolerated, then rejected", [B, 1], [FIRST, SECOND, FIRST], 2, 1.0, 1, C),
    Example("tolerated twice: bonus", [B, EOS], [FIRST, SECOND, TIED], 2, 1.0, 2, A),
    Example("eos tolerated though not best", [EOS], [FIRST, SECOND], 4, 2.5, 1, C),
    Example("eos drafted and rejected", [EOS], [FIRST, SECOND], 4, 2.4, 0, A),
    Example("empty draft", [], [FIRST], 5, 9.0, 0, A),
]


def batched(cases: list[Example]) -> tuple[Draft, Tensor]:
    """All cases as one ragged batch, poison behind each."""
    width = 3
    draft = draft_of([case.draft for case in cases], width)
    logits = torch.full((len(cases), width + 1, 5), torch.nan, dtype=torch.float64)
    logits[:, 2::2] = 1e9
    for b, case in enumerate(cases):
        logits[b, : len(case.logits)] = torch.tensor(case.logits, dtype=torch.float64)
    return draft, logits


@pytest.mark.parametrize(
    ("rule", "cases"),
    [(EXACT, EXACT_CASES), (TOP_BETA, EXACT_CASES), (TOP_BETA, TOLERANT_CASES)],
    ids=["exact", "top_beta as exact", "top_beta"],
)
def test_table(rule: AcceptanceRule, cases: list[Example]) -> None:
    draft, logits = batched(cases)
    tempting = torch.where(draft.mask, draft.tokens, logits[:, :-1].argmax(-1))
    for tokens in (draft.tokens, tempting):
        verdict = judge(
            rule,
            Draft(tokens, draft.lengths),
            logits,
            beta=[c.beta for c in cases],
            tau=[float(c.tau) for c in cases],
        )
        got = zip(verdict.num_accepted.tolist(), verdict.next_tokens.tolist(), strict=True)
        for case, pair in zip(cases, got, strict=True):
            assert pair == (case.num_accepted, case.next_token), case.name


def random_case(seed: int) -> tuple[Draft, Tensor]:
    """Coarse logits, so that ties are common; drafts near the argmax, ragged."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 4, (50, 7, 6), generator=generator).double()
    lengths = torch.randint(0, 7, (50,), generator=generator)
    tokens = logits[:, :-1].topk(3).indices
    pick = torch.randint(0, 3, (50, 6, 1), generator=generator)
    tokens = tokens.gather(-1, pick)[..., 0]
    past = torch.arange(6) >= lengths[:, None]
    return Draft(tokens.masked_fill(past, NO_TOKEN), lengths), logits


def slow_top_beta(draft: Draft, logits: Tensor, beta: int, tau: float) -> list[tuple[int, int]]:
    """The rule as its paper says it: the kept set of each row, in plain Python."""
    out = []
    for b, length in enumerate(draft.lengths.tolist()):
        n = 0
        while n < length:
            row = logits[b, n].tolist()
            by_rank = sorted(range(len(row)), key=lambda i: (-row[i], i))
            kept = [i for i in by_rank[:beta] if max(row) - row[i] <= tau]
            if int(draft.tokens[b, n]) not in kept:
                break
            n += 1
        out.append((n, int(logits[b, n].argmax())))
    return out


@pytest.mark.parametrize(("beta", "tau"), [(1, 0.0), (1, 5.0), (2, 1.0), (3, 0.0), (6, 2.0)])
def test_top_beta_equals_its_definition(beta: int, tau: float) -> None:
    draft, logits = random_case(beta)
    verdict = judge(TOP_BETA, draft, logits, beta=beta, tau=tau)
    got = zip(verdict.num_accepted.tolist(), verdict.next_tokens.tolist(), strict=True)
    assert list(got) == slow_top_beta(draft, logits, beta, tau)


@pytest.mark.parametrize(
    ("name", "alone", "tolerant", "samples"),
    [
        ("exact", Guarantee.GREEDY, Guarantee.GREEDY, False),
        ("top_beta", Guarantee.GREEDY, Guarantee.NONE, False),
        ("speculative_sampling", Guarantee.DISTRIBUTION, Guarantee.DISTRIBUTION, True),
    ],
)
def test_guarantees(name: str, alone: Guarantee, tolerant: Guarantee, samples: bool) -> None:
    rule = RULES.get(name)()
    assert (rule.guarantee(1), rule.guarantee(2), rule.samples) == (alone, tolerant, samples)


class WideFloats(TorchDispatchMode):
    """Notes every single- or double-precision tensor of at least so many elements."""

    def __init__(self, num_elements: int) -> None:
        super().__init__()
        self.num_elements = num_elements
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if t.is_floating_point() and t.itemsize >= 4 and t.numel() >= self.num_elements:
                self.made.append(str(func))
        return out


@pytest.mark.parametrize("name", ["exact", "top_beta"])
def test_ranks_need_no_single_precision_copy_of_the_logits(name: str) -> None:
    num_rows, width, vocab = 2, 4, 50
    logits = torch.randn(num_rows, width + 1, vocab).half()
    draft = draft_of([[4] * width] * num_rows)
    params = row_params(num_rows, beta=3, tau=1.0)
    random = HashRandom(params.seed)
    with WideFloats(num_rows * vocab) as floats:
        RULES.get(name)().judge(Case(draft, Scores(logits), params, random, params.seed))
    assert floats.made == []
    with WideFloats(num_rows * vocab) as floats:
        logits.float()
    assert floats.made  # or the test could not fail
