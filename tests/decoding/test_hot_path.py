"""What runs every round waits for no device: on tensors without data, waiting raises.

`meta` tensors have shapes and no values, so `.item()`, `.tolist()`, `if tensor` and indexing by a
mask all fail on them, as they would make the host wait on an accelerator.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdec_plugins.decoding.constraints import Constraints, constrain
from specdec_plugins.decoding.contract import (
    Case,
    Draft,
    DraftRequest,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    Verdict,
)
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.extend import extend
from specdec_plugins.decoding.requests import COLUMNS, RowParams
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.schedules import SCHEDULES
from tests.decoding.toys import SPECIAL, TableVerifier, random_table, row_params

META = torch.device("meta")
ROWS, WIDTH, VOCAB = 3, 4, 9


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=META)


def params() -> RowParams:
    rows = row_params(ROWS)
    columns = {name: getattr(rows, name).to(META) for name in COLUMNS}
    return replace(rows, **columns)


def prefix() -> Prefix:
    return Prefix(integers(ROWS, 20), integers(ROWS), integers(ROWS).bool(), width=8)


def finished_round(with_probs: bool) -> Round:
    probs = torch.zeros(ROWS, WIDTH, VOCAB, device=META) if with_probs else None
    draft = Draft(integers(ROWS, WIDTH), integers(ROWS), probs)
    scores = Scores(torch.zeros(ROWS, WIDTH + 1, VOCAB, device=META))
    return Round(draft, scores, Verdict(integers(ROWS), integers(ROWS)))


SOURCE = SourceBatch(integers(ROWS, 6), integers(ROWS), integers(ROWS, 1), integers(ROWS))


@pytest.mark.parametrize("with_probs", [True, False])
@pytest.mark.parametrize("name", RULES.names())
def test_rules(name: str, with_probs: bool) -> None:
    last, rows = finished_round(with_probs), params()
    random = HashRandom(rows.seed)
    case = Case(last.draft, last.scores, rows, random, integers(ROWS))
    verdict = RULES.get(name)().judge(case)
    assert verdict.num_accepted.shape == verdict.next_tokens.shape == (ROWS,)
    extend(prefix(), last.draft, verdict, rows, SPECIAL.eos)


@pytest.mark.parametrize("name", SCHEDULES.names())
def test_schedules(name: str) -> None:
    schedule = SCHEDULES.build(name, options={"rows": ROWS} if name == "few_rows" else {})
    schedule.admit(SOURCE)
    asked = []
    for _ in range(12):
        schedule.commit(prefix(), finished_round(False))
        asked.append(schedule.next_budget(params()))
    assert {wanted.shape for wanted in asked if wanted is not None} == {(ROWS,)}
    schedule.select(integers(2))


class OnMeta(TableVerifier):
    device = META


def test_a_drafter_without_a_network() -> None:
    drafter = DRAFTERS.build("lookup", DraftContext(OnMeta(random_table())))
    drafter.admit(SOURCE)
    rows = params()
    draft = drafter.propose(
        DraftRequest(prefix(), integers(ROWS), WIDTH, rows, HashRandom(rows.seed))
    )
    assert draft.tokens.shape == (ROWS, WIDTH)
    drafter.commit(prefix(), finished_round(False))
    drafter.select(integers(2))


def test_constraints() -> None:
    scores, rows = finished_round(False).scores, params()
    words = ((4,), (5, 6), (4, 5, 6))
    asked = Constraints(words, 3, SPECIAL.eos, banned_first=(4, 5), repetition_penalty=1.1)
    requested = tuple(replace(p, min_len=3, max_len=WIDTH) for p in rows.requested)
    rows = replace(rows, requested=requested)
    constrain(scores.logits, prefix(), finished_round(False).draft, rows, SPECIAL.eos, asked)
