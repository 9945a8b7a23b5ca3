from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch

from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.drafters.hint import follow
from specdec_plugins.decoding.types import Draft, Drafter, DraftRequest
from tests.decoding.drafters.factories import FACTORIES
from tests.decoding.drafters.test_lookup import proposals, sources
from tests.decoding.toys import (
    SPECIAL,
    TableVerifier,
    both,
    decode_with,
    history,
    method_of,
    oracle,
    prefix_of,
    random_table,
    requests,
)

TABLE = random_table()
EOS = SPECIAL.eos
NETWORK = cast(Any, FACTORIES["block:head"](TableVerifier(TABLE))).network


def opened(hints: list[list[int]], network: Any = None, **options: Any) -> Drafter:
    context = DraftContext(TableVerifier(TABLE), network)
    drafter = DRAFTERS.build("hint", context, options=options)
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


class _Block:
    """In the place of the block drafter: says the same wherever it is asked."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens, self.asked = torch.tensor(tokens), torch.zeros(0)

    def admit(self, source: Any) -> None:
        pass

    def propose(self, asked: DraftRequest) -> Draft:
        self.asked = asked.budget
        return Draft(self._tokens.expand(len(asked.budget), -1), asked.budget.clamp(max=3))


@pytest.mark.parametrize(
    ("hint", "prefix", "options", "want"),
    [
        ([5, 6, 7, 8], [], {}, [5, 6, 7, 8]),  # agreed upon
        ([5, 6, 7, 8, 4], [5, 6], {}, [5, 6, 9]),  # not what follows in the hint
        ([3, 3, 5, 6, 7, 8], [3, 3], {}, [5, 6, 7, 8]),
        ([3, 3, 5, 8, 7, 8], [3, 3], {}, [5, 6, 9]),  # one token in common is too few
        ([3, 3, 5, 8, 7, 8], [3, 3], {"agreement": 1}, [5, 8, 7, 8]),
        ([3, 3, 7, 8, 7, 8], [3, 3], {"agreement": 0}, [7, 8, 7, 8]),
        ([3, 3, 7, 8, 7, 8], [3, 3], {"max_ngram": 2}, [7, 8, 7, 8]),  # long enough: not asked
        ([3, 3, 7, 6, 9, 8], [3, 3], {}, [5, 6, 9, 8]),  # found again behind the block
        ([3, 3, 5], [3, 3], {}, [5, 6, 9]),
        ([3, 3], [3, 3], {}, [5, 6, 9]),  # only its end is left
        ([], [3, 3], {}, [5, 6, 9]),
    ],
)
def test_hint_or_block(
    hint: list[int], prefix: list[int], options: dict[str, Any], want: list[int]
) -> None:
    one: Any = opened([[7] * 9, hint, [8]], NETWORK, **options)
    one._blocks = block = _Block([5, 6, 9])
    assert proposals(one, [[7, 7], prefix, [4, 4]])[1] == want
    assert (int(block.asked[1]) > 0) == (want[0] == 5)


def test_hints_are_followed_alike() -> None:
    """By the kernel and by torch; few types, so that n-grams come again."""
    random = torch.Generator().manual_seed(0)

    def some(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=random)

    for _ in range(100):
        lengths = some(9, 4)
        hints = (some(3, 4, 8) + 4).masked_fill(torch.arange(8) >= lengths[:, None], -1)
        hints[torch.arange(4), lengths.clamp(max=7)] = torch.where(lengths < 8, EOS, hints[:, 7])
        prefix = prefix_of([(some(3, int(some(7, 1))) + 4).tolist() for _ in range(4)])
        draft = Draft(some(3, 4, 3) + 4, some(4, 4))
        budget = torch.maximum(some(8, 4), draft.lengths)
        arguments = (hints, prefix, draft, budget, 7, (1 + int(some(2, 1)), 4), EOS)
        (one, counts, matched), (other, *rest) = both(partial(follow, *arguments))
        assert [counts.tolist(), matched.tolist()] == [found.tolist() for found in rest]
        inside = torch.arange(7) < counts[:, None]
        assert torch.equal(one[inside], other[inside])


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
    method = method_of(FACTORIES["hint:block, unasked"](verifier))
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
