"""What the kernels do around the layers of a round, against the same by torch's operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.contract import Draft, Prefix, Verdict
from specdec_plugins.decoding.extend import extend
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.ops import (
    at,
    best,
    largest,
    leading_best,
    leading_log_probs,
    leading_true,
    log_total,
    rank,
)
from tests.decoding.networks.toys import transformer
from tests.decoding.toys import SPECIAL, both, row_params


@pytest.fixture(params=range(20))
def random(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator().manual_seed(request.param)


def integers(low: int, high: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Up to `high`, which is included."""
    return torch.randint(low, high + 1, shape, generator=random)


def check_alike(step: Callable[[], Sequence[Tensor]]) -> None:
    """To the type and the bit, with the kernels and without them."""
    for one, other in zip(*both(step), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_rows_are_extended_alike(random: torch.Generator) -> None:
    """Small tokens, so that eos comes often; short rows, so that many are full."""
    num_rows, num_drafted, max_len = 7, int(integers(0, 4, (1,), random)), 6
    prefix = Prefix(
        tokens=integers(0, 9, (num_rows, max_len + 1), random),
        lengths=integers(1, max_len, (num_rows,), random),
        active=integers(0, 3, (num_rows,), random) > 0,
        width=max_len,
    )
    drafted = integers(0, num_drafted, (num_rows,), random)
    # A slice, as a drafter may hand out.
    draft = Draft(integers(0, 4, (num_rows, num_drafted + 2), random)[:, :num_drafted], drafted)
    accepted = (drafted * torch.rand(num_rows, generator=random)).round().long()
    verdict = Verdict(accepted, integers(0, 4, (num_rows,), random))
    params = row_params(num_rows, max_len=max_len)

    def extended() -> list[Tensor]:
        own = copy.deepcopy(prefix)
        got = extend(own, draft, verdict, params, SPECIAL.eos)
        return [*vars(got).values(), own.tokens, own.lengths, own.active]

    check_alike(extended)


def test_logits_are_read_alike(random: torch.Generator) -> None:
    num_rows, num_drafted, width = 5, int(integers(0, 3, (1,), random)), 4
    logits = torch.randn(num_rows, num_drafted + 1, width, generator=random).round()  # ties
    drafted = integers(0, width - 1, (num_rows, num_drafted), random)
    # Half of the drafts are right to the end.
    drafted[::2] = logits[::2, :-1].argmax(-1)
    lengths = integers(0, num_drafted, (num_rows,), random)
    tokens = integers(0, width - 1, (num_rows, num_drafted + 1), random)
    counts = integers(0, num_drafted + 1, (num_rows,), random)
    tokens[torch.arange(num_drafted + 1) >= counts[:, None]] = 10**6  # junk
    check_alike(lambda: leading_best(logits, drafted, lengths))
    sums = both(lambda: leading_log_probs(logits, tokens, counts))
    torch.testing.assert_close(*sums, rtol=1e-5, atol=1e-5)  # normalised in float32


def test_reductions_are_torchs(random: torch.Generator) -> None:
    logits = torch.randn(4, 3, 37, generator=random) * 20
    tokens = torch.randint(37, (4, 3), generator=random)
    check_alike(lambda: [best(logits), *largest(logits[0], 7)])
    order = logits.argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(order.gather(-1, rank(logits, tokens)[..., None])[..., 0], tokens)
    torch.testing.assert_close(*both(lambda: log_total(logits)))


def test_bits_are_masks() -> None:
    seen = torch.tensor([[0b00000101, 0], [255, -(2**63)], [-1, 0]])
    shown = [[0, 2], [*range(8), 127], [*range(64)]]
    found = ops.mask_of_bits(seen, torch.float64)
    assert [(row == 0).nonzero()[:, 0].tolist() for row in found] == shown
    assert {0.0, -torch.inf} == set(found.flatten().tolist())


@pytest.mark.parametrize("width", [1, 7, 300])
def test_rows_without_numbers_are_found_alike(width: int) -> None:
    logits = torch.randn(7, 2, width)
    logits[:, 0] = torch.nan  # which nobody asks about
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf, 3.4e38, -3.4e38)):
        logits[row, 1, width // 2] = value
    logits[5, 1] = -torch.inf
    columns = torch.tensor([1, 1, 1, 1, 1, 1, 9])  # one too far means the last
    active = torch.ones(7, dtype=torch.bool)
    for found in both(lambda: ops.failed(logits, columns, active).tolist()):
        assert found == [True, True, width == 1, False, False, True, False]
    assert not any(both(lambda: ops.failed(logits, columns, ~active).any().item()))


@pytest.mark.parametrize("scaled", [True, False])
def test_tokens_are_embedded_alike(random: torch.Generator, scaled: bool) -> None:
    network = transformer().float()
    table, embedding = network.config.decoder, network.decoder.embedding
    embedding.scale = 2.5 if scaled else 1.0
    shape = (3, 5)
    tokens = integers(0, table.vocab_size - 1, shape, random)
    positions = integers(0, table.max_positions + 2, shape, random)  # junk past the table
    with torch.inference_mode():
        with pytest.raises(IndexError, match="is not in the vocabulary"):
            embedding(tokens + table.vocab_size, positions)
        found = both(lambda: embedding(tokens, positions))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)  # product and sum may be fused


