"""specdec-serve as its own process, with two engines, until a signal ends it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from specdec_plugins.app import main as app
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.errors import INTERRUPTED, TERMINATED, UserError
from specdec_plugins.serving import translate
from specdec_plugins.serving.cli import COMMAND, main, read_key
from specdec_plugins.serving.client import KEY_VARIABLE, Client
from specdec_plugins.serving.model import served_settings
from specdec_plugins.serving.settings import ServerSettings
from tests.bundles import CAPTIONS, ROOT
from tests.programs import free_port, talking_to
from tests.refusals import refused, told
from tests.serving.toys import START, ServerProcess, wait_until

PAIR = (str(CAPTIONS), "-s", "en", "-t", "de", "--device", "cpu", "--dtype", "float64")
LINES = [
    f"{who} {what} {where}."
    for who in ("A man", "Two dogs", "The girl")
    for what in ("is running", "plays with a ball")
    for where in ("in the snow", "on a street")
]
LINES += ["The quick brown fox jumps over a lazy dog near the old river bank."]  # hard to draft


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """One token at a time."""
    plain = SpeculativeTranslator.from_pretrained(
        str(CAPTIONS), source_lang="en", target_lang="de", device="cpu", dtype="float64",
        strategy="AR",
    )  # fmt: skip
    return [one.text for one in plain.translate(LINES)]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Of two engines; the last test that has it ends it."""
    there = ServerProcess(*PAIR, "--replicas", "2", "--port", str(free_port()))
    yield there
    there.process.terminate()
    there.process.wait(60)


@pytest.mark.integration
def test_all_routes(server: ServerProcess, expected: list[str]) -> None:
    client = Client(server.url)

    def counts() -> list[float]:
        failures = "specdec_request_failures_total"
        return [
            server.metric("specdec_sentences_total"),
            server.metric("specdec_requests_total", route="/generate", code="200"),
            *(server.metric(failures, kind=kind) for kind in ("bad_request", "too_large")),
        ]

    sampling = {"do_sample": True, "seed": 1, "temperature": 1.0}
    one, same = (client.generate(LINES[0], **sampling)["generated_text"] for _ in range(2))
    assert one == same != expected[0]
    assert client.generate(LINES[-1], beta=20, tau=50.0)["generated_text"] != expected[-1]
    wait_until(lambda: counts()[1] == 3)
    before = counts()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.generate, LINES))
    assert [answer["generated_text"] for answer in answers] == expected
    assert client.translate(LINES) == expected
    events = list(client.stream(LINES[0]))
    assert events[-1]["generated_text"] == expected[0]
    assert len(events) == events[-1]["details"]["generated_tokens"]
    with httpx.Client(base_url=server.url) as web:
        for path in ("/", "/page.js", "/docs", "/languages", "/health", "/info", "/metrics"):
            assert web.get(path).status_code == 200, path
        wrong = web.post("/generate", content=b"{", headers={"X-Request-ID": "my-own"})
        assert (wrong.status_code, wrong.json()["request_id"]) == (400, "my-own")
        # One id, although a proxy sets one, too.
        assert wrong.headers.get_list("x-request-id") == ["my-own"]
        large = web.post("/generate", content=b'{"inputs": "' + b"x" * 1_000_000 + b'"}')
        assert large.status_code == 413
    # Every line twice, whichever engine decoded it, and the stream's.
    wanted = [a + b for a, b in zip(before, (2 * len(LINES) + 1, len(LINES), 1, 1), strict=True)]
    wait_until(lambda: counts() == wanted)

    # The log names their processes, after a while.
    wait_until(lambda: len({*re.findall(r"pid=(\d+).*path='/generate'", server.log)}) == 2)


@pytest.mark.integration
def test_a_hang_up_frees_its_row(server: ServerProcess) -> None:
    before = server.metric("specdec_requests_total", code="499")
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", "/generate_stream", json.dumps({"inputs": " ".join(LINES * 20)}))
    response = connection.getresponse()
    assert response.readline().startswith(b"data:")
    response.close()
    connection.close()
    wait_until(lambda: server.metric("specdec_requests_total", code="499") == before + 1)
    wait_until(lambda: server.metric("specdec_batch_rows") == 0)
    assert server.metric("specdec_queue_size") == 0


@pytest.mark.integration
def test_stopping_finishes_what_was_accepted(server: ServerProcess, expected: list[str]) -> None:
    client = Client(server.url)
    text = " ".join(LINES * 4)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(client.generate, text) for _ in range(4)]
        wait_until(lambda: server.metric("specdec_requests_active") == 1 + len(answers))
        server.process.send_signal(signal.SIGTERM)
        for answer in answers:
            assert answer.result()["generated_text"] == " ".join(expected * 4)
    assert server.process.wait(START) == 0


@pytest.mark.integration
def test_files_on_several_processes(
    tmp_path: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "load_translator", lambda *_, **__: pytest.fail("loaded here"))
    (source := tmp_path / "in").write_text("\n".join(LINES * 8))
    files = ["--input", str(source), "--output", str(tmp_path / "out")]
    assert translate.main([*PAIR, *files, "--processes", "2"]) == 0
    assert (tmp_path / "out").read_text().splitlines() == expected * 8


