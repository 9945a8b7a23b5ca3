"""What goes wrong on the way: hang-ups, full lines, time, sentences and engines that fail."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from specdec_plugins.decoding.contract import Draft, Prefix, Scores
from specdec_plugins.serving import routes, service
from specdec_plugins.serving.cli import serve
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.settings import ServerSettings
from tests.programs import free_port, talking_to
from tests.serving.test_http import stream
from tests.serving.toys import (
    PATIENCE,
    ROOT,
    START,
    GatedVerifier,
    Running,
    ToyCodec,
    expected,
    running,
    toy_model,
    wait_until,
)

FOREVER = "w0 w1"  # decodes until its limit
LONG = "w0" + " " * 600  # goes to the thread for texts, and takes many rounds


def request(path: str, inputs: str, request_id: str = "x") -> bytes:
    body = json.dumps({"inputs": inputs}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-ID: {request_id}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def send(server: Running, path: str, inputs: str, request_id: str = "x") -> socket.socket:
    """A request of which nothing is read yet."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(request(path, inputs, request_id))
    return client


def read(client: socket.socket) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(client)
    response.begin()
    return response


def answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the body of the whole answer."""
    with client:
        response = read(client)
        return response.status, json.loads(response.read())


def wait_for(server: Running, name: str, value: float, **labels: str) -> None:
    wait_until(lambda: server.metric(f"specdec_{name}", **labels) == value)


def wait_for_rows(server: Running, num_rows: int, num_waiting: int) -> None:
    worker = server.service.worker
    wait_until(lambda: (worker.num_rows, worker.num_waiting) == (num_rows, num_waiting))


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as there:
        yield there


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_a_hang_up_frees_rows_and_places_in_line(server: Running, path: str) -> None:
    worker = server.service.worker
    server.gate.clear()
    clients = [send(server, path, FOREVER) for _ in range(7)]
    wait_until(lambda: worker.num_rows + worker.num_waiting == 7)
    for client in clients:
        client.close()
    wait_until(lambda: worker.num_waiting == 0)
    # The rows that decode are let go of at the next round, not after forty.
    server.gate.set()
    wait_for_rows(server, 0, 0)
    wait_for(server, "batch_rows", 0)
    wait_for(server, "requests_total", len(clients), route=path, code="499")
    assert server.metric("specdec_tokens_total") < 7 * 20
    assert server.metric("specdec_sentences_total") == 0
    assert answer(send(server, "/generate", "w1"))[1]["generated_text"] == expected("w1")


def test_a_full_line_is_answered_with_429_and_loses_nothing() -> None:
    lines: list[str] = []

    class Recorded(ToyCodec):
        def source_ids(self, line: str) -> list[int]:
            lines.append(line)
            return super().source_ids(line)

    with running(toy_model(codec=Recorded()), max_waiting=3, max_rows=1) as server:
        server.gate.clear()
        clients = []
        for num_waiting, word in enumerate(("w1", "w2", "w3")):
            clients.append(send(server, "/generate", word))
            wait_for_rows(server, 1, num_waiting)
        for path in ("/generate", "/generate_stream"):
            # There is one place left: a text is refused whole, or not at all.
            refused = server.client.post(path, json={"inputs": "w5. w6."})
            assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
        wait_for_rows(server, 1, 2)
        assert lines == ["w1", "w2", "w3"]  # what is refused is not cut into subwords
        assert server.metric("specdec_request_failures_total", kind="overloaded") == 2
        clients.append(send(server, "/generate", "w4"))
        wait_for_rows(server, 1, 3)
        server.gate.set()
        for client, word in zip(clients, ("w1", "w2", "w3", "w4"), strict=True):
            assert answer(client)[1]["generated_text"] == expected(word)


class SlowVerifier(GatedVerifier):
    """Takes its time over every round."""

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        time.sleep(0.02)
        return super().score(prefix, draft)


class SlowCodec(ToyCodec):
    """Takes its time over the texts before decoding, or those after it."""

    def __init__(self, before: float, after: float) -> None:
        self._before = before
        self._after = after

    def source_ids(self, line: str) -> list[int]:
        time.sleep(self._before)
        return super().source_ids(line)

    def text(self, tokens: Sequence[str], source: str = "") -> str:
        time.sleep(self._after)
        return super().text(tokens)


SLOW: dict[str, Any] = {
    "decoding": {"verifier": SlowVerifier()},
    "before": {"codec": SlowCodec(0.2, 0.0)},
    "after": {"codec": SlowCodec(0.0, 0.2)},
}


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/translate"])
def test_time_is_bounded_and_the_row_freed(path: str, slow: str) -> None:
    body = {"q": FOREVER, "source": "en", "target": "de"}
    with running(toy_model(None, **SLOW[slow]), request_timeout=0.1) as server:
        late = server.client.post(path, json=body if path == "/translate" else {"inputs": FOREVER})
        assert late.status_code == (200 if path == "/generate_stream" and slow != "before" else 504)
        assert json.loads(late.text.split("data:")[-1])["error_type"] == "timeout"
        wait_until(server.is_idle)


def send_half(server: Running) -> socket.socket:
    """A request of which more is announced than comes."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    return client


