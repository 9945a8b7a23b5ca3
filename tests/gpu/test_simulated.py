"""The simulated accelerator refuses what a GPU refuses, and shows when the host waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdec_plugins.app.translator import load_translator, number_sentences
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import Request
from tests.gpu.conftest import SIMULATED, Device
from tests.gpu.test_decoding import CONSTRAINTS, settings_of

pytestmark = pytest.mark.skipif(not SIMULATED, reason="DEVICE is not simulated")


def test_operands_are_on_one_device(device: Device) -> None:
    with device.entered():
        there, here = torch.zeros(3, device=device.name), torch.ones(3)
        index = torch.tensor([1, 2])
        assert there[index].device == there.device  # as on CUDA
        for mix in (
            lambda: there + here,
            lambda: here[index.to(there.device)],
            lambda: there.index_put((index,), here[:2]),
        ):
            with pytest.raises(RuntimeError, match="expected all tensors on one device"):
                mix()


def test_views_without_gradients_and_draws(device: Device) -> None:
    with device.entered():
        there = torch.nn.Linear(2, 3).to(device.name)
    with device.entered(), torch.inference_mode():
        assert there.weight[:2].shape == (2, 2)
        generator = torch.Generator(device=device.name).manual_seed(3)
        drawn = torch.rand(2, generator=generator, device=device.name)
        assert drawn.device.type == device.name


def test_one_copy_to_the_host_when_rows_join_and_one_a_round(
    device: Device, lines: list[str]
) -> None:
    from tests.gpu.accelerator import WAITS

    with device.entered():
        translator = load_translator(settings_of("block", device=device.name, batch=3))
        decoder = translator.decoder
        assert isinstance(decoder, SpeculativeDecoder)
        decoder.config = replace(decoder.config, constraints=CONSTRAINTS)
        prepared = map(translator.prepare, number_sentences(lines[-3:]))
        requests = [request for request in prepared if isinstance(request, Request)]
        with decoder.session(requests[:2]) as session:
            counts = []
            for joining in ([], requests[2:], []):
                session.add(joining)
                WAITS.clear()
                session.step()
                counts.append(list(WAITS))
    assert [len(waits) for waits in counts] == [2, 2, 1], counts
