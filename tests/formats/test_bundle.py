"""Bundles keep every weight and setting, and say what is wrong with them in one sentence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specdec_plugins.decoding.networks import MedusaConfig
from specdec_plugins.decoding.networks.reading import all_read
from specdec_plugins.decoding.networks.trained import VERIFIER, Model
from specdec_plugins.errors import UserError
from specdec_plugins.formats import bundle as bundle_module
from specdec_plugins.formats.bundle import (
    Contents,
    default_bundle,
    read_bundle,
    read_weights,
    write_bundle,
)
from specdec_plugins.formats.models import read_model
from specdec_plugins.formats.output import new_folder
from tests import fairseq_checkpoints
from tests.bundles import assert_same
from tests.fairseq_checkpoints import LEARNED, SHAPES
from tests.refusals import refused

pytestmark = pytest.mark.fairseq


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fairseq_checkpoints.dictionaries(tmp_path)


def model_of(folder: Path, arch: str = "transformer", **shape: Any) -> Model:
    return read_model(fairseq_checkpoints.write(folder, arch, **shape))


def drafter_of(folder: Path) -> Model:
    sizes = {"decoder_ffn_embed_dim": 24, "decoder_attention_heads": 4}
    return model_of(folder, "block", block_size=4, src_embedding_copy=True, **sizes, **LEARNED)


def bundled(folder: Path, dtype: torch.dtype = torch.float64, **contents: Any) -> Path:
    if "verifier" not in contents:
        contents["verifier"] = model_of(folder)
    write_bundle(Contents(folder, "en", "de", **contents), folder / "bundle", dtype)
    return folder / "bundle"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_weight_and_switch_comes_back(shape: dict[str, Any], folder: Path) -> None:
    model = model_of(folder, **shape)
    assert_same(read_weights(bundled(folder, verifier=model) / "verifier.safetensors"), model)


def test_the_drafter_comes_back(folder: Path) -> None:
    model = drafter_of(folder)
    place = bundled(folder, drafter_name="block", drafter=model)
    assert_same(read_weights(place / "drafter.safetensors"), model)


def test_bigrams_of_an_earlier_bundle_are_ignored_and_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = bundled(folder, drafter_name="block", drafter=drafter_of(folder)) / "bundle.json"
    expected, record = read_bundle(path.parent), json.loads(path.read_text())
    record["drafter"] |= {"bigrams": "bigrams.safetensors", "options": {"bigram_weight": 0.2}}
    path.write_text(json.dumps(record))
    assert [read_bundle(path.parent) for _ in range(2)] == [expected, expected]
    assert caplog.messages == [
        f"{path}: its bigrams are not used any more, so fewer drafts are accepted."
    ]


def test_heads_and_drafters_without_weights_have_a_place(folder: Path) -> None:
    state = {"blocks.weight": torch.randn(32, 16).double(), "blocks.bias": torch.zeros(32).double()}
    heads = Model(folder / "heads.pt", "medusa_heads", "medusa_heads", MedusaConfig(2, 16), state)
    place = bundled(folder, drafter_name="medusa", drafter=heads)
    assert_same(read_weights(place / "drafter.safetensors"), heads)
    (folder / "bundle").rename(folder / "first")
    options = {"exit_layer": 1}
    place = bundled(folder, drafter_name="early_exit", drafter_options=options)
    drafter = read_bundle(place).drafter
    assert (drafter.name, drafter.options, drafter.network) == ("early_exit", options, None)


def test_weights_are_rounded_once_and_stored_once(folder: Path) -> None:
    model = model_of(folder, share_all_embeddings=True)
    path = bundled(folder, torch.float16, verifier=model) / "verifier.safetensors"
    rounded = {name: tensor.half() for name, tensor in model.state.items()}
    assert_same(read_weights(path), replace(model, state=rounded))
    with safe_open(path, framework="pt") as file:
        stored = set(file.keys())
    assert {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"} - stored
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_a_drafter_has_of_its_verifier_is_stored_once(folder: Path) -> None:
    """Under the name that it has there; without the verifier's file it cannot be read."""
    shape = {"share_all_embeddings": True, **LEARNED}
    verifier, drafter = model_of(folder, **shape), drafter_of(folder)
    names = [name for name in drafter.state if name.startswith("encoder.layers.0.")]
    for name in names:
        drafter.state[name] = verifier.state[name]
    place = bundled(folder, verifier=verifier, drafter_name="block", drafter=drafter)
    path = place / "drafter.safetensors"
    with safe_open(path, framework="pt") as file:
        assert not set(names) & set(file.keys())
    assert_same(read_weights(path), drafter)
    (place / "verifier.safetensors").write_bytes(b"")
    refused("damaged", read_weights, path)
    (place / "verifier.safetensors").unlink()
    refused("verifier.safetensors: cannot be read", read_weights, path)


