"""A MarianMT folder beside its peers: the same ids for all, and its converter."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.engines import Lengths, Workload, convert, load
from benchmarks.pair import Pair, read_test_set
from benchmarks.systems import System
from specdec_plugins.app import convert as conversion
from tests.bundles import captions
from tests.formats.pretrained import toys as folders
from tests.refusals import refused

LINES = ["Where is the station?", "I have two sisters.", "It is raining again, so we stay at home."]
SYSTEMS = [System(name, "greedy", "float32") for name in ("transformers", "ctranslate2", "ours")]


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As on the hub: symbols in an order of their own, and a start of zeros, which is padding."""
    folder = tmp_path_factory.mktemp("opus") / "opus"
    folders.small_model(folder, "marian")
    state = load_file(folder / "model.safetensors")
    state["model.shared.weight"][-1] = 0.0
    state["final_logits_bias"][0, 0] = 4.0  # so that texts come to an end
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of fairseq's, whose start is the end of a sentence, and whose padding comes second."""
    folder = tmp_path_factory.mktemp("exported")
    bundle = captions(folder / "captions")
    assert conversion.MARIAN.run([str(bundle), "--output", str(folder / "marian")]) == 0
    return folder / "marian"


def bundle_of(model: Path, output: Path) -> Path:
    assert conversion.BUNDLE.run([str(model), "--output", str(output)]) == 0
    return output


def workload_of(pair: Pair, work: Path) -> Workload:
    path = work / "test.tsv"
    path.write_text("".join(f"{line}\tein Satz\n" for line in LINES))
    test = read_test_set(str(path), pair)
    lengths = Lengths(max_len=24)
    made = Workload(pair, test.sentences, lengths, max_batch=len(LINES), work=str(work / "work"))
    convert(made, {"transformers", "ctranslate2"})
    return made


@pytest.mark.parametrize("kind", ["opus", "exported"])
def test_every_engine_says_the_same_of_a_marian_folder(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(kind)
    pair = Pair.of(bundle_of(model, tmp_path / "bundle"), None, None).beside(model)
    workload = workload_of(pair, tmp_path)
    theirs, peer, mine = (
        load(one, workload, threads=1).translate(workload.sentences).tokens for one in SYSTEMS
    )
    assert theirs == peer == mine
    assert len({tuple(tokens) for tokens in mine}) == len(LINES)
    assert "transformers reads the MarianMT folder as it is" in pair.describe()["model"]


def test_folders_that_do_not_belong_together_are_refused(
    opus: Path, exported: Path, tmp_path: Path
) -> None:
    bundle = bundle_of(opus, tmp_path / "bundle")
    pair = Pair.of(bundle, None, None)
    refused("its symbols differ from those of .*bundle; give the folder", pair.beside, exported)
    refused("name it with --model, beside a bundle", Pair.of, opus, None, None)
    other = tmp_path / "bart"
    folders.small_model(other, "bart")
    refused("expected a MarianMT folder, found a model of type 'bart'", pair.beside, other)
