"""The block drafter, published and fast: each row as if alone, and what the fast one keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.contract import DraftRequest, Prefix
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.drafters.block import BlockNatDrafter
from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.networks.transformer import same_encoder
from specdec_plugins.decoding.requests import Request, RowParams
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.networks.toys import (
    EOS,
    PAD,
    UNK,
    block_drafter,
    fast_drafter,
    randomise,
    remember,
    sentences,
    transformer,
)
from tests.decoding.test_verifier import Row, batch, prefix_of
from tests.decoding.toys import SPECIAL, forbid_waiting, history, method_of, row_params
from tests.refusals import refused

ROWS = [
    Row([5, 9, 7, 8, EOS], [EOS, 4, UNK, 9, 11, 6]),
    Row([8, EOS], [EOS]),
    Row([6, 12, 13, EOS], [EOS, 7, 15]),
]
RANDOM = HashRandom(torch.zeros(3, dtype=torch.int64))


def params(*block_sizes: int) -> RowParams:
    return row_params(len(block_sizes), block_size=block_sizes)


def drafter_of(network: BlockDrafter, rows: list[Row], **options: Any) -> BlockNatDrafter:
    verifier = TransformerVerifier(transformer(), SPECIAL)
    context = DraftContext(verifier, network)
    drafter = DRAFTERS.build("block", context, options=options)
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
    draft = drafter.propose(DraftRequest(prefix_of(ROWS), budget, 6, params(6, 6, 6), RANDOM))
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
    draft = drafter.propose(DraftRequest(prefix_of(ROWS), budget, 3, params(6, 5, 4), RANDOM))
    assert draft.tokens[0, :2].tolist() == alone(network, ROWS[0], 6)[:2]
    assert draft.tokens[2].tolist() == alone(network, ROWS[2], 4)[:3]
    assert draft.tokens[2].tolist() != alone(network, ROWS[2], 6)[:3]  # or it could not fail
    assert draft.lengths.tolist() == [2, 0, 3]
    assert draft.tokens.shape == (3, 3)
    # A wider result than any block is not needed.
    draft = drafter.propose(DraftRequest(prefix_of(ROWS), budget, 8, params(2, 0, 3), RANDOM))
    assert draft.tokens.shape == (3, 3)
    assert draft.tokens[2, :3].tolist() == alone(network, ROWS[2], 3)


@pytest.mark.parametrize("fast", [False, True])
def test_the_device_is_asked_once_while_the_rows_stay(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = built(BlockNatDrafter) if fast else drafter_of(block_drafter(), ROWS)
    if fast:
        drafter.verifier.admit(batch(ROWS))
        drafter.admit(batch(ROWS))
    drafter._may_wait = False
    budget = torch.tensor([2, 0, 3])
    asked = DraftRequest(prefix_of(ROWS), budget, 3, params(4, 4, 4), RANDOM)
    drafter.propose(asked)
    forbid_waiting(monkeypatch)
    drafter.propose(asked)


def test_behind_a_head_blocks_may_be_twice_as_long_as_in_training() -> None:
    assert drafter_of(block_drafter(block_size=6), ROWS).max_block_size == 6
    drafter = drafter_of(block_drafter(block_size=3, sequential_head=8, cached_prefix=True), ROWS)
    assert drafter.max_block_size == 6
    asked = DraftRequest(prefix_of(ROWS), torch.tensor([6, 2, 6]), 6, params(6, 6, 6), RANDOM)
    drafted = drafter.propose(asked)
    assert drafted.tokens.shape[1] > 3
    assert drafted.lengths[1] <= 2


def test_needs_a_network_of_its_own_vocabulary() -> None:
    larger = DraftContext(TransformerVerifier(transformer(vocab_size=29), SPECIAL), block_drafter())
    refused("of 23 symbols and the verifier on one of 29", DRAFTERS.build, "block", larger)


VERIFIER = transformer(positions="sinusoidal")
TOLERANCE = 1e-10  # float64, sums in another order


def jobs(*block_sizes: int) -> list[Request]:
    """Sources, forced prefixes and length limits of many lengths, block sizes in turn."""
    return sentences(
        9,
        num_forced=lambda i: (3 * i) % 5,
        block_size=lambda i: block_sizes[i % len(block_sizes)],
        max_len=lambda i: 9 + (7 * i) % 14,
        beta=6,
        tau=1e9,
    )


class Doubled(BlockNatDrafter):
    """Computes every pass twice: with what is kept, and from nothing."""

    num_passes = 0
    num_kept = 0

    def _predict(self, prefix: Prefix, num_masks: Tensor, most: int, num_used: int) -> Tensor:
        kept = self._cache
        self._cache, self.keeps_prefix = self._new_cache(len(num_masks)), False
        slow = super()._predict(prefix, num_masks, most, num_used)
        self._cache, self.keeps_prefix = kept, True
        self.num_kept += int(kept.lengths.sum())
        fast = super()._predict(prefix, num_masks, most, num_used)
        used = torch.arange(num_used) < num_masks[:, None]
        logits = [self.network.decoder.logits(states[used]) for states in (fast, slow)]
        torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=TOLERANCE)
        self.num_passes += 1
        return fast


def decode(drafter: Any, requests: list[Request], rows: int, schedule: str) -> Any:
    # A random verifier is sure of little; without drafts in some rounds nothing would be tried.
    options = {"threshold": 0.2} if schedule == "target_confidence" else {}
    method = method_of(drafter, "top_beta", schedule, **options)
    return history(drafter.verifier, method, requests, max_rows=rows, compact_at=0.3)


def built(cls: type[BlockNatDrafter], num_layers: int = 2, **options: Any) -> Any:
    verifier = TransformerVerifier(VERIFIER, SPECIAL)
    context = DraftContext(verifier, fast_drafter(VERIFIER, num_layers=num_layers))
    drafter = cls(BlockNatDrafter.Config(**options), context)
    drafter.verifier = verifier  # type: ignore[attr-defined]
    return drafter


MIXED = (1, 25, 2, 5)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize(
    ("block_sizes", "schedule"),
    [
        *(((size,), "constant") for size in MIXED),
        *((MIXED, schedule) for schedule in ("constant", "heuristic", "target_confidence")),
    ],
    ids=str,
)
def test_what_is_kept_changes_no_logit(
    num_layers: int, block_sizes: tuple[int, ...], schedule: str
) -> None:
    drafter = built(Doubled, num_layers)
    told = decode(drafter, jobs(*block_sizes), 4, schedule)
    kept = {num_accepted for rounds in told.values() for _, num_accepted in rounds}
    assert len(kept) > 1  # or nothing was ever rolled back
    assert drafter.num_passes > 5
    assert drafter.num_kept > 10


def test_where_the_host_may_not_ask_it_reads_up_to_a_bound() -> None:
    drafter = built(Doubled)
    drafter._may_wait = False
    asking = decode(built(Doubled), jobs(1, 5, 25), 4, "constant")
    assert decode(drafter, jobs(1, 5, 25), 4, "constant") == asking


def test_drafts_of_all_four_twins_are_the_same() -> None:
    requests = jobs(5, 2)
    expected = decode(built(BlockNatDrafter), requests, 4, "constant")
    for options in ({"cache": False}, {"share_encoder": False}):
        drafter = built(BlockNatDrafter, **options)
        assert drafter.keeps_prefix == options.get("cache", True)
        assert bool(drafter.encoded_by) == options.get("share_encoder", True)
        assert decode(drafter, requests, 4, "constant") == expected
    for request in requests:  # and of a row alone
        alone = decode(built(BlockNatDrafter), [request], 1, "constant")
        assert alone[request.id] == expected[request.id]


def test_it_encodes_nothing_where_the_encoder_is_the_verifier_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = built(BlockNatDrafter, share_encoder=True)

    def refuse(*args: object) -> None:
        raise AssertionError("encoded twice")

    monkeypatch.setattr(drafter.network.encoder, "forward", refuse)
    decode(drafter, jobs(5), 4, "constant")


def test_an_encoder_of_another_kind_is_not_shared() -> None:
    verifier = TransformerVerifier(VERIFIER, SPECIAL)
    changed = fast_drafter(VERIFIER)
    changed.encoder.layers[1].up.weight[0, 0] += 1e-9
    for network in (changed, block_drafter()):
        drafter = DRAFTERS.build("block", DraftContext(verifier, network))
        assert isinstance(drafter, BlockNatDrafter)
        assert not drafter.encoded_by
        told, asked = "encoder differs from this verifier's", {"share_encoder": True}
        refused(told, DRAFTERS.build, "block", DraftContext(verifier, network), options=asked)


def _changed(**changes: Any) -> Transformer:
    config = VERIFIER.config
    stack = {k: changes.pop(k) for k in ("num_heads", "positions", "max_positions") if k in changes}
    network = Transformer(replace(config, encoder=replace(config.encoder, **stack), **changes))
    randomise(network, 5)
    state = dict(VERIFIER.encoder.state_dict())
    if stack.get("positions") == "learned":
        state["embedding.positions.weight"] = VERIFIER.encoder.embedding.positions.weight[:22]
    network.encoder.load_state_dict(state)
    return network


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"max_positions": 20}, True),
        ({"positions": "learned", "max_positions": 20}, True),
        ({"activation": "gelu"}, False),
        ({"scale_embedding": False}, False),
        ({"num_heads": 4}, False),
        ({"pad": 0}, False),
    ],
    ids=str,
)
def test_equal_encoders_are_told_from_others(changes: dict[str, Any], same: bool) -> None:
    other = _changed(**changes).encoder
    assert same_encoder(VERIFIER.encoder, other) == same
    source = torch.tensor([[5, 9, 7, 3, EOS], [8, 4, EOS, PAD, PAD]])
    if same:
        assert torch.equal(other(source)[0], VERIFIER.encoder(source)[0])


def test_a_draft_stops_where_its_head_is_unsure() -> None:
    network = block_drafter(sequential_head=16)
    asked = DraftRequest(prefix_of(ROWS), torch.tensor([6, 6, 2]), 6, params(6, 6, 6), RANDOM)
    whole = drafter_of(network, ROWS, confidence=1e-9).propose(asked)
    assert whole.confidences is not None
    probs = whole.confidences.cumprod(1).tolist()  # of all so far
    kinds = set()
    for threshold in [0.99, *sum(probs, [])]:
        cut = drafter_of(network, ROWS, confidence=threshold).propose(asked)
        for row, length in enumerate(cut.lengths.tolist()):
            assert torch.equal(cut.tokens[row, :length], whole.tokens[row, :length])
            assert all(prob >= threshold for prob in probs[row][:length])
            is_cut = length < int(whole.lengths[row])
            assert not is_cut or probs[row][length] < threshold
            kinds.add((is_cut, length > 0))
    assert kinds == {(True, True), (True, False), (False, True)}
    told = "confidence applies to a drafter with a sequential head"
    refused(told, drafter_of, block_drafter(), ROWS, confidence=0.2)


@pytest.mark.parametrize(("apart", "same"), [(3e-4, True), (0.01, False)])
def test_stored_sinusoids_are_those_of_another_processor(apart: float, same: bool) -> None:
    other = _changed(positions="learned", max_positions=20).encoder
    other.embedding.positions.weight.data[-1] += apart
    assert same_encoder(VERIFIER.encoder, other) == same
