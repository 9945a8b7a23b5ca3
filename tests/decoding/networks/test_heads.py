from __future__ import annotations

import pytest
import torch
from torch import nn

from specdec_plugins.decoding.networks import MedusaConfig, MedusaHeads
from tests.decoding.networks.toys import randomise


@pytest.mark.parametrize("num_used", [1, 2, 4])
def test_each_head_is_the_residual_block_of_the_paper(num_used: int) -> None:
    heads = MedusaHeads(MedusaConfig(num_heads=4, dim=6))
    randomise(heads, seed=0)
    hidden = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()
    states = heads(hidden, num_used)
    assert states.shape == (3, num_used, 6)
    for k in range(num_used):
        block = nn.Linear(6, 6).double()
        block.weight.data = heads.blocks.weight[6 * k : 6 * (k + 1)]
        block.bias.data = heads.blocks.bias[6 * k : 6 * (k + 1)]
        inner = block(hidden)
        want = hidden + inner * inner.sigmoid()
        torch.testing.assert_close(states[:, k], want)


def test_weights_settle_how_many_heads_there_are() -> None:
    heads = MedusaHeads(MedusaConfig(num_heads=3, dim=4))
    state = heads.state_dict()
    config = MedusaHeads.described({}, state)
    assert config == MedusaConfig(3, 4)
    hidden = torch.ones(2, 4)
    assert torch.equal(MedusaHeads.read(config, state)(hidden, 3), heads(hidden, 3))
