"""The block drafter's inference network against the fairseq module that was trained."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.networks import BlockDrafter
from tests import fairseq_checkpoints
from tests.decoding.networks.toys import PAD, UNK, block_drafter, remember, trained_pair
from tests.fairseq_checkpoints import LEARNED

CASES: list[dict[str, Any]] = [
    {"share_all_embeddings": True, "src_embedding_copy": True, "activation_fn": "gelu", **LEARNED},
    {"src_embedding_copy": True, "scale_decoder_embedding": True, **LEARNED},
    {"src_embedding_copy": True, "scale_encoder_embedding": True, **LEARNED},
    {"activation_fn": "tanh", "share_decoder_input_output_embed": True},
    {"encoder_normalize_before": True, "src_embedding_copy": True, **LEARNED},
    {"layernorm_embedding": True, "src_embedding_copy": True},
]


def _inputs() -> tuple[Tensor, Tensor]:
    """Ragged sources, and ragged prefixes (one with a committed `<unk>`) with masks behind."""
    source = torch.tensor([[5, 9, 7, 3, 2], [8, 4, 2, PAD, PAD], [6, 2, PAD, PAD, PAD]])
    target = torch.tensor(
        [
            [4, UNK, 9, UNK, UNK, UNK, UNK],
            [UNK, UNK, UNK, UNK, PAD, PAD, PAD],
            [7, UNK, UNK, UNK, UNK, PAD, PAD],
        ]
    )
    return source, target


@pytest.mark.fairseq
@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(case))
def test_equals_the_trained_module(case: dict[str, Any], tmp_path: Path) -> None:
    model, network = trained_pair("block", BlockDrafter, {"block_size": 4, **case}, tmp_path)
    source, target = _inputs()
    logits = network.decoder.logits(network.decoder(target, remember(network, source)))
    kept = target != PAD
    blocks = kept & (torch.arange(7) >= torch.tensor([[3], [2], [1]]))
    # the trained module mixes in single precision
    tolerance = 1e-5 if case.get("src_embedding_copy") else 1e-10
    for scored, training in product((kept, blocks), (False, True)):
        with torch.no_grad(), fairseq_checkpoints.double_precision():
            found = model.train(training)(source, (source != PAD).sum(1), target, target, scored)
        torch.testing.assert_close(found.logits, logits[scored], rtol=0, atol=tolerance)
        assert torch.equal(found.targets, target[scored])
        assert found.num_masked == scored.sum()


def test_a_committed_unk_is_mixed_like_a_mask() -> None:
    """The word embedding of `<unk>` is never read, wherever it stands."""
    network = block_drafter()
    source = torch.tensor([[5, 9, 7, 2]])  # no <unk> here: the tables are shared
    target = torch.tensor([[UNK, 4, UNK, UNK]])
    before = network.decoder(target, remember(network, source))
    network.decoder.tokens.weight.data[UNK] += 1.0
    torch.testing.assert_close(network.decoder(target, remember(network, source)), before)
