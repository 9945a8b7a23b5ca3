"""The sequential head: a whole block in one call of the kernels, against torch place by place."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks.cache import SourceMemory
from specdec_plugins.decoding.networks.cpu.ops import instruction_sets
from specdec_plugins.decoding.networks.cpu.products import NativeHead, NativeLinear
from specdec_plugins.decoding.networks.heads import SequentialHead, Shortlist
from tests.decoding.networks.toys import randomise

pytestmark = pytest.mark.usefixtures("no_gradients")
KINDS = list(product(instruction_sets(), (False, True)))
DIM, HIDDEN, WIDTH, SOURCE_DIM = 39, 70, 300, 20


def native(head: SequentialHead, instruction_set: str, int8: bool) -> NativeHead:
    head = copy.deepcopy(head)
    for name, child in list(head.named_children()):
        if isinstance(child, nn.Linear) and name != "token":
            setattr(head, name, NativeLinear(child, int8, instruction_set))
    return NativeHead(head)


def inputs(rows: int, length: int, width: int = WIDTH) -> tuple[Tensor, ...]:
    """What `draft` reads: states, logits, tokens before and embeddings."""
    random = torch.Generator().manual_seed(rows)
    embeddings = torch.randn(width, DIM, generator=random)
    states = torch.randn(rows, length, DIM, generator=random) * 2
    before = torch.randint(width, (rows,), generator=random)
    return states, states @ embeddings.T, before, embeddings


def best_by_hand(place: int, candidates: Tensor, scores: Tensor) -> Tensor:
    return scores.argmax(-1)


def source_of(head: SequentialHead | NativeHead, lengths: Sequence[int]) -> SourceMemory:
    """What it reads of sources of these lengths; whatever layers read stands before it."""
    random = torch.Generator().manual_seed(sum(lengths))
    columns, ends = torch.arange(max(lengths)), torch.tensor(lengths)
    states = torch.randn(len(lengths), max(lengths), SOURCE_DIM, generator=random)
    of_layers = torch.randn(len(lengths), max(lengths), 2, 1, 4, generator=random)
    read = (of_layers, *head.keys_values(states))
    return SourceMemory(ends, columns >= ends[:, None], read).trimmed()


def toy_head(num_heads: int = 0) -> SequentialHead:
    head = SequentialHead(DIM, HIDDEN, num_heads, SOURCE_DIM)
    randomise(head, seed=1)
    head.out.weight *= 0.05  # so that several tokens are likely
    return head.float()


@pytest.mark.parametrize(("instruction_set", "int8"), KINDS)
@pytest.mark.parametrize("num_heads", [0, 3])
@pytest.mark.parametrize(("rows", "length", "width"), [(1, 1, 3), (1, 8, WIDTH), (9, 4, WIDTH)])
def test_a_block_is_drafted_as_place_by_place(
    instruction_set: str, int8: bool, num_heads: int, rows: int, length: int, width: int
) -> None:
    plain = toy_head(num_heads)
    given, head = inputs(rows, length, width), native(plain, instruction_set, int8)
    source = source_of(head, range(1, 1 + rows))
    found, confidences = head.draft(*given, 5, source)
    by_place = [head.draft(*given, 5, source, best_by_hand)]
    by_place += [] if int8 else [plain.draft(*given, 5, source_of(plain, range(1, 1 + rows)))]
    for expected, probs in by_place:
        assert torch.equal(found, expected)
        torch.testing.assert_close(confidences, probs, rtol=1e-4, atol=1e-5)
    assert confidences.min() >= 1 / 5
    if length > 1:
        assert confidences.min() < 0.9
        assert not torch.equal(found, given[1].argmax(-1))


@pytest.mark.parametrize(("instruction_set", "int8"), KINDS)
@pytest.mark.parametrize("num_candidates", [6, None])
def test_only_what_is_listed_is_drafted(
    instruction_set: str, int8: bool, num_candidates: int | None, threads_kept: None
) -> None:
    """Lists of each row's own, one of them shorter than its candidates; or all it has are."""
    states, _, before, embeddings = inputs(3, 5)
    head = native(toy_head(), instruction_set, int8)
    random = torch.Generator().manual_seed(1)
    types = [torch.randperm(WIDTH, generator=random)[:n].sort().values.int() for n in (3, 90, 200)]
    rows = [head.listed(own, embeddings) for own in types]
    project = nn.Linear(DIM, WIDTH, bias=False)
    project.weight.data = embeddings
    packed = NativeLinear(project, int8, instruction_set)
    given = before, embeddings, num_candidates
    if num_candidates is None:
        expected, probs = _by_scores(head._head, states, types, before, embeddings, packed)
    else:
        logits = only(packed(states), types)
        expected, probs = head.draft(states, logits, *given, None, best_by_hand)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found, confidences = head.draft(states, rows, *given)
        assert torch.equal(found, expected)
        torch.testing.assert_close(confidences, probs, rtol=1e-4, atol=1e-5)
    for row in range(3):
        alone, _ = head.draft(
            states[row : row + 1], rows[row : row + 1], before[row : row + 1], *given[1:]
        )
        assert torch.equal(alone, expected[row : row + 1])
        assert set(alone[0].tolist()) <= set(types[row].tolist())


def only(logits: Tensor, types: list[Tensor]) -> Tensor:
    """Logits [B, K, V], -inf for types that are not among those of their row."""
    rest = torch.ones_like(logits[:, 0], dtype=torch.bool)
    for row, own in enumerate(types):
        rest[row, own.long()] = False
    return logits.masked_fill(rest[:, None], -torch.inf)


