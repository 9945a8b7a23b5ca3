from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdec_plugins.decoding.drafters import DraftContext, build_drafter
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.types import DecodeParams, Prefix, RowParams
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError
from tests.decoding.networks.toys import EOS, UNK, block_drafter, remember, transformer
from tests.decoding.test_verifier import SPECIAL, Row, batch, prefix_of

ROWS = [
    Row([5, 9, 7, 8, EOS], [EOS, 4, UNK, 9, 11, 6]),
    Row([8, EOS], [EOS]),
    Row([6, 12, 13, EOS], [EOS, 7, 15]),
]
RANDOM = HashRandom(torch.zeros(3, dtype=torch.int64))


def params(*block_sizes: int) -> RowParams:
    return DecodeParams.stack(
        [DecodeParams(block_size=k) for k in block_sizes], torch.device("cpu")
    )


def drafter_of(network: BlockDrafter, rows: list[Row]) -> BlockNatDrafter:
    verifier = TransformerVerifier(transformer(), SPECIAL)
    drafter = build_drafter("block", DraftContext(verifier, network))
    assert isinstance(drafter, BlockNatDrafter)
    drafter.admit(batch(rows))
    return drafter


def alone(network: BlockDrafter, row: Row, num_masks: int) -> list[int]:
    """The published way: one row, no padding, all masks read off."""
    tokens = torch.tensor([[*row.tokens[1:], *[UNK] * num_masks]])
    states = network.decoder(tokens, remember(network, torch.tensor([row.source])))
    best: list[int] = network.decoder.logits(states)[0, -num_masks:].argmax(-1).tolist()
    return best


def until_end(tokens: list[int]) -> list[int]:
    """Up to the first end of the sentence: nothing behind it can be kept."""
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.mark.parametrize("copy_source", [True, False])
def test_drafts_each_row_as_if_alone(copy_source: bool) -> None:
    network = block_drafter(copy_source=copy_source)
    drafter = drafter_of(network, ROWS)
    budget = torch.tensor([6, 6, 6])
    draft = drafter.propose(prefix_of(ROWS), budget, 6, params(6, 6, 6), RANDOM)
    expected = [until_end(alone(network, row, 6)) for row in ROWS]
    assert draft.lengths.tolist() == [len(row) for row in expected]
    rows = zip(draft.tokens.tolist(), expected, strict=True)
    assert [tokens[: len(wanted)] for tokens, wanted in rows] == expected
    assert draft.probs is None
    assert len({tuple(row) for row in expected}) == 3  # or the test could not fail


def test_the_number_of_masks_is_the_requests_own() -> None:
    """Neither a smaller budget, nor the neighbours' blocks, nor K change what a row drafts."""
    network = block_drafter(seed=5)
    drafter = drafter_of(network, ROWS)
    budget = torch.tensor([2, 0, 3])
    draft = drafter.propose(prefix_of(ROWS), budget, 3, params(6, 5, 4), RANDOM)
    assert draft.tokens[0, :2].tolist() == alone(network, ROWS[0], 6)[:2]
    assert draft.tokens[2].tolist() == alone(network, ROWS[2], 4)[:3]
    assert draft.tokens[2].tolist() != alone(network, ROWS[2], 6)[:3]  # or it could not fail
    assert draft.lengths.tolist() == [2, 0, 3]
    assert draft.tokens.shape == (3, 3)


def test_a_wider_result_than_any_block_is_not_needed() -> None:
    network = block_drafter()
    drafter = drafter_of(network, ROWS)
    draft = drafter.propose(prefix_of(ROWS), torch.tensor([2, 0, 3]), 8, params(2, 0, 3), RANDOM)
    assert draft.tokens.shape == (3, 3)
    assert draft.tokens[2, :3].tolist() == alone(network, ROWS[2], 3)


def test_rows_come_and_go() -> None:
    network = block_drafter()
    drafter = drafter_of(network, ROWS[:2])
    drafter.propose(prefix_of(ROWS[:2]), torch.tensor([2, 2]), 2, params(2, 2), RANDOM)
    drafter.admit(batch(ROWS[2:]))
    drafter.select(torch.tensor([2, 0]))
    rows = [ROWS[2], ROWS[0]]
    draft = drafter.propose(prefix_of(rows), torch.tensor([4, 6]), 6, params(4, 6), RANDOM)
    assert draft.tokens[0, :4].tolist() == alone(network, rows[0], 4)
    assert draft.tokens[1].tolist() == alone(network, rows[1], 6)
    drafter.select(torch.zeros(0, dtype=torch.int64))
    drafter.admit(batch(ROWS[:1]))
    draft = drafter.propose(prefix_of(ROWS[:1]), torch.tensor([3]), 3, params(3), RANDOM)
    assert draft.tokens[0].tolist() == alone(network, ROWS[0], 3)


def test_a_stale_width_changes_nothing() -> None:
    """After the longest row has left, the prefix is still as wide as it was."""
    network = block_drafter()
    drafter = drafter_of(network, ROWS[1:])
    prefix: Prefix = replace(prefix_of(ROWS[1:]), width=20)
    draft = drafter.propose(prefix, torch.tensor([4, 4]), 4, params(4, 4), RANDOM)
    assert draft.tokens.tolist() == [alone(network, row, 4) for row in ROWS[1:]]


def test_the_device_is_asked_once_while_the_rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_of(block_drafter(), ROWS)
    drafter._asks = False
    arguments = (prefix_of(ROWS), torch.tensor([2, 0, 3]), 3, params(4, 4, 4), RANDOM)
    drafter.propose(*arguments)

    def refuse(*args: object) -> None:
        raise AssertionError("the host waits for the device")

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "cpu", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    drafter.propose(*arguments)


def test_says_what_it_can_do() -> None:
    assert drafter_of(block_drafter(block_size=6), ROWS).max_block_size == 6


def test_needs_a_network_of_its_own_kind() -> None:
    verifier = TransformerVerifier(transformer(), SPECIAL)
    for network in (None, transformer()):
        with pytest.raises(UserError, match="needs a checkpoint that was trained for it"):
            build_drafter("block", DraftContext(verifier, network))


def test_vocabularies_that_differ_are_both_named() -> None:
    config = transformer().config
    larger = replace(config, decoder=replace(config.decoder, vocab_size=29))
    verifier = TransformerVerifier(Transformer(larger), SPECIAL)
    with pytest.raises(UserError, match="of 23 symbols and the verifier on one of 29"):
        build_drafter("block", DraftContext(verifier, block_drafter()))