def test_a_body_that_never_comes_is_not_waited_for() -> None:
    with running(body_timeout=0.1) as server:
        assert answer(send_half(server))[0] == 408


def is_closed(client: socket.socket) -> bool:
    """True if the server closes the connection before the test gives up."""
    client.settimeout(PATIENCE)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_connections_are_limited() -> None:
    with running(max_connections=2) as server:
        address = ("127.0.0.1", server.port)
        first, second = (socket.create_connection(address) for _ in range(2))
        with first, socket.create_connection(address) as third:
            assert is_closed(third)
            second.close()
            wait_until(lambda: server.client.get("/health").status_code == 200)


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHos"])
def test_a_request_that_does_not_begin_is_not_waited_for(begun: bytes) -> None:
    with running(body_timeout=0.1) as server, send_head(server, begun) as client:
        assert is_closed(client)


@pytest.mark.parametrize("body", [b"", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"])
def test_heads_and_trailers_have_a_limit(server: Running, body: bytes) -> None:
    begun = b"POST /nothing HTTP/1.1\r\n" + body
    endless = (b"X: %b\r\n" % (b"x" * 1000)) * 10_000
    with send_head(server, begun) as client, pytest.raises(ConnectionError):
        client.sendall(endless)


def send_head(server: Running, begun: bytes) -> socket.socket:
    """A connection whose first request is answered, and whose second has only begun."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read(client).read() == b'{"status":"ok"}'
    client.sendall(begun)
    return client


def test_a_reader_who_stops_holds_nothing_for_long() -> None:
    text = " ".join(f"w{i % 12} w{i % 5}." for i in range(1500))
    limits = {"body_timeout": 0.3, "max_waiting": 2000, "max_rows": 32}
    with running(**limits) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.connect(("127.0.0.1", server.port))
        client.sendall(request("/generate_stream", text))
        wait_for(server, "requests_active", 1)
        wait_for(server, "requests_total", 1, route="/generate_stream", code="499")
        wait_until(server.is_idle)


def test_a_body_that_breaks_off_is_a_hang_up(server: Running) -> None:
    with send_half(server):
        wait_for(server, "requests_active", 1)
    wait_for(server, "requests_total", 1, route="/generate", code="499")
    assert server.metric("specdec_request_failures_total", kind="cancelled") == 1
    assert server.metric("specdec_request_failures_total", kind="internal") == 0


@pytest.mark.parametrize("failure", ["poison", "overflow"])
def test_a_sentence_that_fails_is_answered_and_harms_nobody(
    server: Running, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(server.verifier, failure, 3)
    server.gate.clear()
    # One row decodes at the gate, so that the two others join it in one round.
    first = send(server, "/generate", "w5")
    wait_for_rows(server, 1, 0)
    others = [send(server, "/generate", word, f"asks-{word}") for word in ("w3", "w1")]
    wait_for_rows(server, 1, 2)
    server.gate.set()
    status, failed = answer(others[0])
    assert (status, failed["error_type"]) == (500, "internal")
    assert failed["error"].startswith("This sentence could not be decoded")
    for client, word in ((others[1], "w1"), (first, "w5")):
        assert answer(client)[1]["generated_text"] == expected(word)
    [broken] = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert broken.startswith("request_id=asks-w3 cannot be decoded")
    if failure == "poison":
        [searched] = [line for line in caplog.messages if "a round failed" in line][:1]
        assert all(f"request_id=asks-{word}" in searched for word in ("w1", "w3"))
    assert stream(server, "w1. w3. w5.")[-1]["error_type"] == "internal"


def test_health_tells_a_failing_device_until_something_works(server: Running) -> None:
    server.verifier.poison = 3
    for word, code, status in (("w3", 503, "failing"), ("w2", 200, "ok")):
        for _ in range(3):
            server.client.post("/generate", json={"inputs": word})
        health = server.client.get("/health")
        assert (health.status_code, health.json()) == (code, {"status": status})


def test_what_nobody_foresaw_is_answered_under_its_id(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes, "kernels_in_use", lambda _: 1 / 0)
    answer = server.client.get("/info", headers={"X-Request-ID": "odd"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "odd")
    assert answer.json()["error_type"] == "internal"
    assert answer.json()["request_id"] == "odd"
    assert "division" not in answer.text
    told = [record for record in caplog.records if "request_id=odd failed" in record.message]
    assert [record.exc_info is not None for record in told] == [True]
    wait_for(server, "requests_total", 1, route="/info", code="500")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's thread dies in its first round."""

    def stepped(*_: object) -> None:
        raise AssertionError("bug")

    monkeypatch.setattr(Metrics, "stepped", stepped)


@pytest.mark.usefixtures("broken")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_died_is_no_server_that_stops(server: Running) -> None:
    server.gate.clear()
    clients = [send(server, "/generate", "w1") for _ in range(9)]
    worker = server.service.worker
    wait_until(lambda: worker.num_rows + worker.num_waiting == 9)
    server.gate.set()
    # Those that decoded, those that waited, and one that comes too late.
    for client in [*clients, send(server, "/generate", "w1")]:
        status, body = answer(client)
        assert (status, body["error_type"]) == (500, "internal")
        assert "shutting down" not in body["error"]
    worker.close(0.0)  # as a supervisor's signal would
    health = server.client.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "failing"})


