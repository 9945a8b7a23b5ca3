from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec_plugins.decoding.contract import Draft, Drafter, DraftRequest, SourceBatch
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.sampling import HashRandom
from tests.decoding.toys import SPECIAL, TableVerifier, prefix_of, random_table, row_params

EOS, PAD, UNK = SPECIAL.eos, SPECIAL.pad, SPECIAL.unk


def drafter(source_to_target: torch.Tensor | None = None, **options: Any) -> Drafter:
    context = DraftContext(TableVerifier(random_table()), source_to_target=source_to_target)
    return DRAFTERS.build("lookup", context, options=options)


def sources(rows: list[list[int]]) -> SourceBatch:
    """Sources of these tokens, eos appended; what pads them could be matched if it were read."""
    width = max(map(len, rows)) + 1
    tokens = torch.tensor([[*row, EOS] + [4] * (width - len(row) - 1) for row in rows])
    lengths = torch.tensor([len(row) + 1 for row in rows])
    start = torch.full((len(rows), 1), SPECIAL.start)
    return SourceBatch(tokens, lengths, start, torch.ones_like(lengths))


def proposals(
    of: Drafter, prefixes: list[list[int]], budget: int | list[int] = 4, width: int = 6
) -> list[list[int]]:
    num_rows = len(prefixes)
    budgets = torch.tensor([budget] * num_rows if isinstance(budget, int) else budget)
    params = row_params(num_rows)
    random = HashRandom(params.seed)
    draft = of.propose(DraftRequest(prefix_of(prefixes), budgets, width, params, random))
    assert isinstance(draft, Draft)
    rows = zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)
    return [tokens[:length] for tokens, length in rows]


def propose(source: list[int], prefix: list[int], budget: int = 4, **options: Any) -> list[int]:
    """One row's proposal, beside neighbours with other texts."""
    one = drafter(**options)
    one.admit(sources([[8, 8, 8], source, [7] * 9]))
    return proposals(one, [[8], prefix, [7, 7, 7, 7, 4]], budget)[1]


@pytest.mark.parametrize(
    ("source", "prefix", "options", "want"),
    [
        ([5, 6, 7, 8], [5, 6], {}, [7, 8, EOS]),  # copied to the source's end
        ([5, 6, 7, 8, 4, 4], [4, 5], {}, [6, 7, 8, 4]),  # no more than the budget
        ([5, 6, 7], [4], {}, []),  # nothing found
        ([5, 6, 7], [], {}, []),  # nothing to look up
        ([4, 6, 4, 8, 6, 7], [8, 6], {}, [7, EOS]),  # the longer match, not the first
        ([5, 7, 5, 8], [5], {}, [7, 5, 8, EOS]),  # of equal ones the first
        ([5, 7], [5, 8, 4, 5], {}, [7, EOS]),  # of equal ones the source's
        ([5, 7], [6, 5, 8, 4, 6, 5], {}, [8, 4, 6, 5]),  # longer in the prefix
        ([7], [5, 8, 4, 5], {}, [8, 4, 5]),  # to the prefix's end and no further
        ([6, 5, 7], [4, 5], {"min_ngram": 2}, []),
        ([4, 5, 7], [4, 5], {"min_ngram": 2}, [7, EOS]),
        ([6, 5, 4, 8, 5, 4, 7], [8, 5, 4], {"max_ngram": 2}, [8, 5, 4, 7]),
        ([6, 5, 4, 8, 5, 4, 7], [8, 5, 4], {"max_ngram": 3}, [7, EOS]),
        ([4, EOS], [4], {}, [EOS, EOS]),
        ([4, 5, EOS, 4, 6], [4], {}, [5, EOS, 4, 6]),  # the start token is no eos of the source's
        ([8, 4], [EOS], {"max_ngram": 1}, []),  # what follows the source's end is another text
    ],
)
def test_table(
    source: list[int], prefix: list[int], options: dict[str, Any], want: list[int]
) -> None:
    assert propose(source, prefix, **options) == want


def slow_lookup(source: list[int], prefix: list[int], longest: int, least: int) -> list[int]:
    """The definition in plain Python, without a budget."""
    for n in range(min(longest, len(prefix)), least - 1, -1):
        for text in (source, prefix):
            for at in range(n, len(text)):
                if text[at - n : at] == prefix[-n:]:
                    return text[at:]
    return []


@pytest.mark.parametrize(("longest", "least"), [(3, 1), (1, 1), (4, 2)])
def test_equals_its_definition_on_random_texts(longest: int, least: int) -> None:
    generator = torch.Generator().manual_seed(longest)

    def text() -> list[int]:
        length = int(torch.randint(1, 9, (), generator=generator))
        return (4 + torch.randint(0, 3, (length,), generator=generator)).tolist()

    texts, prefixes = [text() for _ in range(200)], [text() for _ in range(200)]
    one = drafter(max_ngram=longest, min_ngram=least)
    one.admit(sources(texts))
    budgets = [i % 5 for i in range(200)]
    want = [
        slow_lookup([*source, EOS], prefix, longest, least)[:budget]
        for source, prefix, budget in zip(texts, prefixes, budgets, strict=True)
    ]
    assert proposals(one, prefixes, budgets, width=4) == want


def test_symbols_are_mapped_where_dictionaries_differ() -> None:
    # Source ids 4..7 are the target's 8, 6, none, 5.
    mapping = torch.tensor([0, PAD, EOS, UNK, 8, 6, UNK, 5])
    one = drafter(source_to_target=mapping)
    one.admit(sources([[4, 5, 7, 6, 4], [3, 6, 7, 7, 7]]))
    assert proposals(one, [[8], [UNK]]) == [[6, 5], []]  # stops before what has no target symbol
