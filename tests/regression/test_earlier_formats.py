"""Files that commit 7e6b029 wrote are read today, decode the same, and train on.

`earlier/` was written by that commit's own command lines from a corpus of 41 sentences of invented
words: a verifier, a drafter of `--arch block_fast` (60 updates, with its optimizer), Medusa heads,
a bundle of verifier and heads, and in `expected.json` what its decoder made of LINES in float64.
The bundled pair, which the other tests decode with, is a version-1 bundle of a block drafter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.translator import SpeculativeTranslator

EARLIER = Path(__file__).parent / "earlier"
EXPECTED = json.loads((EARLIER / "expected.json").read_text(encoding="utf-8"))
LINES = ["wa wb wc", "wd", "we wf wa wa", "wl wk wj wi wh wg"]

VERIFIER = {"verifier": str(EARLIER / "verifier.pt")}
BLOCK = {"drafter": "block", "drafter_checkpoint": str(EARLIER / "drafter.pt")}
WAYS: dict[str, dict[str, Any]] = {
    "bundle": {},
    "block": {**VERIFIER, **BLOCK},
    "block-beta": {**VERIFIER, **BLOCK, "beta": 3, "tau": 5.0},
    "drafter": {**BLOCK, "strategy": "drafter"},
    "medusa": {**VERIFIER, "drafter": "medusa", "drafter_checkpoint": str(EARLIER / "heads.pt")},
    "assistant": {
        **VERIFIER,
        "drafter": "assistant",
        "drafter_checkpoint": str(EARLIER / "verifier.pt"),
        "block_size": 3,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_they_decode_as_they_did(way: str) -> None:
    settings = {"device": "cpu", "dtype": "float64", "max_len_b": 12, **WAYS[way]}
    if way != "drafter":
        settings["min_len"] = 7
    folder = EARLIER / ("bundle" if way == "bundle" else "data")
    translator = SpeculativeTranslator.from_pretrained(
        str(folder), source_lang="en", target_lang="de", **settings
    )
    results = translator.translate(LINES)
    assert [{"text": r.text, "emitted": r.emitted} for r in results] == EXPECTED[way]