def test_types_of_a_source_are_listed_once(random: torch.Generator) -> None:
    num_sources, vocab_size = 6, 40
    counts = integers(0, 4, (num_sources,), random)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    types = integers(0, vocab_size - 1, (int(starts[-1]),), random).int()
    common = integers(0, vocab_size - 1, (3,), random).int()
    source_ids = integers(0, num_sources - 1, (5,), random)
    own = {*common.tolist()}
    for source in source_ids.tolist():
        own |= {*types[starts[source] : starts[source + 1]].tolist()}
    assert ops.listed(source_ids, starts, types, common, vocab_size).tolist() == sorted(own)


def test_a_verdict_that_counts_wrongly_writes_nowhere_else() -> None:
    tokens = torch.full((3, 4), 7)
    prefix = Prefix(tokens[1:2], torch.tensor([2]), torch.tensor([True]), width=2)
    draft = Draft(torch.tensor([[5, 6]]), torch.tensor([2]))
    for accepted in (-1, 99):
        verdict = Verdict(torch.tensor([accepted]), torch.tensor([8]))
        extend(prefix, draft, verdict, row_params(1, max_len=90), SPECIAL.eos)
    assert tokens[0].tolist() == tokens[2].tolist() == [7] * 4


def test_what_a_kernel_cannot_read_is_copied_or_refused() -> None:
    logits = torch.randn(6, 4).t()
    out = torch.empty(4, dtype=torch.int64)
    ops.native.best(logits, out, 1)  # read through a dense copy
    assert torch.equal(out, logits.argmax(-1))
    for wrong in (logits.double(), logits.to("meta"), [1.0, 2.0]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            ops.native.best(wrong, out, 1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ops.native.best(logits, torch.empty(8, dtype=torch.int64)[::2], 1)  # is written in place


ONE = torch.ones(1, dtype=torch.int64)
LOGITS = torch.zeros(1, 2, 4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ops.native.best(LOGITS, torch.zeros(1, 64).long(), 1), ValueError, "in rows"),
        (lambda: ops.native.best(LOGITS, ONE, 1), ValueError, "in rows"),
        (
            lambda: leading_log_probs(LOGITS, torch.tensor([[1, 4]]), 2 * ONE),
            IndexError,
            "token 4 is not in the vocabulary",
        ),
        (lambda: leading_log_probs(LOGITS, ONE[None], ONE), ValueError, "differ in columns"),
        (lambda: leading_best(LOGITS[0], ONE[None], ONE), TypeError, "incompatible function"),
        (lambda: leading_best(LOGITS, ONE[None], torch.ones(2).long()), ValueError, "in rows"),
        (lambda: leading_best(LOGITS, torch.zeros(1, 3).long(), ONE), ValueError, "in columns"),
        (lambda: ops.failed(LOGITS, ONE, torch.ones(2).bool()), ValueError, "differ in rows"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    call: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()


def test_lengths_past_a_draft_count_for_its_end() -> None:
    logits = torch.zeros(1, 2, 8)
    logits[..., 3] = 1
    check_alike(lambda: leading_best(logits, torch.tensor([[3]]), torch.tensor([5])))
    sums = both(lambda: leading_log_probs(logits, torch.tensor([[3, 4]]), torch.tensor([5])))
    torch.testing.assert_close(*sums)


def test_leading_true_counts_to_the_first_false() -> None:
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert leading_true(mask).tolist() == [2, 0, 4, 0]
    assert leading_true(torch.zeros(3, 0, dtype=torch.bool)).tolist() == [0, 0, 0]


def test_at_reads_one_entry_a_row() -> None:
    values = torch.arange(24).view(2, 3, 4)
    index = torch.tensor([2, 0])
    assert at(values, index).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert at(values[..., 1], index).tolist() == [9, 13]