def test_matrices_in_8_bits_stay_the_same_for_every_precision(folder: Path) -> None:
    """Stored again they have the same bytes; the kernels find the codes that are stored."""
    shape = {"encoder_ffn_embed_dim": 512, "decoder_ffn_embed_dim": 512}
    shape |= {"encoder_embed_dim": 256, "decoder_embed_dim": 256, "share_all_embeddings": True}
    model, name = model_of(folder, **shape), "decoder.layers.0.fc1.weight"
    model.state[name][5] = 0
    model.state[name][6] = 1e-30 * torch.arange(256)
    place = bundled(folder, torch.int8, verifier=model)
    (folder / "bundle").rename(first := folder / "first")
    again = bundled(folder, torch.int8, verifier=read_model(first / "verifier.safetensors"))
    files = ["bundle.json", "verifier.safetensors"]
    assert [(first / f).read_bytes() for f in files] == [(again / f).read_bytes() for f in files]
    stored = load_file(place / "verifier.safetensors")
    codes, factors = stored[name].float(), stored[f"{name}.scale"].float()
    state = read_weights(place / "verifier.safetensors").state
    assert state.keys() == model.state.keys()
    assert torch.equal(state[name], codes * factors[:, None])
    assert ((state[name] - model.state[name]).abs() <= 0.502 * factors[:, None]).all()
    assert torch.equal(state[name].abs().amax(1) / 127, factors)
    assert torch.equal(codes.abs().amax(1) == 127, factors > 0)
    assert stored["decoder.layers.0.fc1.bias"].dtype is torch.float16
    tied = all_read(state)
    assert tied["encoder.embed_tokens.weight"] is tied["decoder.embed_tokens.weight"]


def test_what_float16_cannot_hold_is_refused(folder: Path) -> None:
    model = model_of(folder)
    model.state["encoder.layers.0.fc1.bias"][3] = 7e4
    refused("0.fc1.bias holds values that float16", bundled, folder, torch.float16, verifier=model)
    model.state["encoder.layers.0.fc1.bias"][3] = torch.nan
    for dtype in (torch.float16, torch.float32):
        refused("fc1.bias holds NaN or infinity, so its", bundled, folder, dtype, verifier=model)
    assert not (folder / "bundle").exists()


def test_a_bundle_appears_whole_or_not_at_all_and_replaces_bundles_alone(folder: Path) -> None:
    message = "nowhere.codes: No such file or directory; nothing was"
    refused(message, bundled, folder, codes=folder / "nowhere.codes")
    assert not list(folder.glob("*bundle*"))
    place = bundled(folder)
    contents = Contents(folder, "en", "de", model_of(folder), card="new")
    refused("already exists; give another folder, or add --force", write_bundle, contents, place)
    write_bundle(contents, place, force=True)
    assert (place / "README.md").read_text() == "new"
    # Nothing but a bundle is replaced by one.
    message = "holds .*, so this program did not write it"
    refused(message, write_bundle, contents, folder, force=True)
    (place / "checkpoint_last.pt").touch()
    refused("holds checkpoint_last.pt, so", write_bundle, contents, place, force=True)
    (place / "checkpoint_last.pt").unlink()
    (place / "bundle.json").rename(place / "thesis.txt")
    refused("lacks bundle.json.*; give another folder", write_bundle, contents, place, force=True)
    message = "thesis.txt: is a file; give the name of a folder"
    refused(message, write_bundle, contents, place / "thesis.txt", force=True)
    assert (place / "thesis.txt").read_text().startswith("{")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(13, "Permission denied")])
