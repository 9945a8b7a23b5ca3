"""Writing bundles on the command line: what would not decode is refused before it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.app.convert import main
from tests.bundles import ROOT

PAIR = ROOT / "benchmarks" / "models" / "captions.en-de"
VERIFIER = str(PAIR / "verifier.pt")


def convert(output: Path, *flags: str) -> int:
    models = ["bundle", str(PAIR), "-s", "en", "-t", "de", "--AR-path", VERIFIER]
    return main([*models, "--bpe-codes", str(PAIR / "bpe.codes"), "--output", str(output), *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beta", "0"], "beta must be 1 or more, not 0"),
        (["--path", VERIFIER], "where a block drafter is needed"),
        (["--schedule", "heuristic", "--schedule-options", '{"bad": 1}'], "no option 'bad'"),
        (["--path", str(PAIR / "drafter.pt"), "--block-size", "11"], "trained for blocks of 10"),
    ],
)
def test_what_would_not_decode_is_no_bundle(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(tmp_path / "bundle", *flags) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_pair_becomes_a_bundle(tmp_path: Path) -> None:
    bigrams = ["--bigrams", str(PAIR / "bigrams.safetensors")]
    assert convert(tmp_path / "bundle", "--path", str(PAIR / "drafter.pt"), *bigrams) == 0
    assert (tmp_path / "bundle" / "bigrams.safetensors").is_file()
