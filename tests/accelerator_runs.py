"""Decode and train on the simulated accelerator, in a process of its own: a device is registered
with torch for good, and other tests should not meet it.

Arguments: two folders as `fairseq_checkpoints.translating_pair` fills them, one dictionary for both
sides in the first, and in the second two, with an `assistant` beside. Prints a JSON object: what
failed on each run, or null.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.types import Request
from specdec_plugins.models.glancing import Glance

LINES = [" ".join(f"s{(i * 7 + j * 3) % 30}" for j in range(i + 2)) for i in range(3)]

LOOKUP: dict[str, Any] = {"drafter": "lookup", "drafter_checkpoint": None}
EARLY_EXIT = {"drafter": "early_exit", "drafter_options": {"exit_layer": 1}}
ASSISTANT = {
    "drafter": "assistant",
    "drafter_checkpoint": "assistant/assistant.pt",
    "drafter_data": "assistant",
}
CONSTRAINTS = Constraints(((1,), (5, 6), (4, 5)), no_repeat_ngram_size=2, forced_last=2)
DECODINGS: dict[str, dict[str, Any]] = {
    "AR": {"strategy": "AR"},
    "drafter alone": {"strategy": "drafter"},
    "exact": {},
    "relaxed": {"beta": 3, "tau": 1.0},
    "sampling": {"rule": "speculative_sampling", "top_k": 4, "top_p": 0.9, "seed": 3},
    "lookup": LOOKUP,
    "early exit": {**EARLY_EXIT, "drafter_checkpoint": None},
    "heuristic": {"schedule": "heuristic"},
    "gate": {"schedule": "target_confidence"},
    "adaptive": {"schedule": "adaptive"},
    "constraints": {"constraints": CONSTRAINTS, "min_len": 2},
}
# With a dictionary for each side, and another one for the assistant's source.
TWO_DICTIONARIES: dict[str, dict[str, Any]] = {
    "exact, two dictionaries": {},
    "lookup, two dictionaries": LOOKUP,
    "assistant": ASSISTANT,
    "assistant, sampling": {**ASSISTANT, "rule": "speculative_sampling", "seed": 3},
}
OTHERS = ("a training step", "a tensor left on the host", "copies to the host", "draws")


def load(folder: Path, device: str, settings: dict[str, Any]) -> SpeculativeTranslator:
    settings = {
        "verifier": "verifier.pt",
        "drafter_checkpoint": "drafter.pt",
        "source_lang": "en",
        "target_lang": "de",
        "dtype": "float64",
        "max_len_b": 5,
        "batch": 2,  # fewer than the lines, so that rows join and leave
        "device": device,
        **settings,
    }
    for name in ("verifier", "drafter_checkpoint", "drafter_data"):
        if settings.get(name) is not None:
            settings[name] = str(folder / settings[name])
    return SpeculativeTranslator.from_pretrained(str(folder), **settings)


def translate(folder: Path, device: str, settings: dict[str, Any]) -> list[str]:
    constraints = settings.pop("constraints", FREE)
    translator = load(folder, device, settings)
    if isinstance(translator.decoder, SpeculativeDecoder):
        translator.decoder.config = replace(translator.decoder.config, constraints=constraints)
    return [t.text for t in translator.translate(LINES)]


def decode(folder: Path, settings: dict[str, Any]) -> None:
    from benchmarks.gpu.accelerator import accelerator

    expected = translate(folder, "cpu", dict(settings))
    with accelerator():
        assert translate(folder, "simulated", dict(settings)) == expected


def train() -> None:
    from benchmarks.gpu.accelerator import DEVICE, accelerator
    from specdec_plugins.criterions.glat_loss import GlatLoss
    from tests.fairseq_models import block_sample, build_drafter

    sample = block_sample()
    criterion = GlatLoss(SimpleNamespace(), 0.1, plain_loss=0.2, place_decay=0.9)
    # Nothing is tied: parameters that change their class part when they move.
    expected = build_drafter(share_all_embeddings=False).eval()
    criterion(expected, {**sample, "glancing": _glance()})[0].backward()
    with accelerator():
        model = build_drafter(share_all_embeddings=False).eval()
        model.to(DEVICE)
        there = pytree.tree_map_only(Tensor, lambda x: x.to(DEVICE), sample)
        criterion(model, {**there, "glancing": _glance()})[0].backward()
        for name, parameter in model.named_parameters():
            gradient = dict(expected.named_parameters())[name].grad
            torch.testing.assert_close(parameter.grad.cpu(), gradient)


def _glance() -> Glance:
    return Glance(0.5, torch.Generator().manual_seed(0))


def count_copies(folder: Path) -> None:
    """One when rows join, and one a round."""
    from benchmarks.gpu.accelerator import WAITS, accelerator

    with accelerator():
        translator = load(folder, "simulated", {"batch": 3})
        decoder = translator.decoder
        assert isinstance(decoder, SpeculativeDecoder)
        decoder.config = replace(decoder.config, constraints=CONSTRAINTS)
        prepared = [translator.prepare(sentence) for sentence in number_sentences(LINES)]
        requests = [request for request in prepared if isinstance(request, Request)]
        with decoder.session(requests[:2]) as session:
            counts = []
            for joining in ([], requests[2:], []):
                session.add(joining)
                WAITS.clear()
                session.step()
                counts.append(list(WAITS))
        assert [len(waits) for waits in counts] == [2, 2, 1], counts


def refuse() -> None:
    from benchmarks.gpu.accelerator import accelerator

    with accelerator():
        there, here = torch.zeros(3, device="simulated"), torch.ones(3)
        index = torch.tensor([1, 2])
        assert there[index].device == there.device  # as on CUDA
        for mix in (
            lambda: there + here,
            lambda: here[index.to(there.device)],
            lambda: there.index_put((index,), here[:2]),
        ):
            with pytest.raises(RuntimeError, match="expected all tensors on one device"):
                mix()


def draw() -> None:
    """A view of a weight where gradients are off, and a device's own generator."""
    from benchmarks.gpu.accelerator import DEVICE, accelerator

    with accelerator():
        there = torch.nn.Linear(2, 3).to(DEVICE)
    with accelerator(), torch.inference_mode():
        assert there.weight[:2].shape == (2, 2)
        generator = torch.Generator(device=DEVICE).manual_seed(3)
        assert torch.rand(2, generator=generator, device=DEVICE).device == DEVICE


def failure(run: Callable[[], None]) -> str | None:
    try:
        run()
    except Exception:  # told to the test
        return traceback.format_exc(limit=-8)
    return None


def main(one_dictionary: Path, two_dictionaries: Path) -> None:
    runs: dict[str, Callable[[], None]] = {
        name: partial(decode, folder, settings)
        for folder, decodings in ((one_dictionary, DECODINGS), (two_dictionaries, TWO_DICTIONARIES))
        for name, settings in decodings.items()
    }
    runs |= dict(
        zip(OTHERS, (train, refuse, partial(count_copies, one_dictionary), draw), strict=True)
    )
    sys.stdout.write(json.dumps({name: failure(run) for name, run in runs.items()}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
