"""A grown pair says the same words with the same drafts kept, and its results say that it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import run, shapes
from benchmarks.engines import Workload, convert
from benchmarks.larger import Size
from benchmarks.pair import Pair
from benchmarks.systems import System
from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.networks.transformer import same_encoder
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_model
from tests.benchmarks.test_engines import EXACT, GREEDY, PEERS, encoded, translate
from tests.bundles import CAPTIONS, ROOT
from tests.fairseq_checkpoints import translating_pair

pytestmark = pytest.mark.fairseq

BUNDLED = ROOT / "data" / "models" / "en-de"


def grown(workload: Workload, size: Size, folder: Path) -> Workload:
    shapes.grow(workload.pair, size, folder)
    return replace(workload, pair=Pair.of(folder, None, None))


def encode_alike(pair: Pair) -> bool:
    assert pair.settings.drafter_checkpoint is not None
    models = [read_model(path) for path in (pair.verifier, pair.settings.drafter_checkpoint)]
    verifier, drafter = (model.network(torch.float32, torch.device("cpu")) for model in models)
    assert isinstance(verifier, Transformer)
    assert isinstance(drafter, BlockDrafter)
    return same_encoder(verifier.encoder, drafter.encoder)


def test_the_same_words_with_the_same_drafts_kept(tmp_path: Path) -> None:
    pair = Pair.of(BUNDLED, "en", "de")
    workload = Workload(pair, encoded(pair))
    before = translate(EXACT, workload)
    large = grown(workload, Size(7, 8, 512, 8700), tmp_path / "grown")
    assert encode_alike(large.pair)  # or every source would be encoded twice
    after = translate(EXACT, large)
    assert after.tokens == before.tokens
    assert before.stats is not None
    assert after.stats is not None
    for name in ("rounds", "drafted", "accepted_at", "emitted"):
        assert getattr(after.stats, name) == getattr(before.stats, name)
    assert before.stats.rounds < before.stats.emitted


def test_every_peer_takes_it(tmp_path: Path) -> None:
    (origin := tmp_path / "verifier").mkdir()
    for name in ("verifier.pt", "bpe.codes", "dict.en.txt", "dict.de.txt"):
        (origin / name).symlink_to(CAPTIONS / name)
    pair = Pair.of(origin, "en", "de")
    workload = Workload(pair, encoded(pair), work=str(tmp_path))
    expected = translate(GREEDY, workload).tokens
    large = grown(workload, Size(5, 6, 256, 8200), tmp_path / "grown")
    convert(large, PEERS)
    for engine in ("ours", "fairseq", *PEERS):
        assert translate(System(engine, "greedy", "float32"), large).tokens == expected, engine


def test_results_of_a_grown_pair_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny := tmp_path / "tiny").mkdir()
    translating_pair(tiny)
    (tiny / "test.tsv").write_text("s1 s5 s9\ts1\n", encoding="utf-8")
    flags = ["--pair", str(tiny), "--test", str(tiny / "test.tsv"), "-s", "en", "-t", "de"]
    flags += ["--grow", "3x32x50", "--work", str(tmp_path / "work"), "--rows", "ours greedy"]
    flags += ["--dtypes", "float32", "--threads", "1", "--repeats", "1"]
    assert run.COMMAND.run([*flags, "--output", str(tmp_path / "result")]) == 0
    note = "Grown from tiny: the same output and acceptance, at the cost of 3+3 layers, 32 wide, 50"
    assert f"**{note} types, in 16 bits.**" in (tmp_path / "result.md").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert record["pair"]["note"].startswith(note)
    assert record["pair"]["verifier"].startswith("3+3 layers, 32 wide, 50 types")
    assert "Grown from tiny" in capsys.readouterr().out
    made = tmp_path / "work" / "tiny.grown.3x32x50.16"
    before, after = (Dictionary.load(folder / "dict.de.txt") for folder in (tiny, made))
    assert len(after) == 50
    assert after.symbols[: len(before)] == before.symbols


def test_shapes_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--output", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    bundled = ["--pair", str(BUNDLED), "--test", "t"]
    for flags, message in (
        ([*bundled, "--grow", "6x512"], "LAYERSxWIDTHxTYPES"),
        ([*bundled, "--grow", "6x500x32000"], "is 256 wide"),
    ):
        assert run.COMMAND.run([*flags, *out]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
