"""A drafter with weights is one file: the one of the documentation, added and used."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.app import convert
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.networks.trained import NETWORKS
from specdec_plugins.formats.checkpoints import save_checkpoint
from tests.bundles import ROOT
from tests.refusals import refused

EARLIER = ROOT / "tests" / "regression" / "earlier"
DATA, VERIFIER = str(EARLIER / "data"), str(EARLIER / "verifier.pt")
LINES = ["wa wb wc", "wd", "we wf wa wa", "wl wk wj wi wh wg"]
LIMITS: dict[str, Any] = {"device": "cpu", "dtype": "float64", "max_len_b": 12, "min_len": 7}


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the documentation, imported; its names are forgotten again."""
    for registry in (DRAFTERS, NETWORKS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    spec = util.spec_from_file_location("successors", ROOT / "docs" / "new_drafter.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "successors", module)
    spec.loader.exec_module(module)


def checkpoint(folder: Path, vocab_size: int = 16) -> str:
    """As a training with `--arch successors` would have written it: each symbol's next one."""
    one_hot = torch.eye(vocab_size)
    state = {"tokens.weight": one_hot, "output.weight": one_hot.roll(1, 0)}
    save_checkpoint({"args": Namespace(arch="successors"), "model": state}, folder / "table.pt")
    return str(folder / "table.pt")


def translated(data: str, **settings: Any) -> tuple[list[str], int]:
    """Texts, and how many tokens were drafted."""
    translator = SpeculativeTranslator.from_pretrained(
        data, source_lang="en", target_lang="de", **LIMITS, **settings
    )
    texts = [str(result) for result in translator.translate(LINES)]
    return texts, translator.stats.drafted


def test_it_drafts_from_a_checkpoint_and_from_a_bundle(tmp_path: Path) -> None:
    plain, nothing = translated(DATA, verifier=VERIFIER, strategy="AR")
    files = {"verifier": VERIFIER, "drafter_checkpoint": checkpoint(tmp_path)}
    texts, num_drafted = translated(DATA, drafter="successors", block_size=3, **files)
    assert texts == plain
    assert num_drafted > nothing == 0
    command = [DATA, "-s", "en", "-t", "de", "--AR-path", VERIFIER, "--tokenizer", "none"]
    command += ["--drafter", "successors", "--path", files["drafter_checkpoint"]]
    bundle = str(tmp_path / "bundle")
    assert convert.BUNDLE.run([*command, "--dtype", "float32", "--output", bundle]) == 0
    assert translated(bundle, block_size=3) == (texts, num_drafted)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "needs the drafter's checkpoint"),
        ({"drafter_checkpoint": VERIFIER}, "this is a Transformer .* a table of successors is"),
        ({"drafter_checkpoint": VERIFIER, "strategy": "drafter"}, "cannot decode alone"),
        ({"drafter_checkpoint": VERIFIER, "drafter_data": "d"}, "is for drafter assistant"),
        ({"drafter_checkpoint": VERIFIER, "drafter_dtype": "int8"}, "none in use; omit the flag"),
    ],
)
def test_what_it_does_not_take_is_refused(given: dict[str, Any], told: str) -> None:
    settings = {**LIMITS, "dtype": "float32", "drafter": "successors", "verifier": VERIFIER}
    settings |= {"source_lang": "en", "target_lang": "de", **given}
    refused(told, SpeculativeTranslator.from_pretrained, DATA, **settings)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    files = {"verifier": VERIFIER, "drafter_checkpoint": checkpoint(tmp_path, vocab_size=12)}
    told = "table has 12 symbols and the verifier 16"
    refused(told, translated, DATA, drafter="successors", **files)
