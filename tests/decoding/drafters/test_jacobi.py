from __future__ import annotations

import torch

from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.engine import Method, SpeculativeDecoder
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.schedules import build_schedule
from specdec_plugins.decoding.types import Draft, Drafter, Round, Scores, Verdict
from tests.decoding.drafters.test_lookup import sources
from tests.decoding.toys import (
    SPECIAL,
    TableVerifier,
    draft_of,
    law,
    prefix_of,
    requests,
    row_params,
)

EOS = SPECIAL.eos


def drafter(source_to_target: torch.Tensor | None = None) -> Drafter:
    context = DraftContext(TableVerifier(law()), source_to_target=source_to_target)
    return build_drafter("jacobi", context)


def proposals(of: Drafter, prefixes: list[list[int]], width: int) -> list[list[int]]:
    params = row_params(len(prefixes))
    budget = torch.full((len(prefixes),), width)
    draft = of.propose(prefix_of(prefixes), budget, width, params, HashRandom(params.seed))
    assert draft.probs is None
    assert draft.lengths.tolist() == budget.tolist()
    return draft.tokens.tolist()


def guessed(rows: list[list[int]], draft: Draft) -> Scores:
    """Scores whose argmax is `rows`; junk behind."""
    logits = torch.full((len(rows), draft.tokens.shape[1] + 1, 9), torch.nan)
    for b, row in enumerate(rows):
        logits[b, : len(row)] = torch.nn.functional.one_hot(torch.tensor(row), 9).float()
    return Scores(logits)


def after_a_round() -> Drafter:
    """Three rows: rejected at once, rejected later, accepted whole (a shorter draft)."""
    one = drafter()
    one.admit(sources([[4, 4, 4, 4, 4, 4], [5, 5, 5, 5, 5, 5], [8, 7]]))
    draft = draft_of([[4, 4, 4], [5, 5, 5], [8]])
    scores = guessed([[6, 7, 8, 4], [5, 6, 7, 8], [8, 5]], draft)
    verdict = Verdict(torch.tensor([0, 1, 1]), torch.tensor([6, 6, 5]))
    one.commit(prefix_of([[6], [5, 6], [8, 5]]), Round(draft, scores, verdict))
    return one


def test_the_first_draft_is_the_source_and_its_end() -> None:
    one = drafter()
    one.admit(sources([[4, 5, 6, 7, 8], [8, 7]]))
    assert proposals(one, [[], []], 4) == [[4, 5, 6, 7], [8, 7, EOS, EOS]]
    assert proposals(one, [[6], [6, 6]], 3) == [[5, 6, 7], [EOS] * 3]


def test_guesses_behind_the_verifiers_own_token_are_drafted_again() -> None:
    # row 0: 6 is committed, 7 8 4 were guessed behind it; row 1: 5 6 committed, then 7 8;
    # row 2: all accepted, nothing guessed, the source is over
    prefixes = [[6], [5, 6], [8, 5]]
    assert proposals(after_a_round(), prefixes, 4) == [
        [7, 8, 4, 4],
        [7, 8, 5, 5],
        [EOS] * 4,
    ]
    assert proposals(after_a_round(), prefixes, 2) == [[7, 8], [7, 8], [EOS] * 2]


def test_guesses_stay_with_their_rows() -> None:
    one = after_a_round()
    one.select(torch.tensor([1, 0]))
    one.admit(sources([[7, 6, 5, 4, 4, 4, 4, 4, 4]]))
    prefixes = [[5, 6], [6], []]
    assert proposals(one, prefixes, 4) == [[7, 8, 5, 5], [7, 8, 4, 4], [7, 6, 5, 4]]


def test_source_symbols_are_mapped() -> None:
    mapping = torch.tensor([0, 1, EOS, 3, 8, 6, 3, 5])
    one = drafter(mapping)
    one.admit(sources([[4, 5, 6, 7]]))
    assert proposals(one, [[]], 4) == [[8, 6, 3, 5]]


def test_a_verifier_that_looks_at_places_only_is_solved_in_two_rounds() -> None:
    """All guesses of the first round are right, so the second one keeps them all."""
    table = law()[:, :, :1].expand(-1, -1, 9, -1).clone()
    table[..., EOS] -= 20
    verifier = TableVerifier(table)
    jacobi = build_drafter("jacobi", DraftContext(verifier, source_to_target=torch.arange(12) % 9))
    method = Method(jacobi, RULES.get("exact")(), build_schedule("constant"))
    jobs = requests(4, block_size=7, max_len=8)
    results = SpeculativeDecoder(verifier, method).decode(jobs)
    assert all(r.rounds <= 2 for r in results)
    assert any(r.accepted_per_round[0] == 0 for r in results)
