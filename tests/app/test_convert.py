"""Writing bundles on the command line: what would not decode is refused before it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.app.main import inference as decode
from tests.bundles import BUNDLED, CAPTIONS
from tests.programs import convert_main as main
from tests.refusals import told

VERIFIER = str(CAPTIONS / "verifier.pt")


def convert(output: Path, *flags: str) -> int:
    models = ["bundle", str(CAPTIONS), "-s", "en", "-t", "de", "--AR-path", VERIFIER]
    codes = ["--bpe-codes", str(CAPTIONS / "bpe.codes")]
    return main([*models, *codes, "--output", str(output), *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beta", "0"], "beta must be 1 or more, not 0"),
        (["--few-rows", "-1"], "--few-rows must be 0 or more, not -1"),
        (["--bpe-codes", "other.codes"], "other.codes: cannot be read"),
        (["--bpe-codes", __file__], "bpe.codes, by which the text was split; omit"),
        (["--path", VERIFIER], "where a block drafter is needed"),
        (["--schedule", "heuristic", "--schedule-options", '{"bad": 1}'], "no option 'bad'"),
        (
            ["--path", str(CAPTIONS / "drafter.pt"), "--block-size", "11"],
            "trained for blocks of 10",
        ),
    ],
)
def test_what_would_not_decode_is_no_bundle(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in told(capsys, convert, tmp_path / "bundle", *flags)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", ["--source-lang fr", "--data data"])
@pytest.mark.parametrize("command", ["marian", "ctranslate2"])
def test_what_a_bundle_has_cannot_be_set(
    command: str, flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, str(BUNDLED), *flags.split(), "--output", str(tmp_path / "out")]
    assert f"{flags.split()[0]}: the bundle {BUNDLED} has its own" in told(capsys, main, words)
    assert not list(tmp_path.iterdir())


def test_a_pair_with_a_shortlist_comes_back_from_fairseq_without_more_flags(tmp_path: Path) -> None:
    pair, fairseq, again = BUNDLED, tmp_path / "fairseq", tmp_path / "again"
    assert main(["fairseq", str(pair), "--output", str(fairseq)]) == 0
    assert main(["bundle", str(fairseq), "-s", "en", "-t", "de", "--output", str(again)]) == 0
    for name in ("verifier.safetensors", "drafter.safetensors", "bpe.codes"):
        assert (again / name).read_bytes() == (pair / name).read_bytes()


@pytest.mark.parametrize("command", ["bundle", "marian", "ctranslate2", "decode"])
def test_a_model_of_ctranslate2_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.bin", "config.json", "shared_vocabulary.json"):
        (tmp_path / name).write_text("{}")
    folder, output = str(tmp_path), str(tmp_path.with_name("out"))
    words = [folder, "--input-path", __file__, "--output-path", output]
    call = (decode, words) if command == "decode" else (main, [command, folder, "--output", output])
    assert f"{folder}: is a model of CTranslate2" in told(capsys, *call)
