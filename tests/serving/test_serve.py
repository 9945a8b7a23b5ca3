"""specdec-serve as its own process, on small random checkpoints, until a signal ends it."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.errors import UserError
from specdec_plugins.serving import translate_cli
from specdec_plugins.serving.cli import KEY_VARIABLE, main, read_key
from specdec_plugins.serving.client import Client
from specdec_plugins.serving.model import decode_settings, load_model
from specdec_plugins.serving.planning import translate_texts
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ModelOptions, ServerSettings
from tests import fairseq_checkpoints
from tests.bundles import CAPTIONS
from tests.serving.toys import ServerProcess

PAIR = ("-s", "en", "-t", "de", "--device", "cpu", "--dtype", "float64")
LINES = [" ".join(f"s{(i * 7 + j * 3) % 30}" for j in range(i % 6 + 1)) for i in range(16)]
FLAGS = ("--max-new-tokens", "12", "--tokenizer", "none", "--max-rows", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user points the server to; needs fairseq to make it."""
    data = fairseq_checkpoints.dictionaries(tmp_path_factory.mktemp("pair"))
    args = fairseq_checkpoints.settings("transformer", share_all_embeddings=True)
    verifier = fairseq_checkpoints.build(args, data)
    for name, parameter in verifier.named_parameters():
        if "encoder_attn" in name:
            parameter.data *= 4
    fairseq_checkpoints.save(verifier, args, data / "verifier.pt")
    shape = {"encoder_embed_dim": 16, "decoder_embed_dim": 16, "share_all_embeddings": True}
    args = fairseq_checkpoints.settings("block", block_size=6, src_embedding_copy=True, **shape)
    drafter = fairseq_checkpoints.build(args, data, seed=3)
    fairseq_checkpoints.save(drafter, args, data / "drafter.pt")
    # Merges that make one token of s0, ..., s29.
    merges = [f"s {i}</w>\n" for i in range(10)]
    merges += [f"s {i}\n" for i in (1, 2)]
    merges += [f"s{i} {j}</w>\n" for i in (1, 2) for j in range(10)]
    (data / "bpe.codes").write_text("#version: 0.2\n" + "".join(merges))
    return data


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    there = ServerProcess(str(folder), *PAIR, *FLAGS, "--port", "0")
    yield there
    there.process.kill()


@pytest.mark.fairseq
@pytest.mark.integration
def test_a_server_from_start_to_stop(server: ServerProcess, folder: Path, tmp_path: Path) -> None:
    client = Client(server.url)
    assert client.info()["drafter"] == "block"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.translate, LINES))
        plain = list(pool.map(lambda line: client.generate(line, use_drafter=False), LINES))
        assert len(set(answers)) > 8
        assert answers == [answer["generated_text"] for answer in plain]
        (source := tmp_path / "in").write_text("\n".join(LINES))
        files = ["--input", str(source), "--output", str(tmp_path / "out")]
        assert translate_cli.main([str(folder), *PAIR, *FLAGS, *files, "--processes", "2"]) == 0
        assert (tmp_path / "out").read_text().splitlines() == answers
        late = [pool.submit(client.translate, line) for line in LINES]
        server.process.send_signal(signal.SIGTERM)
        # Work that was accepted is finished; what came too late was refused, not lost.
        for line, answer in zip(answers, late, strict=True):
            assert answer.exception() is not None or answer.result() == line
    assert server.process.wait(30) == 0


@pytest.mark.fairseq
def test_sampling_and_tolerance_with_real_networks(folder: Path) -> None:
    options = ModelOptions(str(folder), None, None, "en", "de", "none", device="cpu")
    model = load_model(options)
    settings = ServerSettings(max_new_tokens=12)

    def translated(**parameters: Any) -> list[str | None]:
        return translate_texts(LINES, Parameters(**parameters), model, settings)

    sampling = {"do_sample": True, "seed": 1, "temperature": 1.0}
    greedy, sampled = translated(), translated(**sampling)
    assert translated(**sampling) == sampled != greedy
    assert translated(beta=20, tau=50.0) != greedy


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ([], {}, "verifier.pt: there is no such checkpoint"),
        (["verifier.pt"], {}, "bpe.codes: there is no such file"),
        (["verifier.pt", "bpe.codes"], {"drafter": "block"}, "needs the drafter's checkpoint"),
    ],
)
def test_what_a_folder_lacks_is_named(
    tmp_path: Path, files: list[str], options: dict[str, str], message: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        decode_settings(ModelOptions(str(tmp_path), **options))


def test_a_folder_says_how_to_draft(tmp_path: Path) -> None:
    for name in ("verifier.pt", "bpe.codes"):
        (tmp_path / name).touch()
    assert decode_settings(ModelOptions(str(tmp_path))).strategy == "AR"
    (tmp_path / "drafter.pt").touch()
    settings = decode_settings(ModelOptions(str(tmp_path)))
    assert (settings.strategy, settings.drafter) == ("specdec", "block")
    assert decode_settings(ModelOptions(str(tmp_path), drafter="none")).strategy == "AR"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "/nowhere: is no folder"),
        (["/nowhere", "--replicas", "2"], "/nowhere: is no folder"),
        ([str(CAPTIONS), "--replicas", "2"], "--source-lang"),
        (["--replicas", "0"], "--replicas must be 1 or more"),
        (["--replica-gpus", "1"], "give both, or neither"),
        (["--replica-gpus", "-1"], "--replica-gpus"),
        (["--port", "TAKEN"], "Address already in use"),
        (["--max-rows", "0"], "--max-rows must be 1 or more"),
        (["--beta", "0"], "--beta"),
        (["--threads", "0"], "--threads"),
        (["--api-key-file", "/nowhere"], "/nowhere: the API key cannot be read"),
        (["--port", "99999"], "--port must be .*at most 65535"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 .*name an address of this machine"),
        (["--drafter", "none", "--drafter-options", '{"x": 1}'], "there is none"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        assert main([taken if word == "TAKEN" else word for word in arguments]) == 2
    assert re.fullmatch(f"specdec-serve: error: .*{message}.*\n", capsys.readouterr().err)


def test_the_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n")
    assert read_key(str(path)) == "secret"
    assert read_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, "other")
    assert read_key(None) == "other"
    path.write_text("")
    with pytest.raises(UserError, match="empty"):
        ServerSettings(api_key=read_key(str(path)))
