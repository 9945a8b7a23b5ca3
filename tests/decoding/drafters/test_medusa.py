from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.networks import MedusaConfig, MedusaHeads, Transformer
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.drafters.test_early_exit import NETWORKS, jobs
from tests.decoding.networks.toys import EOS, full_logits, randomise
from tests.decoding.toys import SPECIAL, events_of, method_of
from tests.refusals import refused

NETWORK = NETWORKS["pre-norm"]


def heads(num_heads: int = 6, dim: int = 16) -> MedusaHeads:
    network = MedusaHeads(MedusaConfig(num_heads, dim))
    randomise(network, seed=1)
    return network


def parts(network: nn.Module) -> tuple[TransformerVerifier, Method]:
    verifier = TransformerVerifier(NETWORK, SPECIAL)
    return verifier, method_of(DRAFTERS.build("medusa", DraftContext(verifier, network)))


def guesses(network: Transformer, source_ids: list[int], target_ids: list[int]) -> list[int]:
    """What the heads say of the state behind the last but one target token, by definition."""
    kept: list[Tensor] = []
    hook = network.decoder.output.register_forward_pre_hook(lambda m, args: kept.append(args[0]))
    full_logits(network, torch.tensor([source_ids]), torch.tensor([[EOS, *target_ids[:-1]]]))
    hook.remove()
    states = heads()(kept[0][:, -1], 6)[0]  # [K, D]
    return [int(network.decoder.logits(state).argmax()) for state in states]


def test_drafts_are_the_heads_guesses_of_the_state_that_gave_the_last_token() -> None:
    written = {job.id: list(job.forced_ids) for job in jobs()}
    begun, num_checked, distinct = set(), 0, set()
    sources = {job.id: job.source_ids for job in jobs()}
    for event in events_of(*parts(heads()), jobs(block_size=4, max_len=16), max_rows=3):
        if event.id not in begun:  # there is no state before the first round
            assert event.draft_ids == []
        else:
            want = guesses(NETWORK, sources[event.id], written[event.id])
            assert event.draft_ids == want[: len(event.draft_ids)]
            num_checked += len(event.draft_ids)
            distinct |= set(event.draft_ids)
        begun.add(event.id)
        written[event.id] += event.emitted_ids
    assert num_checked > 50
    assert len(distinct) > 3


def test_what_cannot_be_read_is_refused() -> None:
    verifier = TransformerVerifier(NETWORK, SPECIAL)
    context = DraftContext(verifier, heads(dim=8))
    told = "states of width 8, but the verifier's have width 16"
    refused(told, DRAFTERS.build, "medusa", context)
    assert not verifier.with_hidden
    assert DRAFTERS.build("medusa", DraftContext(verifier, heads(6))).max_block_size == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # by torch, and by the kernels
def test_each_head_is_the_residual_block_of_the_paper(dtype: torch.dtype) -> None:
    network = heads(num_heads=4, dim=6).to(dtype)
    hidden = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    for num_used in (1, 2, 4):
        states = network(hidden, num_used)
        assert states.shape == (3, num_used, 6)
        for k, state in enumerate(states.unbind(1)):
            rows = slice(6 * k, 6 * (k + 1))
            weight, bias = network.blocks.weight[rows], network.blocks.bias[rows]
            inner = nn.functional.linear(hidden, weight, bias)
            torch.testing.assert_close(state, hidden + inner * inner.sigmoid())
