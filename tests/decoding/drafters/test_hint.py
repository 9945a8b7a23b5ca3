from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.types import Drafter
from tests.decoding.drafters.factories import FACTORIES
from tests.decoding.drafters.test_lookup import proposals, sources
from tests.decoding.toys import (
    SPECIAL,
    TableVerifier,
    decode_with,
    history,
    method_of,
    oracle,
    random_table,
    requests,
)

TABLE = random_table()
EOS = SPECIAL.eos


def opened(hints: list[list[int]], **options: Any) -> Drafter:
    drafter = DRAFTERS.build("hint", DraftContext(TableVerifier(TABLE)), options=options)
    width = max(map(len, hints))
    columns = torch.tensor([[*hint, *[-1] * (width - len(hint))] for hint in hints])
    drafter.admit(replace(sources([[4]] * len(hints)), hints=columns.long().view(len(hints), -1)))
    return drafter


@pytest.mark.parametrize(
    ("hint", "prefix", "options", "want"),
    [
        ([5, 6, 7], [], {}, [5, 6, 7, EOS]),  # from its beginning to its end
        ([5, 6, 7, 8, 4, 5], [], {}, [5, 6, 7, 8]),  # no more than the budget
        ([], [], {}, []),
        ([], [5, 6], {}, []),
        ([5, 6, 7, 8], [5, 6], {}, [7, 8, EOS]),
        ([5, 6, 7, 8], [5, 6, 7, 8], {}, [EOS]),
        ([5, 6, 7, 8], [5, 4], {}, []),  # a difference
        ([5, 6, 7, 8, 4], [5, 4, 7, 8], {}, [4, EOS]),  # found again behind it
        ([5, 6, 7], [4, 6], {}, []),  # one token is no evidence
        ([5, 6, 7], [4, 6], {"min_ngram": 1}, [7, EOS]),
        ([6, 7, 8, 5, 6, 7, 4], [5, 6, 7], {}, [4, EOS]),  # the longer match
        # of equal ones the nearest to the prefix's length
        ([6, 7, 4, 6, 7, 5, 6, 7, 8], [3, 3, 3, 6, 7], {}, [5, 6, 7, 8]),
    ],
)
def test_table(
    hint: list[int], prefix: list[int], options: dict[str, Any], want: list[int]
) -> None:
    one = opened([[7] * 9, hint, [8]], **options)
    assert proposals(one, [[7, 7], prefix, [4, 4]])[1] == want


def test_only_the_first_thousand_tokens_of_a_hint_are_read() -> None:
    one = opened([[4] * 1022 + [5, 6, 7, 8] * 1000])
    assert proposals(one, [[6, 7]]) == [[]]
    assert proposals(one, [[4, 5]]) == [[6, EOS]]


def test_a_hint_that_is_right_needs_the_fewest_rounds() -> None:
    """The whole of it, and its end: in blocks of 9."""
    verifier = TableVerifier(TABLE)
    jobs = [
        replace(job, hint_ids=[t for t in oracle(TABLE, job) if t != EOS])
        for job in requests(9, block_size=9, max_len=40)
    ]
    method = method_of(FACTORIES["hint:block"](verifier))
    for job, result in zip(jobs, decode_with(verifier, method, jobs), strict=True):
        assert result.token_ids == oracle(TABLE, job)
        assert result.rounds == -(-len(result.token_ids) // 10)


@pytest.mark.parametrize("name", ["hint:block", "hint:block, sampling"])
def test_without_hints_it_is_the_block_drafter(name: str) -> None:
    jobs = requests(9, block_size=4, max_len=20)

    def drafted(name: str) -> Any:
        verifier = TableVerifier(TABLE)
        return history(verifier, method_of(FACTORIES[name](verifier)), jobs)

    assert drafted(name) == drafted("block:head" + name.removeprefix("hint:block"))