def _by_scores(
    head: SequentialHead,
    states: Tensor,
    types: list[Tensor],
    before: Tensor,
    embeddings: Tensor,
    project: NativeLinear,
) -> tuple[Tensor, Tensor]:
    """What is drafted by a projection of corrected states, which may have 8 bits."""
    drafted, confidences = [], []
    for state in states.unbind(1):
        hidden = head.state(state) + head.table(embeddings)[before].float()
        logits = only(project(state + head.out(hidden.clamp(min=0)))[:, None], types)[:, 0]
        before = logits.argmax(-1)
        drafted.append(before)
        confidences.append(logits.softmax(-1).amax(-1))
    return torch.stack(drafted, 1), torch.stack(confidences, 1)


@pytest.mark.parametrize("num_heads", [0, 3])
def test_all_that_may_be_drafted_is_a_candidate(num_heads: int) -> None:
    head, (states, logits, before, embeddings) = toy_head(num_heads), inputs(3, 5)
    source = source_of(head, (4, 2, 3))
    types = [torch.arange(row, WIDTH, 3).int() for row in range(3)]
    logits = only(logits, types)
    found = head.draft(states, logits, before, embeddings, None, source)
    expected = head.draft(states, logits, before, embeddings, WIDTH, source)
    for part, own in zip(found, expected, strict=True):
        torch.testing.assert_close(part, own)
    assert all(
        set(row.tolist()) <= set(own.tolist()) for row, own in zip(found[0], types, strict=True)
    )
    assert not torch.equal(found[0], head.draft(states, logits, before, embeddings, 3, source)[0])


def test_a_shortlist_is_what_is_common_and_what_the_source_makes_likely() -> None:
    shortlist = Shortlist(source_size=4, num_common=2, num_types=5)
    shortlist.common[:] = torch.tensor([7, 2])
    shortlist.starts[:] = torch.tensor([0, 2, 2, 4, 5])
    shortlist.types[:] = torch.tensor([9, 3, 3, 8, 5])
    for source, expected in (([0], [2, 3, 7, 9]), ([1], [2, 7]), ([2, 0, 2], [2, 3, 7, 8, 9])):
        padded = torch.tensor([[*source, *[3] * (4 - len(source))], [1, 1, 1, 1]])
        allowed = shortlist.allowed(padded, torch.tensor([len(source), 4]), 10)
        assert [row.nonzero()[:, 0].tolist() for row in allowed] == [expected, [2, 7]]


def test_its_table_costs_half_a_float_and_next_to_no_precision() -> None:
    head, (*_, embeddings) = toy_head(), inputs(1, 1)
    exact = head.token(head.norm(embeddings))
    assert head.table(embeddings).dtype is torch.bfloat16
    torch.testing.assert_close(head.table(embeddings).float(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize(("instruction_set", "int8"), KINDS)
def test_a_block_is_the_same_in_any_batch_and_on_any_threads(
    instruction_set: str, int8: bool, threads_kept: None
) -> None:
    states, logits, before, embeddings = inputs(7, 6)
    head = native(toy_head(3), instruction_set, int8)
    source = source_of(head, range(9, 2, -1))
    given = [(states[i : i + 1], logits[i : i + 1], before[i : i + 1]) for i in range(7)]
    each = [
        head.draft(*own, embeddings, 16, source.select(torch.tensor([i])))
        for i, own in enumerate(given)
    ]
    alone = [torch.cat(parts) for parts in zip(*each, strict=True)]
    for threads, rows in product((1, 2, 3), (2, 7)):
        torch.set_num_threads(threads)
        read = source.select(torch.arange(rows))
        found = head.draft(states[:rows], logits[:rows], before[:rows], embeddings, 16, read)
        assert all(torch.equal(part, own[:rows]) for part, own in zip(found, alone, strict=True))


def test_what_was_drafted_decides_what_is_read() -> None:
    """Attention by hand, of one place, for each of two tokens before it."""
    head = toy_head(3)
    states, logits, before, embeddings = inputs(2, 1)
    source = source_of(head, (4, 2))
    told_of = []

    def choose(place: int, candidates: Tensor, scores: Tensor) -> Tensor:
        told_of.append((candidates, scores))
        return scores.argmax(-1)

    head.draft(states, logits, before, embeddings, 2, source, choose)
    ((candidates, found),) = told_of
    keys, values = source.keys_values[-1].unbind(2)
    for row, length in enumerate((4, 2)):
        told = head.state(states[row, 0]) + head.table(embeddings)[before[row]].float()
        read = []
        for query, own, worth in zip(
            told[HIDDEN:].view(3, -1), keys[row].unbind(1), values[row].unbind(1), strict=True
        ):
            weights = (own[:length] @ query / query.numel() ** 0.5).softmax(0)
            read.append(weights @ worth[:length])
        hidden = (told[:HIDDEN] + head.context.weight @ torch.cat(read)).clamp(min=0)
        corrected = states[row, 0] + head.out(hidden)
        torch.testing.assert_close(found[row], embeddings[candidates[row]] @ corrected)


def test_a_token_that_is_none_is_refused() -> None:
    states, logits, before, embeddings = inputs(1, 2)
    head = native(toy_head(), "plain", False)
    with pytest.raises(IndexError, match="token 300 is not in the vocabulary"):
        head.draft(states, logits, before * 0 + WIDTH, embeddings, 4)
