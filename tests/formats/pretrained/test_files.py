"""Files of transformers folders: whatever holds the weights is read, and what is wrong is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec_plugins.formats.pretrained.config import CONFIG, GENERATION, is_pretrained, read_config
from specdec_plugins.formats.pretrained.weights import PICKLED, SAFE, marian_positions, read_model
from tests.formats.pretrained.random_models import VOCAB, save
from tests.refusals import refused

ORDER = list(range(VOCAB))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, "bart-large-cnn")
    return tmp_path


def read(folder: Path) -> Any:
    config = read_config(folder)
    return read_model(config, ORDER, ORDER).network(torch.float32, torch.device("cpu"))


def change(path: Path, **entries: Any) -> None:
    """Entries of a JSON object; None takes one out."""
    found = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def whole(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As years ago: every name of a tied table, and who wrote the file."""
    tied = [*(f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))]
    tied.append("lm_head.weight")
    version = {f"model.{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    return {**state, **version, **dict.fromkeys(tied, state["model.shared.weight"])}


def in_two(state: dict[str, Tensor], folder: Path, name: str, write: Callable[..., None]) -> None:
    stem, suffix = name.split(".")
    shards = [f"{stem}-0000{i + 1}-of-00002.{suffix}" for i in range(2)]
    files = {tensor: shards[i % 2] for i, tensor in enumerate(state)}
    for shard in shards:
        write({n: t.clone() for n, t in state.items() if files[n] == shard}, folder / shard)
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


@pytest.mark.parametrize("kind", ["pickled", "shards", "pickled shards", "base model", "half"])
def test_however_weights_are_stored_they_are_the_same(kind: str, folder: Path) -> None:
    expected = read(folder).state_dict()
    state = load_file(folder / SAFE)
    (folder / SAFE).unlink()
    if kind == "pickled":
        torch.save(whole(state), folder / PICKLED)
    elif kind == "base model":  # whose names have no prefix, and which has no bias
        del state["final_logits_bias"]
        save_file({n.removeprefix("model."): t for n, t in state.items()}, folder / SAFE)
    elif kind == "half":
        save_file({name: tensor.half() for name, tensor in state.items()}, folder / SAFE)
    elif kind == "shards":
        in_two(state, folder, SAFE, save_file)
    else:
        in_two(whole(state), folder, PICKLED, torch.save)
    found = read(folder).state_dict()
    if kind == "base model":
        assert "decoder.output.bias" not in found
        expected.pop("decoder.output.bias")
    tolerance = 1e-3 if kind == "half" else 0
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


def test_a_beam_search_is_told_of_once_and_none_is_not(folder: Path) -> None:
    assert is_pretrained(folder)
    assert not is_pretrained(folder / "nowhere")
    notice = read_config(folder).search_notice
    assert notice.startswith(f"{folder / GENERATION} asks for a beam search (num_beams 4); here")
    assert notice.endswith("; --beam 4 searches.")
    change(folder / GENERATION, num_beams=1)
    assert read_config(folder).search_notice == ""
    change(folder / GENERATION, do_sample=True)
    assert "asks for sampling" in read_config(folder).search_notice


def test_unknown_fields_are_told_of_once_and_change_nothing(folder: Path) -> None:
    expected, notices = read(folder).state_dict(), read_config(folder).notices
    change(folder / CONFIG, mystery=3, second={"a": 1}, sliding_window=None)
    change(folder / GENERATION, wonder=True)
    told, more, *others = read_config(folder).notices
    assert told.startswith(f"{folder / CONFIG}: ignoring mystery, second, unknown here; if")
    assert more.startswith(f"{folder / GENERATION}: ignoring wonder, unknown here")
    assert tuple(others) == notices
    for name, tensor in read(folder).state_dict().items():
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        (CONFIG, {"model_type": "longt5"}, "'longt5' are not supported .its attention is local.;"),
        (CONFIG, {"model_type": "whisper"}, "models of type 'whisper' are not supported; give one"),
        (CONFIG, {"architectures": ["BartForSequenceClassification"]}, "does not map a text"),
        (CONFIG, {"rope_theta": 1e4}, "rope_theta is 10000.0, which is not supported; delete it"),
        (CONFIG, {"activation_function": "quick_gelu"}, "activation 'quick_gelu' is not supported"),
        (CONFIG, {"num_hidden_layers": 5}, "num_hidden_layers is 5 and encoder_layers, .* 1;"),
        (CONFIG, {"d_model": "wide"}, "d_model is 'wide', which is not a valid int"),
        (CONFIG, {"decoder_layers": 1}, "config.json does not describe, decoder.layers.1"),
        (CONFIG, {"decoder_layers": 3}, r"lacks the weights decoder\.layers\.2.* and \d+ more;"),
        (CONFIG, {"encoder_ffn_dim": 9}, r"fc1\.bias has the shape \(20,\), but .* implies \(9,\)"),
        (CONFIG, {"d_model": 15, "encoder_attention_heads": 2}, "config.json: .* be split over 2"),
        (GENERATION, {"repetition_penalty": 0}, "repetition_penalty is 0, which is not supported"),
        (GENERATION, {"suppress_tokens": 4}, "suppress_tokens is 4, which is not supported"),
        (GENERATION, {"sequence_bias": [[[4], 1.0]]}, "sequence_bias is .*, which is not supp"),
        (GENERATION, {"suppress_tokens": [999]}, "suppress_tokens names tokens that the vocabul"),
        (GENERATION, {"begin_suppress_tokens": [999]}, "begin_suppress_tokens names tokens that"),
        (GENERATION, {"eos_token_id": [2, 3]}, r"eos_token_id is \[2, 3\], which is not supported"),
        (GENERATION, {"bad_words_ids": [4]}, r"bad_words_ids is \[4\], which is not supported"),
        (GENERATION, {"decoder_start_token_id": 99}, "decoder_start_token_id is 99, expected"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(
    file: str, entries: dict[str, Any], message: str, folder: Path
) -> None:
    change(folder / file, **entries)

    def everything() -> None:
        read(folder)
        read_config(folder).generation(ORDER)

    refused(message, everything)


def test_missing_and_damaged_files_are_told_of(folder: Path) -> None:
    weights = (folder / SAFE).read_bytes()
    (folder / SAFE).write_bytes(weights[:100])
    refused("model.safetensors: is damaged .*; download or copy it again", read, folder)
    (folder / SAFE).unlink()
    refused("holds no weights, neither model.safetensors nor pytorch_model.bin", read, folder)
    (folder / PICKLED).write_bytes(b"nothing")
    refused("pytorch_model.bin: damaged", read, folder)
    torch.save({"a": os.system}, folder / PICKLED)
    refused("asks to load .*system, which .* could run code", read, folder)
    torch.save([1], folder / PICKLED)
    refused("holds something other than weights", read, folder)
    (folder / PICKLED).unlink()
    for text, message in (
        ("[]", "not an index of weights"),
        *((f'{{"weight_map": {{"a": "{n}"}}}}', "names files outside") for n in ("../b", "..", "")),
        ('{"weight_map": {"a": "b.safetensors"}}', "b.safetensors: cannot be read"),
    ):
        (folder / "model.safetensors.index.json").write_text(text)
        refused(message, read, folder)
    (folder / GENERATION).write_text("{")
    refused("generation_config.json: not JSON", read, folder)
    (folder / CONFIG).write_text("[]")
    refused("config.json: expected a JSON object", read, folder)
    (folder / CONFIG).unlink()
    refused("config.json: .* cannot be read .*; give a folder with a model", read, folder)


@pytest.mark.parametrize("dim", [16, 15])
def test_positions_that_a_file_leaves_out_are_marians(dim: int) -> None:
    from transformers.models.marian import modeling_marian

    theirs = modeling_marian.MarianSinusoidalPositionalEmbedding(700, dim).create_weight()
    torch.testing.assert_close(marian_positions(700, dim), theirs, rtol=0, atol=1e-7)
