"""Checkpoints made of models are what fairseq wrote in the first place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.decodings import by_fairseq
from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bundle import Contents, write_bundle
from specdec_plugins.formats.checkpoints import allow_fairseq_checkpoints, save_checkpoint
from specdec_plugins.formats.models import read_model, to_checkpoint
from tests import fairseq_checkpoints
from tests.bundles import LINES, assert_same, captions
from tests.fairseq_checkpoints import LEARNED, SHAPES
from tests.programs import convert_main as main
from tests.refusals import refused, told

pytestmark = pytest.mark.fairseq

DRAFTER = {"arch": "block", "block_size": 4, "decoder_ffn_embed_dim": 24, **LEARNED}
DRAFTERS: dict[str, dict[str, Any]] = {
    "published": {**DRAFTER, "src_embedding_copy": True},
    "plain": {**DRAFTER, "src_embedding_copy": False, "scale_encoder_embedding": True},
}


@pytest.mark.parametrize("shape", {**SHAPES, **DRAFTERS}.values(), ids={**SHAPES, **DRAFTERS})
def test_fairseq_loads_what_it_wrote(shape: dict[str, Any], tmp_path: Path) -> None:
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    allow_fairseq_checkpoints()
    folder = fairseq_checkpoints.dictionaries(tmp_path)
    args = fairseq_checkpoints.settings(**{"arch": "transformer", **shape})
    network = fairseq_checkpoints.build(args, folder).float()
    model = read_model(fairseq_checkpoints.save(network, args, folder / "first.pt"))
    checkpoint = to_checkpoint(model, "en", "de")
    checkpoint["args"].data = str(folder)
    save_checkpoint(checkpoint, folder / "again.pt")
    again = read_model(folder / "again.pt")
    assert_same(again, model)
    if model.kind == "block":
        return  # its task is built for training, which test_train does
    (loaded,), config, task = load_model_ensemble_and_task([str(folder / "again.pt")])
    assert config is not None
    assert len(task.target_dictionary) == 34
    wanted = network.state_dict()
    for name, tensor in loaded.state_dict().items():
        if "_float_tensor" not in name and "version" not in name:
            assert torch.equal(tensor, wanted[name]), name


def test_there_and_back_again_rounds_once(tmp_path: Path) -> None:
    """fairseq, bundle, fairseq, bundle: the second bundle is the first."""
    first = captions(tmp_path / "first")
    assert main(["fairseq", str(first), "--output", str(tmp_path / "back")]) == 0
    back = tmp_path / "back"
    for name in ("verifier", "drafter"):
        stored = read_model(first / f"{name}.safetensors")
        wanted = {key: tensor.float() for key, tensor in stored.state.items()}
        assert_same(read_model(back / f"{name}.pt"), replace(stored, state=wanted))
    # fairseq's own search says what ours says.
    given: Any = {"verifier": str(back / "verifier.pt"), "source_lang": "en", "target_lang": "de"}
    given |= {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": str(back / "bpe.codes")}
    load = SpeculativeTranslator.from_pretrained
    said = by_fairseq(
        make_settings({"data": str(back), "strategy": "AR", **given}), beam=1
    ).translate(LINES)
    for folder in (first, back):
        expected = load(str(folder), strategy="AR").translate(LINES)
        assert [t.text for t in said] == [t.text for t in expected]
    files = ["--AR-path", str(back / "verifier.pt"), "--path", str(back / "drafter.pt")]
    files += ["--bpe-codes", str(back / "bpe.codes")]  # the checkpoint says from what to what
    assert main(["bundle", str(back), *files, "--output", str(tmp_path / "second")]) == 0
    for path in first.iterdir():
        if path.name != "README.md":
            assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_what_fairseq_has_no_option_for_is_refused(tmp_path: Path) -> None:
    stack = StackConfig(1, 8, 8, 2, 10, 20)
    odd = replace(stack, final_norm=True)
    for config, message in (
        (TransformerConfig(odd, stack), "its encoder ends in a norm if its layers"),
        (TransformerConfig(stack, odd), "its decoder ends in a norm only if its layers"),
        (TransformerConfig(replace(stack, positions="none"), stack), "positions on both sides"),
    ):
        model = Model(tmp_path / "v", "transformer", "transformer", config, {})
        refused(message, to_checkpoint, model, "en", "de")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["marian", "/nowhere"], "/nowhere: not a bundle; add --data"),
        (["fairseq", "/nowhere"], "/nowhere/bundle.json: the settings cannot be read"),
        (["bundle", "/nowhere", "--AR-path", "v.pt"], "/nowhere: not a folder"),
        (
            ["ctranslate2", "BUNDLE", "--quantization", "int1"],
            "CTranslate2 does not support 'int1'; choose one of",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "BUNDLE" in arguments:
        arguments = [str(captions(tmp_path / "b")) if a == "BUNDLE" else a for a in arguments]
    said = told(capsys, main, [*arguments, "--output", str(tmp_path / "out")])
    assert said.startswith("specdec convert ")
    assert message in said
    assert not (tmp_path / "out").exists()


def test_a_bundle_is_checked_before_it_is_written(tmp_path: Path) -> None:
    folder = fairseq_checkpoints.dictionaries(tmp_path, 30, 20)
    path = fairseq_checkpoints.write(folder)
    fairseq_checkpoints.dictionaries(tmp_path, 30, 19)
    languages = ["-s", "en", "-t", "de"]
    command = ["bundle", str(folder), "--AR-path", str(path), *languages, "--output"]
    with pytest.raises(UserError, match="24 target symbols and the target dictionary 23"):
        main([*command, str(tmp_path / "out"), "--debug"])
    fairseq_checkpoints.dictionaries(tmp_path, 30, 20)
    options = ["--drafter", "early_exit", "--drafter-options", '{"exits": 1}']
    refused("exit_layer", main, [*command, str(tmp_path / "out"), *options, "--debug"])
    assert not (tmp_path / "out").exists()
    write_bundle(Contents(folder, "en", "de", read_model(path)), tmp_path / "out")
