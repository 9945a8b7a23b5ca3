"""A MarianMT folder beside its peers: the same ids for all, its converter, and an assistant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import assistant
from benchmarks.assistant import small, translations
from benchmarks.engines import Lengths, Workload, convert, load
from benchmarks.pair import Pair, Sentence, read_test_set
from benchmarks.systems import ASSISTED, System
from specdec_plugins.app import convert as conversion
from specdec_plugins.formats.marian import load_marian
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
    assert conversion.main(["marian", str(bundle), "--output", str(folder / "marian")]) == 0
    return folder / "marian"


def bundle_of(model: Path, output: Path) -> Path:
    assert conversion.main(["bundle", str(model), "--output", str(output)]) == 0
    return output


def workload_of(pair: Pair, work: Path, lines: Sequence[str] = LINES) -> Workload:
    path = work / "test.tsv"
    path.write_text("".join(f"{line}\tein Satz\n" for line in lines))
    test = read_test_set(str(path), pair)
    lengths = Lengths(max_len=24)
    made = Workload(pair, test.sentences, lengths, max_batch=len(lines), work=str(work / "work"))
    convert(made, {"transformers", "ctranslate2", ASSISTED})
    return made


def tokens_of(system: System, workload: Workload, rows: Sequence[Sentence]) -> list[list[str]]:
    return load(system, workload, threads=1).translate(rows).tokens


@pytest.mark.parametrize("kind", ["opus", "exported"])
def test_every_engine_says_the_same_of_a_marian_folder(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(kind)
    pair = Pair.of(bundle_of(model, tmp_path / "bundle"), None, None).beside(model, None)
    workload = workload_of(pair, tmp_path)
    theirs, peer, mine = (tokens_of(one, workload, workload.sentences) for one in SYSTEMS)
    assert theirs == peer == mine
    assert len({tuple(tokens) for tokens in mine}) == len(LINES)
    assert "transformers reads the MarianMT folder as it is" in pair.describe()["model"]


def test_an_assistant_learns_and_changes_nothing(opus: Path, tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "assistant"
    text.write_text("\n".join(f"{line} {n}" for n in range(100) for line in LINES))
    flags = ("--text", text, "--output", output, "--layers", 1, "--updates", 2)
    assistant.COMMAND(opus, *flags, "--sentences", 80)
    before, after = small(load_marian(opus), 1), load_marian(output)
    assert len(after.model.decoder.layers) == len(after.model.encoder.layers) == 1
    name = "model.decoder.layers.0.fc1.weight"
    learnt = after.state_dict()[name] - before.state_dict()[name]
    assert 0 < learnt.abs().max() < 0.1
    pair = Pair.of(bundle_of(opus, tmp_path / "bundle"), None, None).beside(opus, output)
    assert "the assistant has 1+1 layers, 32 wide" in pair.describe()["model"]
    workload = workload_of(pair, tmp_path)
    system = System("transformers", ASSISTED, "float32", only_single=True)
    for sentence in workload.sentences:
        expected = tokens_of(SYSTEMS[0], workload, [sentence])
        assert tokens_of(system, workload, [sentence]) == expected


def test_the_small_model_begins_as_the_first_and_last_layers(opus: Path) -> None:
    large = load_marian(opus)
    one = small(large, 1)
    source = torch.tensor([[5, 6, 0]])
    last = large.model.decoder.layers[-1].state_dict()
    assert all(torch.equal(t, last[n]) for n, t in one.model.decoder.layers[0].state_dict().items())
    whole, again = small(large, 2), large
    logits = (m.eval()(input_ids=source, decoder_input_ids=source).logits for m in (whole, again))
    assert torch.equal(*logits)
    refused("--layers 3: the model's encoder has 2 layers", small, large, 3)


def test_what_is_learnt_is_what_the_model_says(opus: Path) -> None:
    model = load_marian(opus)
    for source, target in translations(opus, LINES):
        assert source[-1] == target[-1] == model.config.eos_token_id
        found = model.generate(torch.tensor([source]), num_beams=1, max_length=24)
        assert found[0, 1:].tolist() == target


def test_folders_that_do_not_belong_together_are_refused(
    opus: Path, exported: Path, tmp_path: Path
) -> None:
    bundle = bundle_of(opus, tmp_path / "bundle")
    pair = Pair.of(bundle, None, None)
    refused(
        "its symbols differ from those of .*bundle; give the folder", pair.beside, exported, None
    )
    refused("name it with --model, beside a bundle", Pair.of, opus, None, None)
    other = tmp_path / "bart"
    folders.small_model(other, "bart")
    refused("expected a MarianMT folder, found a model of type 'bart'", pair.beside, other, None)
    refused("expected a MarianMT folder, found a model of type 'bart'", pair.beside, opus, other)
    refused("model type is 'bart'", assistant.COMMAND, other, "--text", "t", "--output", "o")
    assert replace(pair, model="m").model == "m"
