"""Two engines behind Ray Serve, as their own processes, on the pair of the benchmarks."""

from __future__ import annotations

import http.client
import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from specdec_plugins.serving.cli import main
from specdec_plugins.serving.client import Client
from specdec_plugins.serving.model import load_model
from specdec_plugins.serving.planning import translate_texts
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ModelOptions, ServerSettings
from tests.serving.toys import ROOT, START, ServerProcess, free_port, wait_until

FOLDER = str(ROOT / "benchmarks" / "models" / "captions.en-de")
PAIR = (FOLDER, "-s", "en", "-t", "de")
LINES = [
    f"{who} {what} {where}."
    for who in ("A man", "Two dogs", "The girl")
    for what in ("is running", "plays with a ball")
    for where in ("in the snow", "on a street")
]


def engines(server: ServerProcess) -> set[str]:
    """Processes that have translated."""
    return {line.split("pid=")[1].split(")")[0] for line in server.said("path='/generate'")}


@pytest.fixture(scope="module")
def started() -> Iterator[list[ServerProcess]]:
    """Servers of this module's tests; all are ended after the last test."""
    servers: list[ServerProcess] = []
    yield servers
    for there in servers:
        there.process.terminate()
        there.process.wait(60)


@pytest.fixture
def server(started: list[ServerProcess]) -> ServerProcess:
    """A running one, started anew only where a test has ended the last: starting takes long."""
    if not started or started[-1].process.poll() is not None:
        flags = ("--replicas", "2", "--device", "cpu", "--dtype", "float64")
        port = ("--port", str(free_port()))
        started.append(ServerProcess(*PAIR, *flags, *port))
    return started[-1]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    model = load_model(ModelOptions(FOLDER, None, None, "en", "de", device="cpu", dtype="float64"))
    return translate_texts(LINES, Parameters(use_drafter=False), model, ServerSettings())


@pytest.mark.integration
def test_all_routes_through_two_engines(server: ServerProcess, expected: list[str]) -> None:
    client = Client(server.url)
    labels = {"route": "/generate", "code": "200"}

    def counts() -> tuple[float, ...]:
        return (
            server.metric("specdec_sentences_total"),
            server.metric("specdec_requests_total", **labels),
            server.metric("specdec_request_failures_total", kind="bad_request"),
            server.metric("specdec_request_failures_total", kind="too_large"),
        )

    before = counts()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda line: client.generate(line, details=True), LINES))
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
        # One id, although the proxy sets one, too.
        assert wrong.headers.get_list("x-request-id") == ["my-own"]
        large = web.post("/generate", content=b'{"inputs": "' + b"x" * 1_000_000 + b'"}')
        assert large.status_code == 413
    # Every line twice, whichever engine decoded it, and the stream's.
    added = (2 * len(LINES) + 1, len(LINES), 1, 1)
    wait_until(lambda: counts() == tuple(map(sum, zip(before, added, strict=True))))
    # Ray hands on what the engines log after a while.
    wait_until(lambda: len(engines(server)) == 2)


@pytest.mark.integration
def test_a_hang_up_frees_its_row(server: ServerProcess) -> None:
    before = server.metric("specdec_requests_total", code="499")
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    body = {"inputs": " ".join(LINES * 20), "parameters": {"split_sentences": True}}
    connection.request("POST", "/generate_stream", json.dumps(body))
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


def test_a_missing_library_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*PAIR, "--replicas", "2"]) == 2
    assert ".[ray]" in capsys.readouterr().err
