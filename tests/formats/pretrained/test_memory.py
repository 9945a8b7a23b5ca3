"""How much memory loading takes: hardly more than what stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert found["peak"] <= 1.3 * found["stays"]
    bytes_each = 1 if precision == "int8" else 4
    assert found["peak"] <= 1.5 * bytes_each * num_weights
