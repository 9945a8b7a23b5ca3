"""Shapes with random weights: every engine says the same, and the page has each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import sizes

pytestmark = pytest.mark.integration

CUT = {"activation": "swish"}, {"pre_norm": True, "final_norm": True}


@pytest.mark.parametrize("switches", CUT)
def test_greedy_decoding_says_the_same(
    switches: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(sizes.SHAPES))
    monkeypatch.setitem(sizes.SHAPES, name, sizes.shape_of((2, 1), 64, 120, **switches))
    flags = ["--output", tmp_path / "page", "--work", tmp_path, "--threads", 1, "--repeats", 1]
    options = [*flags, "--shapes", name, "--sentences", 2, "--tokens", 9, "--dtypes", "float32"]
    assert sizes.COMMAND.run([*map(str, options)]) == 0
    rows = json.loads((tmp_path / "page.json").read_text())["rows"]
    assert [row["equal"] for row in rows if row["role"] == "greedy"] == [[True, True]] * 2
    assert (tmp_path / "page.md").read_text().count(f"| {name}") == len(rows) == 4
