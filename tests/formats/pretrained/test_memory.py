"""How much memory loading takes: hardly more than what stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdec_plugins.decoding.networks.block import BlockDrafter
from specdec_plugins.decoding.networks.fairseq_names import stored_state
from specdec_plugins.decoding.networks.reading import uninitialised
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.formats.bundle import Contents, write_bundle
from specdec_plugins.formats.pretrained.config import read_config
from specdec_plugins.formats.pretrained.weights import read_model
from specdec_plugins.training.networks import drafter_config
from tests.formats.pretrained.random_models import save_large

LARGE = {
    **{f"{side}_layers": 10 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 4096 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 16 for side in ("encoder", "decoder")},
    **{"d_model": 1024, "vocab_size": 8000, "num_hidden_layers": 10},
}
FEWER = {f"{side}_layers": 4 for side in ("encoder", "decoder")} | {"num_hidden_layers": 4}


def measured(folder: Path, precision: str) -> dict[str, int]:
    words = ["-m", "tests.formats.pretrained.measured", str(folder), precision]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("suffix", "precision", "millions"), [("safetensors", "int8", 318), ("bin", "float32", 142)]
)
def test_loading_takes_hardly_more_memory_than_what_stays(
    tmp_path: Path, suffix: str, precision: str, millions: int
) -> None:
    """A file in bfloat16 has two bytes for each weight."""
    shape = LARGE if precision == "int8" else {**LARGE, **FEWER}
    num_weights = save_large(tmp_path, shape, suffix)
    assert num_weights // 10**6 == millions
    found = measured(tmp_path, precision)
    assert found["peak"] <= 1.4 * found["stays"]
    bytes_each = 1 if precision == "int8" else 4
    assert found["peak"] <= 1.5 * bytes_each * num_weights


def bundle_of(folder: Path, own_encoder: bool) -> Path:
    """A bundle of that model, and of a drafter that reads its encoder.

    own_encoder: the drafter's file has a copy, which would be stored once if it were the same.
    """
    config = read_config(folder)
    order = [*range(config.vocab_size)]
    verifier = read_model(config, order, order)
    shape = drafter_config(verifier.config, block_size=8)
    with uninitialised():
        network = BlockDrafter(shape)
    state = stored_state({n: t.detach().zero_() for n, t in network.state_dict().items()})
    state |= {n: t for n, t in verifier.state.items() if n in state and n.startswith("encoder.")}
    if own_encoder:
        state["encoder.layers.0.fc1.bias"] = state["encoder.layers.0.fc1.bias"] * 2
    for side in ("source", "target"):
        words = "".join(f"{number} 1\n" for number in range(4, config.vocab_size))
        (folder / f"dict.{side}.txt").write_text(words)
    drafter = Model(folder, "block", "block", shape, state)
    made = folder / "bundle"
    contents = Contents(folder, "source", "target", verifier, "block", drafter)
    write_bundle(contents, made, torch.float16)
    return made


@pytest.mark.integration
@pytest.mark.parametrize("own_encoder", [False, True])
def test_a_bundle_with_a_drafter_takes_hardly_more_either(
    tmp_path: Path, own_encoder: bool
) -> None:
    """An encoder that is the verifier's is never read; another one is read layer by layer."""
    num_weights = save_large(tmp_path, {**LARGE, **FEWER}, "safetensors")
    made = bundle_of(tmp_path, own_encoder)
    num_more = 0 if not own_encoder else num_weights // 3
    found = measured(made, "int8")
    assert found["peak"] <= 1.4 * found["stays"]
    assert found["stays"] <= 2.2 * (num_weights + num_more)
