from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from specdec_plugins.decoding.engine import EngineConfig
from specdec_plugins.decoding.types import DecodeParams
from specdec_plugins.errors import UserError
from tests.decoding.toys import CPU


@pytest.mark.parametrize(
    ("field", "bad", "good"),
    [
        ("block_size", -1, 0),
        ("max_len", 0, 1),
        ("min_len", -1, 0),
        ("beta", 0, 1),
        ("tau", -0.1, 0.0),
        ("temperature", 0.0, 0.01),
        ("temperature", 1e-40, 1e-6),  # a float32 law would be no law
        ("top_k", -1, 0),
        ("top_p", 0.0, 1.0),
        ("top_p", 1.1, 0.01),
        ("top_p", 1e-46, 1e-6),
        ("seed", 2**63, 2**63 - 1),
        ("max_len", 2**63, 1),
        ("tau", float("nan"), float("inf")),
        ("temperature", float("nan"), 9.0),
        ("top_p", float("nan"), 0.5),
    ],
)
def test_decode_params_are_checked(field: str, bad: Any, good: Any) -> None:
    with pytest.raises(UserError, match=field.replace("_size", " size")):
        DecodeParams(**{field: bad})
    assert getattr(DecodeParams(**{field: good}), field) == good


@pytest.mark.parametrize(
    ("field", "bad", "good"),
    [("max_rows", 0, 1), ("compact_at", 0.0, 0.001), ("compact_at", 1.01, 1.0)],
)
def test_engine_config_is_checked(field: str, bad: Any, good: Any) -> None:
    with pytest.raises(UserError, match=field):
        EngineConfig(**{field: bad})
    assert getattr(EngineConfig(**{field: good}), field) == good


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DecodeParams().beta = 3  # type: ignore[misc]


def test_stack_select_append() -> None:
    rows = [DecodeParams(block_size=i, tau=i / 2, top_p=0.5, seed=-i) for i in range(4)]
    params = DecodeParams.stack(rows, CPU)
    assert params.block_size.tolist() == [0, 1, 2, 3]
    assert params.block_size.dtype is params.seed.dtype is torch.int64
    assert params.tau.dtype is params.top_p.dtype is torch.float32
    assert params.tau.tolist() == [0.0, 0.5, 1.0, 1.5]
    chosen = params.select(torch.tensor([3, 1])).append(params.select(torch.tensor([0])))
    assert chosen.seed.tolist() == [-3, -1, 0]
    assert chosen.tau.tolist() == [1.5, 0.5, 0.0]
