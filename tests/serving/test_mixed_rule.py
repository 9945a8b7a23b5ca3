"""Greedy and sampling rows side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from specdec_plugins.decoding.contract import Case, Scores, Verdict
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.requests import DecodeParams, Request, RowResult
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.rules.mixed import GREEDY_TOP_K, MixedRule
from specdec_plugins.decoding.rules.speculative_sampling import SpeculativeSampling
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.serving.planning import row_params as row_params_of
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ServerSettings
from tests.decoding.rules.test_speculative_sampling import (
    MAX_LEN,
    NUM_DRAWS,
    SOURCE,
    TABLE,
    expected_distribution,
    z_score,
)
from tests.decoding.toys import TableVerifier, draft_of, oracle, perturbed, requests, row_params
from tests.serving.toys import toy_model


def test_each_row_follows_its_own_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = Scores(torch.randn(4, 3, 9, generator=generator))
    best = scores.logits.argmax(-1)
    draft = draft_of([row[:2] for row in best.tolist()])
    params = row_params(4, top_k=[1, 0, 1, 0], seed=[1, 2, 3, 4])
    random, first = HashRandom(params.seed), torch.full((4,), 5)
    mixed, exact, drawn = (
        rule.judge(Case(draft, scores, params, random, first))
        for rule in (MixedRule(), Exact(), SpeculativeSampling())
    )
    assert mixed.num_accepted[::2].tolist() == [2, 2]
    assert mixed.num_accepted[1::2].tolist() != [2, 2]
    for row, verdict in enumerate((exact, drawn, exact, drawn)):
        assert mixed.num_accepted[row] == verdict.num_accepted[row]
        assert mixed.next_tokens[row] == verdict.next_tokens[row]


@pytest.mark.parametrize(("beta", "tolerant"), [([1, 1], False), ([1, 3], True)])
@pytest.mark.parametrize("top_k", [[1, 1], [1, 0]], ids=["greedy", "mixed"])
def test_the_tolerant_rule_judges_only_where_something_is_tolerated(
    beta: list[int], top_k: list[int], tolerant: bool
) -> None:
    judged: list[str] = []

    class Recorded(TopBeta):
        def judge(self, case: Case) -> Verdict:
            judged.append("tolerant")
            return super().judge(case)

    params = row_params(2, top_k=top_k, beta=beta)
    scores, first = Scores(torch.randn(2, 3, 9)), torch.ones(2, dtype=torch.int64)
    draft = draft_of([[3, 4], [5, 6]])
    rule = MixedRule(tolerant=Recorded())
    rule.judge(Case(draft, scores, params, HashRandom(params.seed), first))
    assert bool(judged) == tolerant


def test_a_sample_of_one_token_is_the_best_whatever_greedy_requests_tolerate() -> None:
    settings = ServerSettings(beta=4, tau=2.0)
    greedy = row_params_of(Parameters(), toy_model(), settings)
    sample = row_params_of(Parameters(do_sample=True, top_k=1), toy_model(), settings)
    assert (greedy.beta, sample.beta) == (4, 1)


# How the server builds drafters that have probabilities, and how a rule that samples does.
KINDS = pytest.mark.parametrize("sampling", [False, True])


def decode(name: str, sampling: bool, jobs: list[Request]) -> dict[str, RowResult]:
    """All jobs in one batch."""
    verifier = TableVerifier(TABLE, keep_cache=False)
    assistant = TableVerifier(perturbed(TABLE, 0.7), keep_cache=False)
    context = DraftContext(verifier, assistant=assistant, sampling=sampling)
    method = Method(DRAFTERS.build(name, context), MixedRule(), SCHEDULES.build("constant"))
    decoder = SpeculativeDecoder(verifier, method, EngineConfig(max_rows=len(jobs)))
    return {result.id: result for result in decoder.decode(jobs)}


@KINDS
def test_samples_beside_greedy_rows_keep_the_distribution(sampling: bool) -> None:
    options = {"max_len": MAX_LEN, "block_size": 2}
    drawn = [
        Request(f"drawn {i}", SOURCE, DecodeParams(seed=i, **options)) for i in range(NUM_DRAWS)
    ]
    greedy = requests(50, top_k=GREEDY_TOP_K, **options)
    results = decode("assistant", sampling, [*greedy, *drawn])
    counts = Counter(tuple(results[job.id].token_ids) for job in drawn)
    assert abs(z_score(counts, expected_distribution())) < 4
    assert [results[job.id].token_ids for job in greedy] == [oracle(TABLE, job) for job in greedy]


@KINDS
@pytest.mark.parametrize("name", ["assistant", "early_exit"])
def test_greedy_rows_are_drafted_for_as_without_neighbours(name: str, sampling: bool) -> None:
    greedy = requests(12, top_k=GREEDY_TOP_K, block_size=4)
    drawn = [
        replace(job, id=f"drawn {job.id}")
        for job in requests(12, block_size=4, seed=lambda i: i, temperature=1.5)
    ]
    pairs = zip(greedy, drawn, strict=True)
    together = decode(name, sampling, [job for pair in pairs for job in pair])
    # The numbers of drafted and of accepted tokens of every round, too.
    assert {job.id: together[job.id] for job in greedy} == decode(name, False, greedy)
