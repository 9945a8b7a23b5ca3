"""What the kernels do around the layers of a round, against the same by torch's operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.networks.cpu.ops import (
    best,
    largest,
    leading_best,
    leading_log_probs,
    log_total,
    rank,
)
from tests.decoding.toys import both


@pytest.fixture(params=range(20))
def random(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator().manual_seed(request.param)


def integers(low: int, high: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Up to `high`, which is included."""
    return torch.randint(low, high + 1, shape, generator=random)


def test_ties_go_to_the_first(random: torch.Generator) -> None:
    logits = torch.randn(5, 4, 6, generator=random).round()
    first = [[row.index(max(row)) for row in rows] for rows in logits.tolist()]
    assert best(logits).tolist() == first
    drafted, lengths = torch.tensor(first)[:, :3], torch.tensor([3, 2, 0, 3, 5])
    drafted[3, 1] += 1
    num_kept, behind = leading_best(logits, drafted, lengths)
    assert num_kept.tolist() == [3, 2, 0, 1, 3]
    assert behind.tolist() == [row[n] for row, n in zip(first, num_kept, strict=True)]


def test_log_probs_are_those_of_the_first_tokens(random: torch.Generator) -> None:
    logits, counts = torch.randn(3, 4, 9, generator=random), torch.tensor([4, 2, 0])
    tokens = integers(0, 8, (3, 4), random)
    counted = torch.arange(4) < counts[:, None]
    own = logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    found = leading_log_probs(logits, tokens.masked_fill(~counted, 10**6), counts)  # junk
    torch.testing.assert_close(found, own * counted, rtol=1e-5, atol=1e-5)


def test_reductions_are_torchs(random: torch.Generator) -> None:
    logits = torch.randn(4, 3, 37, generator=random) * 20
    tokens = torch.randint(37, (4, 3), generator=random)
    for one, other in zip(*both(lambda: largest(logits[0], 7)), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
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
def test_rows_without_numbers_are_found(width: int) -> None:
    logits = torch.randn(7, 2, width)
    logits[:, 0] = torch.nan  # which nobody asks about
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf, 3.4e38, -3.4e38)):
        logits[row, 1, width // 2] = value
    logits[5, 1] = -torch.inf
    columns = torch.tensor([1, 1, 1, 1, 1, 1, 9])  # one too far means the last
    active = torch.ones(7, dtype=torch.bool)
    found = ops.failed(logits, columns, active).tolist()
    assert found == [True, True, width == 1, False, False, True, False]
    assert not ops.failed(logits, columns, ~active).any()


def test_what_a_kernel_cannot_read_is_copied_or_refused() -> None:
    logits = torch.randn(6, 4).t()
    out = torch.empty(4)
    ops.native.log_total(logits, out, 1)  # read through a dense copy
    torch.testing.assert_close(out, logits.logsumexp(-1))
    for wrong in (logits.double(), logits.to("meta"), [1.0, 2.0]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            ops.native.log_total(wrong, out, 1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ops.native.log_total(logits, torch.empty(8)[::2], 1)  # is written in place
    with pytest.raises(ValueError, match="in rows"):
        ops.native.log_total(logits, torch.empty(5), 1)
