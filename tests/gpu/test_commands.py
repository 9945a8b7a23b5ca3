"""The server, trainings and the benchmark on the device."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.models.block_drafter import Glance
from tests.bundles import BUNDLED, ROOT
from tests.gpu.conftest import NAME, SIMULATED, Device
from tests.programs import run
from tests.training.conftest import SIZES, data, run_train, verifier

__all__ = ["data", "verifier"]  # fixtures, made on the CPU
real = pytest.mark.skipif(SIMULATED, reason="runs on the CPU or a GPU itself")


@pytest.mark.integration
def test_serving(device: Device, lines: list[str]) -> None:
    for needed in ("fastapi", "uvicorn", "prometheus_client", "sentencex", "httpx"):
        pytest.importorskip(needed)
    import httpx

    from specdec_plugins.serving.client import Client
    from tests.serving.toys import ServerProcess

    under = ("tests.gpu.accelerator",) if SIMULATED else ()
    flags = ["--device", device.name, "--dtype", "float16" if device.name == "cuda" else "float32"]
    server = ServerProcess(BUNDLED, *flags, "--port", "0", under=under)
    try:
        client = Client(server.url, timeout=60)
        text = client.generate(lines[0])["generated_text"]
        assert text.strip()
        assert list(client.stream(lines[0]))[-1]["generated_text"] == text
        for asked in ({"beta": 3, "tau": 1.0}, {"do_sample": True, "seed": 3}):
            assert client.generate(lines[0], **asked)["generated_text"].strip(), asked
        assert client.generate(lines[0], use_drafter=False)["generated_text"].strip()
        assert all(text.strip() for text in client.translate(lines[:2]))
        for page in ("/health", "/info", "/metrics"):
            assert httpx.get(server.url + page).status_code == 200, page
        server.process.terminate()
        assert server.process.wait(30) == 0, server.log
    finally:
        server.process.kill()


@pytest.mark.fairseq
@pytest.mark.skipif(
    SIMULATED and torch.version.cuda is not None, reason="torch goes backwards on a GPU only"
)
def test_a_loss_and_its_gradients_are_the_cpus(device: Device) -> None:
    from specdec_plugins.criterions.glat_loss import GlatLoss
    from tests.fairseq_models import block_sample, build_drafter

    sample = block_sample()
    criterion = GlatLoss(SimpleNamespace(), 0.1)
    # Nothing is tied: parameters that change their class part when they move.
    expected = build_drafter(share_all_embeddings=False).eval()
    glance = Glance(0.5, torch.Generator().manual_seed(0))
    criterion(expected, {**sample, "glancing": glance})[0].backward()
    with device.entered():
        model = build_drafter(share_all_embeddings=False).eval().to(device.name)
        there = pytree.tree_map_only(Tensor, lambda x: x.to(device.name), sample)
        glance = Glance(0.5, torch.Generator().manual_seed(0))
        criterion(model, {**there, "glancing": glance})[0].backward()
        for name, parameter in model.named_parameters():
            gradient = dict(expected.named_parameters())[name].grad
            torch.testing.assert_close(parameter.grad.cpu(), gradient)


COMMON = shlex.split(
    "--optimizer adam --lr 1e-2 --max-tokens 100 --max-update 2 --log-interval 1 "
    "--log-format simple --save-interval-updates 1 --no-epoch-checkpoints --disable-validation "
    "--num-workers 0"
)
TRAININGS = {
    "verifier": "--task translation --arch transformer --criterion label_smoothed_cross_entropy",
    "block": "--task translation_lev_modified --arch block --noise block_mask --block-size 3 "
    "--criterion glat_loss",
    "early exit": "--task translation --arch early_exit_transformer --criterion early_exit_loss "
    "--label-smoothing 0.1",
    "heads": "--task translation --arch medusa_heads --num-heads 3 --criterion medusa_loss",
    "assistant": "--task translation --arch assistant_transformer --decoder-layers 1 "
    "--decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2 "
    "--share-decoder-input-output-embed --criterion label_smoothed_cross_entropy",
}
ON_A_VERIFIER = ("heads", "assistant")


def losses(command: Sequence[object], *flags: object) -> list[float]:
    """Of a training in this process: another would import torch and fairseq for longer."""
    said = run_train(*command, *flags)
    found = re.findall(r"epoch \d+: .*?\bloss=([^,\s]+)", said)
    assert found, said
    return [float(loss) for loss in found]


@real
@pytest.mark.fairseq
@pytest.mark.parametrize("name", TRAININGS)
def test_two_updates(name: str, device: Device, data: Path, verifier: Path, tmp_path: Path) -> None:
    own = ["--verifier-path", verifier] if name in ON_A_VERIFIER else [*SIZES, "--dropout", "0"]
    command = [data, *shlex.split(TRAININGS[name]), *own, *COMMON]
    cpu = ["--cpu"] if device.name == "cpu" else []
    for precision in ("fp16", "bf16"):
        folder = tmp_path / precision
        found = losses(command, *cpu, f"--{precision}", "--save-dir", folder)
        assert all(map(math.isfinite, found)), (precision, found)
        first, second = (load_checkpoint(folder / f"checkpoint_1_{n}.pt")["model"] for n in (1, 2))
        floats = {key: weight for key, weight in second.items() if weight.is_floating_point()}
        assert all(weight.isfinite().all() for weight in floats.values()), precision
        assert not all(torch.equal(first[key], weight) for key, weight in floats.items()), precision
    if name != "block":  # the device draws a block's masks
        there = losses(command, *cpu, "--save-dir", tmp_path / "there")
        assert there == pytest.approx(
            losses(command, "--cpu", "--save-dir", tmp_path / "here"), 1e-2
        )


@real
@pytest.mark.skipif(
    NAME == "cpu" and ops.native is None, reason="on a CPU it needs the kernels for 8 bits"
)
def test_the_benchmark(device: Device, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    flags = ["--pair", BUNDLED, "--test", ROOT / "data/samples/en-de.tsv", "--work", tmp_path]
    flags += ["--sentences", 4, "--repeats", 1, "--device", device.name, "--threads", 2]
    flags += ["--rows", "ours greedy*", "ours exact*", "--output", tmp_path / "bench"]
    run(sys.executable, "-m", "benchmarks", *flags)
    assert "ours exact" in (tmp_path / "bench.md").read_text(encoding="utf-8")