@pytest.fixture
def signals() -> Iterator[None]:
    """Handlers as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.usefixtures("signals")
def test_a_server_that_is_to_stop_says_so_and_goes_on_for_a_while() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def ask() -> list[int]:
        wait_until(lambda: listens(port))
        before = httpx.get(f"{url}/health").status_code
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/health").status_code != before)
        health = httpx.get(f"{url}/health")
        assert health.json() == {"status": "stopping"}
        answer = httpx.post(f"{url}/generate", json={"inputs": "w1"}, timeout=PATIENCE)
        return [before, health.status_code, answer.status_code]

    with ThreadPoolExecutor(1) as pool:
        codes = pool.submit(ask)
        assert serve(toy_model(), ServerSettings(drain_timeout=1.0), "127.0.0.1", port) == 0
        assert codes.result() == [200, 503, 200]
    assert not listens(port)


def test_a_text_that_does_not_end_is_told_by_health(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_STUCK_AFTER", 0.05)
    may_end = threading.Event()
    monkeypatch.setattr(service, "make_plan", lambda *_: may_end.wait(PATIENCE) and 1 / 0)
    with send(server, "/generate", LONG):
        wait_until(lambda: server.client.get("/health").status_code == 503)
        assert server.client.get("/health").json() == {"status": "failing"}
        may_end.set()
        wait_until(lambda: server.client.get("/health").status_code == 200)


WORK = """
import sys, threading, time
from specdec_plugins.serving import cli, service
from specdec_plugins.serving.settings import ServerSettings
from tests.serving.toys import toy_model
model = toy_model()
if sys.argv[2] == "decoding":
    model.decoder.verifier.gate.clear()
elif sys.argv[2] == "slowly":
    model.decoder.verifier.gate.wait = lambda *_: time.sleep(0.6) or True
else:
    service.make_plan = lambda *_: threading.Event().wait()
    service._STUCK_AFTER = 0.1
settings = ServerSettings(shutdown_timeout=1.0 if sys.argv[2] == "slowly" else 0.1)
cli.logging.basicConfig(level="INFO")
sys.exit(cli.serve(model, settings, "127.0.0.1", int(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("work", "signals", "status", "said"),
    [
        ("decoding", 2, 130, "specdec serve: interrupted twice; accepted work is lost."),
        ("slowly", 1, 1, "INFO:uvicorn.error:Finished server process [{pid}]"),
        ("text", 1, 1, "ERROR:specdec.serving:ending, although some work has not ended"),
    ],
)
def test_nothing_keeps_a_server_from_ending(
    work: str, signals: int, status: int, said: str
) -> None:
    port = free_port()
    with talking_to(sys.executable, "-c", WORK, port, work, PYTHONPATH=str(ROOT)) as (process, *_):
        wait_until(lambda: listens(port), START)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request("/generate", LONG))
            active = f"http://127.0.0.1:{port}/metrics"
            wait_until(lambda: "specdec_requests_active 2.0" in httpx.get(active).text)
            for _ in range(signals):
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)  # one signal, not two that become one
            log = process.communicate(timeout=PATIENCE)[1].decode()
            if signals == 1:
                assert answer(client)[1]["error_type"] == "stopping"
    assert (process.returncode, log.splitlines()[-1]) == (status, said.format(pid=process.pid))
    assert "Traceback" not in log


@pytest.mark.usefixtures("broken", "signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_whose_engine_died_ends_with_an_error() -> None:
    port = free_port()
    # A server that lives on is stopped as by a person, and ends with 0.
    end = threading.Timer(PATIENCE, signal.raise_signal, (signal.SIGINT,))

    def ask() -> int:
        end.start()
        wait_until(lambda: listens(port))
        url = f"http://127.0.0.1:{port}/generate"
        return httpx.post(url, json={"inputs": "w1"}, timeout=PATIENCE).status_code

    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(ask)
        assert serve(toy_model(), ServerSettings(), "127.0.0.1", port) == 1
        end.cancel()
        assert code.result() == 500
