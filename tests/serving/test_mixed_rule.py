"""Greedy and sampling rows side by side."""

from __future__ import annotations

import torch

from specdec_plugins.decoding.interfaces import Scores
from specdec_plugins.decoding.row_random import HashRandom
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.serving.mixed_rule import MixedRule
from tests.decoding.toys import draft_of, row_params
from tests.serving.toys import Draw


def test_each_row_follows_its_own_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = Scores(torch.randn(4, 3, 9, generator=generator))
    best = scores.logits.argmax(-1)
    draft = draft_of([row[:2] for row in best.tolist()])
    params = row_params(4, top_k=[1, 0, 1, 0], seed=[1, 2, 3, 4])
    random, first = HashRandom(params.seed), torch.full((4,), 5)
    mixed = MixedRule(TopBeta(), Draw()).judge(draft, scores, params, random, first)
    greedy = TopBeta().judge(draft, scores, params, random, first)
    drawn = Draw().judge(draft, scores, params, random, first)
    assert mixed.num_accepted.tolist() == [2, 0, 2, 0]
    for row, rule in enumerate((greedy, drawn, greedy, drawn)):
        assert mixed.next_tokens[row] == rule.next_tokens[row]


def test_the_kinds_present_are_looked_up_again_when_rows_change() -> None:
    rule, random = MixedRule(TopBeta(), Draw()), HashRandom(torch.zeros(1, dtype=torch.int64))
    scores, first = Scores(torch.randn(1, 3, 9)), torch.ones(1, dtype=torch.int64)
    draft = draft_of([scores.logits.argmax(-1)[0, :2].tolist()])
    for top_k, accepted in ((1, 2), (0, 0), (1, 2)):
        params = row_params(1, top_k=top_k)
        assert rule.judge(draft, scores, params, random, first).num_accepted.item() == accepted
