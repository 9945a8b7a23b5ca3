"""Models by name: what is downloaded, how often, and what is said if it cannot be."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, file_download

from benchmarks.pair import Pair
from specdec_plugins.app import convert
from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.pretrained.config import model_name
from specdec_plugins.serving.model import served_settings
from tests.bundles import BUNDLED
from tests.formats.pretrained.toys import small_model
from tests.hub import COMMIT, Hub
from tests.refusals import refused

OPUS, BUNDLE = "Org/opus-small", "Org/pair"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("opus"), "marian-three-targets")


@pytest.fixture
def hub(opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub({OPUS: opus, BUNDLE: BUNDLED}).served() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        files = f"{served.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
        monkeypatch.chdir(tmp_path)
        yield served


def model(folder: Path, opus: Path, without: str = "", **config: Any) -> Path:
    """A copy of the small model, with other entries in its config.json."""
    folder.mkdir()
    for path in opus.iterdir():
        if path.name != without:
            (folder / path.name).write_bytes(path.read_bytes())
    record = {**json.loads((opus / "config.json").read_text()), **config}
    record = {name: value for name, value in record.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(record))
    return folder


def test_a_model_is_downloaded_once_with_what_it_needs(
    hub: Hub, opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = model(tmp_path / "both", opus)
    for name in ("pytorch_model.bin", "tf_model.h5", "README.md", "onnx.bin"):
        (both / name).write_bytes(b"not asked for")
    hub.models["Org/both"] = both
    text = "Zwei Hunde."
    expected = SpeculativeTranslator.from_pretrained(str(opus)).translate(text, target_lang="ko")
    for name in ("Org/both", f"Org/both@{COMMIT}", "Org/both@main"):
        hub.asked.clear()
        made = SpeculativeTranslator.from_pretrained(name)
        assert made.translate(text, target_lang="ko").text == expected.text
        wanted = {path.name for path in opus.iterdir()} if name == "Org/both" else set()
        assert set(hub.files()) == wanted
    assert model_name(local_model("Org/both")) == "Org/both"
    # Where nothing answers, the cache does.
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_model("Org/both").name == COMMIT
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert local_model("Org/both").name == COMMIT
    assert not hub.asked


def test_a_cache_that_another_program_filled_is_read_offline(
    opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lists of files that huggingface_hub keeps of whole downloads."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "models--Org--opus-small"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(COMMIT)
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / COMMIT).symlink_to(opus)
    assert local_model(OPUS) == cached / "snapshots" / COMMIT
    refused("Org/opus-small@v2: is no folder here, and not or only", local_model, f"{OPUS}@v2")


def test_a_bundle_has_a_name_too_and_a_folder_goes_before_one(hub: Hub, tmp_path: Path) -> None:
    settings = make_settings({"data": BUNDLE})
    assert (Path(settings.data).name, settings.drafter) == (COMMIT, "block")
    assert "README.md" not in hub.files()
    (tmp_path / BUNDLE).mkdir(parents=True)
    assert local_model(BUNDLE) == Path(BUNDLE)
    for path in ("/nowhere", "one/two/three", "nothing", "Other/", "../a/b", f"{hub.url}/{OPUS}"):
        hub.asked.clear()
        assert local_model(path) == Path(path)
        refused("not a folder; give the folder .*, or ORG/NAME", make_settings, {"data": path})
        assert not hub.asked


def test_commands_take_names(
    hub: Hub, opus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        convert.BUNDLE(OPUS, "--output", tmp_path / "bundle")
    assert "HTTP Request" not in caplog.text
    same = "model.safetensors", "verifier.safetensors"
    assert (tmp_path / "bundle" / same[1]).stat().st_size > (opus / same[0]).stat().st_size // 2
    assert Path(served_settings({"data": BUNDLE}).data).name == COMMIT
    assert Pair.of(local_model(BUNDLE), None, None).name == BUNDLE


def test_half_a_download_is_resumed_and_never_believed(
    hub: Hub, opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1)
    size, hub.breaks = (opus / WEIGHTS).stat().st_size, 99
    refused(f"{OPUS}: cannot be downloaded from .*; run the same command again", local_model, OPUS)
    assert not [*tmp_path.rglob(WEIGHTS)]
    hub.breaks = 1
    hub.asked.clear()
    assert (local_model(OPUS) / WEIGHTS).read_bytes() == (opus / WEIGHTS).read_bytes()
    assert hub.files() == [WEIGHTS, WEIGHTS]
    assert hub.asked[-1].endswith(f" bytes={size // 2}-")


def test_a_full_disk_stays_one_and_leaves_nothing_to_believe(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_download, "http_get", full)
        with pytest.raises(OSError, match="No space left"):  # `run_command` says what to do
            local_model(OPUS)
    assert not [*tmp_path.rglob("config.json")]
    assert (local_model(OPUS) / WEIGHTS).is_file()


def test_a_private_model_needs_its_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens[OPUS] = "secret"
    refused("has no model of this name, or not for you .status 401.*HF_TOKEN", local_model, OPUS)
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert (local_model(OPUS) / WEIGHTS).is_file()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "Org/none: is no folder here, and http.* has no model of this name, or .*status 404"),
        ({"status": 401}, "has no model of this name, or not for you .status 401"),
        ({"status": 403}, "has no model of this name, or not for you .status 403"),
        ({"status": 500}, "cannot be downloaded from http.*500 Internal Server Error"),
        ({"page": "<html>Log in</html>"}, "answers what no hub answers, such as the page of a pro"),
    ],
)
def test_what_a_hub_may_answer_is_one_sentence(
    hub: Hub, answer: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for name, value in answer.items():
        setattr(hub, name, value)
    refused(message, local_model, "Org/none")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("without", "config", "message"),
    [
        (WEIGHTS, {}, "Org/bad: holds no weights that can be read, .*, but config.json, genera"),
        ("", LLAMA, "Org/bad/config.json: the model is a LlamaForCausalLM, .* use llama.cpp or vL"),
        ("", {"model_type": "whisper"}, "Org/bad/config.json: models of type 'whisper' are not"),
        ("", {"model_type": None}, "Org/bad: is neither a model of transformers .* nor a bundle"),
        ("source.spm", {}, "Org/bad/source.spm: there is no such file, but the model's tokenizer"),
        ("tokenizer_config.json", {"tokenizer_class": "XTokenizer"}, "Org/bad: its tokenizer_clas"),
    ],
)
def test_what_cannot_be_decoded_is_told_before_its_weights_are_downloaded(
    hub: Hub, opus: Path, tmp_path: Path, without: str, config: dict[str, Any], message: str
) -> None:
    hub.models["Org/bad"] = model(tmp_path / "bad", opus, without, **config)
    refused(message, local_model, "Org/bad")
    refused("not this revision", local_model, f"{OPUS}@v9")
    assert WEIGHTS not in hub.files()