@pytest.mark.parametrize("last", [".bundle.old", "bundle"])
@pytest.mark.parametrize("is_link", [False, True])
def test_what_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, last: str, is_link: bool
) -> None:
    """Stopped right after the old folder has gone, or when the new one should come."""
    place, real = tmp_path / "bundle", tmp_path / "real"
    real.mkdir()
    (real / "file").write_text("precious")
    if is_link:
        place.symlink_to("real")
    else:
        real.rename(place)
    rename = Path.rename

    def failing(path: Path, target: Path) -> None:
        if path.name == ".bundle.part":
            raise error
        rename(path, target)
        if target.name == last:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with (
            pytest.raises((KeyboardInterrupt, UserError)),
            new_folder(place, "file", force=True) as made,
        ):
            (made / "file").write_text("new")
    assert (place / "file").read_text() == "precious"
    assert place.is_symlink() == is_link
    assert {path.name for path in tmp_path.iterdir()} <= {"bundle", "real"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zip"}, "expected the format 'specdec-bundle'"),
        ({"version": 5}, "has format version 5, but this program reads versions 1 to 4"),
        ({"source_lang": None}, "'source_lang' must be a string, not None"),
        ({"verifier": {"weights": "../v", "kind": VERIFIER}}, "'../v' must be the name of a file"),
        ({"text": {"bpe_codes": "."}}, "'.' must be the name of a file"),
        (
            {"verifier": {"weights": "v", "kind": "gpt", "architecture": {}}},
            "verifier: There is no kind of network named 'gpt'",
        ),
        ({"defaults": {"beta": True}}, "defaults: 'beta' must be a whole number, not True"),
        ({"defaults": {"k": 1}}, "defaults: there is no entry 'k'"),
        ({"text": {"tokenizer": 1}}, "text: 'tokenizer' must be a string or null, not 1"),
        ({"drafter": {"options": {}}}, "drafter: 'name' must be a string"),
    ],
)
def test_a_faulty_entry_is_named(changes: dict[str, Any], message: str, folder: Path) -> None:
    path = bundled(folder) / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    refused(f"bundle.json.*{re.escape(message)}", read_bundle, path.parent)


def network_of(path: Path) -> Any:
    return read_model(path).network(torch.float32, torch.device("cpu"))


def test_damage_is_told(folder: Path) -> None:
    place = bundled(folder)
    weights, settings = place / "verifier.safetensors", place / "bundle.json"
    record = json.loads(settings.read_text())
    architecture = record["verifier"]["architecture"]
    architecture["wings"] = 2
    settings.write_text(json.dumps(record))
    refused("architecture of verifier.safetensors does not fit the kind", read_model, weights)
    del architecture["wings"]
    architecture["encoder"]["dim"] = 32
    settings.write_text(json.dumps(record))
    refused("verifier.safetensors: .* unexpected size", network_of, weights)
    architecture["encoder"]["dim"] = 16
    settings.write_text(json.dumps(record))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000] + b"\xff" * 1000)
    refused("is damaged .* NaN or infinite", network_of, weights)
    weights.write_bytes(whole[:-9])
    refused("verifier.safetensors: is damaged (?!.*is damaged)", read_model, weights)
    (place / "other.safetensors").touch()
    refused("bundle.json does not name other.safetensors", read_model, place / "other.safetensors")
    for broken in ("{", "[" * 100_000, "1" * 5_000):
        settings.write_text(broken)
        refused("bundle.json: not JSON", read_bundle, place)
    settings.unlink()
    refused("read together with the bundle.json", read_model, weights)


@pytest.mark.parametrize(
    ("aliases", "message"),
    [('{"a": "b"}', "KeyError 'b'"), ('["a"]', "AttributeError"), ("{", "JSONDecodeError")],
)
def test_damaged_aliases_are_told(aliases: str, message: str, folder: Path) -> None:
    weights = bundled(folder) / "verifier.safetensors"
    stored = load_file(weights)
    save_file(stored, weights, {"aliases": aliases})
    refused(f"verifier.safetensors: is damaged, .*aliases: {message}", read_weights, weights)
    name = "encoder.layers.0.fc1.weight.scale"
    save_file({**stored, name: torch.ones(2)}, weights, {"aliases": "{}"})
    refused(f"verifier.safetensors: {name} does not fit the matrix", read_weights, weights)


def test_an_absent_default_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "specdec_plugins" / "formats" / "bundle.py"
    monkeypatch.setattr(bundle_module, "__file__", str(module))
    refused("no pair of models is bundled .* specdec convert", default_bundle)
    place = tmp_path / "data" / "models" / bundle_module.DEFAULT
    place.mkdir(parents=True)
    (place / "bundle.json").touch()
    assert default_bundle() == place
