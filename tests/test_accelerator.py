"""Decoding and training keep to the device that they are given: run on one that is not the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.models.glancing import Glance
from specdec_plugins.tasks.block_mask import mask_blocks
from tests import fairseq_checkpoints
from tests.accelerator import DEVICE, accelerator
from tests.fairseq_models import build_drafter

LINES = [" ".join(f"s{(i * 7 + j * 3) % 30}" for j in range(i + 2)) for i in range(3)]

DECODINGS: dict[str, dict[str, Any]] = {
    "AR": {"strategy": "AR"},
    "drafter alone": {"strategy": "drafter"},
    "exact": {},
    "relaxed": {"beta": 3, "tau": 1.0},
    "sampling": {"rule": "speculative_sampling", "top_k": 4, "top_p": 0.9, "seed": 3},
    "lookup": {"drafter": "lookup"},
    "jacobi": {"drafter": "jacobi"},
    "early exit": {"drafter": "early_exit", "drafter_options": {"exit_layer": 1}},
    "heuristic": {"schedule": "heuristic"},
    "gate": {"schedule": "target_confidence"},
    "adaptive": {"schedule": "adaptive"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fairseq_checkpoints.translating_pair(tmp_path_factory.mktemp("data"))


def translate(folder: Path, device: str, **settings: Any) -> list[str]:
    translator = SpeculativeTranslator.from_pretrained(
        str(folder),
        **{
            "verifier": str(folder / "verifier.pt"),
            "drafter_checkpoint": str(folder / "drafter.pt"),
            "source_lang": "en",
            "target_lang": "de",
            "dtype": "float64",
            "max_len_b": 5,
            "batch": 2,  # fewer than the lines, so that rows join and leave
            "device": device,
            **settings,
        },
    )
    return translator.translate(LINES)


@pytest.mark.fairseq
@pytest.mark.parametrize("name", DECODINGS)
def test_decoding(name: str, folder: Path) -> None:
    expected = translate(folder, "cpu", **DECODINGS[name])
    with accelerator():
        assert translate(folder, "simulated", **DECODINGS[name]) == expected


@pytest.mark.fairseq
def test_a_training_step() -> None:
    from specdec_plugins.criterions.glat_loss import GlatLoss

    target = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]])
    sample = {
        "net_input": {"src_tokens": target, "src_lengths": torch.tensor([4, 3])},
        "target": target,
        "ntokens": 7,
        "nsentences": 2,
        "blocks": mask_blocks(target, torch.tensor([1, 0]), 2, mask=3, pad=1),
    }
    criterion = GlatLoss(SimpleNamespace(), 0.1)
    # Nothing is tied: parameters that change their class part when they move.
    expected = build_drafter(share_all_embeddings=False).eval()
    criterion(expected, {**sample, "glancing": glance()})[0].backward()
    with accelerator():
        model = build_drafter(share_all_embeddings=False).eval()
        model.to(DEVICE)
        there = pytree.tree_map_only(Tensor, lambda x: x.to(DEVICE), sample)
        criterion(model, {**there, "glancing": glance()})[0].backward()
        for name, parameter in model.named_parameters():
            gradient = dict(expected.named_parameters())[name].grad
            torch.testing.assert_close(parameter.grad.cpu(), gradient)


def glance() -> Glance:
    return Glance(0.5, torch.Generator().manual_seed(0))


def test_a_tensor_left_on_the_host_is_refused() -> None:
    with accelerator(), pytest.raises(RuntimeError, match="expected all tensors on one device"):
        torch.zeros(3, device="simulated") + torch.ones(3)
