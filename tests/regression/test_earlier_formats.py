"""Files that commit 7e6b029 wrote are read today, decode the same, and train on.

`earlier/` was written by that commit's own command lines from a corpus of 41 sentences of invented
words: a verifier, a drafter of `--arch block_fast` (60 updates, with its optimizer), Medusa heads,
a bundle of verifier and heads, and in `expected.json` what its decoder made of LINES in float64.
The bundled pair, which the other tests decode with, is a version-1 bundle of a block drafter.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.translator import SpeculativeTranslator
from tests.programs import run

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


TRAIN = shlex.split(
    "--arch block_fast --activation-fn relu --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --encoder-layers 1 --decoder-embed-dim 16 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2 --decoder-layers 1 "
    "--max-source-positions 64 --max-target-positions 64 --share-all-embeddings "
    "--share-decoder-input-output-embed --src-embedding-copy --decoder-learned-pos "
    "--noise block_mask --criterion glat_loss --label-smoothing 0.1 --lr 5e-3 "
    "--warmup-init-lr 1e-7 --stop-min-lr 1e-9 --lr-scheduler inverse_sqrt_restarts "
    "--warmup-updates 2 --optimizer adam --adam-eps 1e-6 --task translation_lev_modified "
    "--weight-decay 0.01 --dropout 0.1 --clip-norm 5 --block-size 3 --total-up 10 "
    "--max-tokens 100 --cpu --disable-validation --log-interval 1 --log-format simple"
)


@pytest.mark.fairseq
@pytest.mark.integration
def test_a_training_goes_on(tmp_path: Path) -> None:
    """With its optimizer, its place in the data, and the schedule of its learning rate."""
    shutil.copy(EARLIER / "drafter.pt", tmp_path / "checkpoint_last.pt")
    places = [EARLIER / "data", "--save-dir", tmp_path]
    done = run(sys.executable, "train.py", *places, *TRAIN, "--max-update", "62")
    assert "(epoch 21 @ 60 updates)" in done.stdout
    assert "num_updates=61" in done.stdout
    assert "num_updates=60," not in done.stdout
    # The rate falls as the inverse square root of the updates since the warm-up of two.
    assert f"lr={5e-3 * (2 / 61) ** 0.5:.6g}" in done.stdout