@pytest.mark.integration
def test_what_a_process_cannot_load_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (source := tmp_path / "in").write_text("\n".join(LINES * 8))
    swapped = [str(CAPTIONS), "-s", "de", "-t", "en"]
    assert translate.main([*swapped, "--input", str(source), "--processes", "2"]) == 2
    (told,) = capfd.readouterr().err.splitlines()
    assert "swap" in told


@pytest.mark.integration
def test_a_killed_process_is_said() -> None:
    told = "one of --processes was killed, perhaps because memory was short"
    with pytest.raises(UserError, match=told), translate._pool(1) as pool:
        pool.submit(os._exit, 9).result()


INTERRUPTION = "specdec translate: interrupted before a line was written."


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "status", "told"),
    [
        (signal.SIGINT, INTERRUPTED, f"{INTERRUPTION}\n"),
        (signal.SIGTERM, TERMINATED, f"{INTERRUPTION}\n"),
        (signal.SIGKILL, -signal.SIGKILL, ".*"),  # Python counts what nobody could clear away
    ],
)
def test_no_process_outlives_the_one_that_started_it(
    number: int, status: int, told: str, tmp_path: Path
) -> None:
    (source := tmp_path / "in").write_text("\n".join(LINES * 500))
    command = ["-m", "specdec_plugins.cli", "translate", *PAIR, "--input", source]
    command += ["--processes", "2"]
    with talking_to(sys.executable, *command, PYTHONPATH=str(ROOT)) as (process, _, _out):
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(listed.read_text().split()) == 3, START)  # one counts
        children = [int(word) for word in listed.read_text().split()]
        # A terminal sends ctrl-C to all of them, a job manager its signal to the first.
        for pid in [process.pid, *(children if number == signal.SIGINT else [])]:
            os.kill(pid, number)
        _, said = process.communicate()
    assert process.returncode == status
    assert re.fullmatch(told, said.decode(), re.DOTALL)
    wait_until(lambda: not any(map(is_running, children)), START)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_missing_library_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert ".[ray]" in told(capsys, main, [*PAIR, "--replicas", "2"])


def test_a_stop_while_engines_start_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other stops are, although Ray heeds the signal in its own way."""
    ray = SimpleNamespace(init=lambda **_: sys.exit(15))
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, ray)
    assert main([*PAIR, "--replicas", "2", "--port", str(free_port())]) == TERMINATED
    assert capsys.readouterr().err == "specdec serve: interrupted before the server started.\n"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ([], {}, "give a bundle, a transformers folder .*, or one with fairseq's"),
        (["dict.en.txt"], {}, "verifier.pt: no such checkpoint"),
        (["verifier.pt"], {}, "bpe.codes: no such file"),
        (["verifier.pt", "bpe.codes"], {"drafter": "block"}, "needs the drafter's checkpoint"),
    ],
)
def test_what_a_folder_lacks_is_named(
    tmp_path: Path, files: list[str], options: dict[str, str], message: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    refused(message, served_settings, {"data": str(tmp_path), **options})


def test_a_folder_says_how_to_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("verifier.pt", "bpe.codes"):
        (tmp_path / name).touch()
    assert served_settings({"data": str(tmp_path)}).strategy == "AR"
    (tmp_path / "drafter.pt").touch()
    settings = served_settings({"data": str(tmp_path)})
    assert (settings.strategy, settings.drafter) == ("specdec", "block")
    assert served_settings({"data": str(tmp_path), "drafter": None}).strategy == "AR"
    with pytest.raises(SystemExit):
        COMMAND.parse("--help")
    assert f"server: {settings.schedule})" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere", "--replicas", "2"], "/nowhere: not a folder"),
        ([str(CAPTIONS), "-s", "fr", "-t", "de", "--replicas", "2"], "dict.fr.txt"),
        (["--replica-gpus", "1"], "needs --replicas; give both, or omit"),
        (["--replicas", "2", "--port", "0"], "--replicas needs a --port that is not 0"),
        (["--port", "TAKEN"], "Address already in use"),
        (["--max-rows", "0"], "--batch must be 1 or more"),
        (["--threads", "99999"], "--threads must be .*at most 1024, not 99999"),
        (["--shutdown-timeout", "inf"], "--shutdown-timeout must be .*at most 86400, not inf"),
        (["--api-key-file", "/nowhere"], "/nowhere: the API key cannot be read"),
        (["--allow-origins", "*,a.com"], "--allow-origins: a.com is no origin; give .* https://"),
        (["--allow-origins", "https://a.com/b"], "https://a.com/b is no origin"),
        (["--port", "99999"], "--port must be .*at most 65535"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 .*name an address of this machine"),
        (["--drafter", "none", "--drafter-options", '{"x": 1}'], "omit --drafter-options"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        said = told(capsys, main, [taken if word == "TAKEN" else word for word in arguments])
    assert re.fullmatch(f"specdec serve: error: .*{message}.*\n", said)


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
    refused("empty", ServerSettings, api_key=read_key(str(path)))
