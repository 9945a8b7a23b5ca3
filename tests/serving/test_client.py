"""The Python client and specdec-translate, against a real server and without one."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specdec_plugins.serving import translate_cli
from specdec_plugins.serving.client import Client, ClientError
from specdec_plugins.serving.planning import translate_texts
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.translate_cli import main
from tests.serving.toys import (
    MAX_LEN,
    PATIENCE,
    GatedVerifier,
    Running,
    expected,
    running,
    toy_model,
    wait_until,
)

LINES = [f"w{i % 12} w{i % 5}. w{(i * 7) % 12}" for i in range(70)]
LINES[3] = LINES[9] = ""
LINES[5] = "  w1 "


def wanted(line: str) -> str:
    if not line:
        return ""
    if line == "  w1 ":
        return f"  {expected('w1')} "
    first, _, second = line.partition(". ")
    return f"{expected(first + '.')} {expected(second)}"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as there:
        yield there


@pytest.fixture
def client(server: Running) -> Client:
    return Client(f"http://127.0.0.1:{server.port}")


def test_every_call(client: Client) -> None:
    assert client.translate("w1") == expected("w1")
    assert client.translate(["w1", "w2"], source="en", target="de") == [
        expected("w1"),
        expected("w2"),
    ]
    assert len(client.translate("w1 w1", alternatives=1, seed=3)["alternatives"]) == 1
    assert client.generate("w3", details=True)["details"]["generated_tokens"] > 0
    events = list(client.stream("w3"))
    assert events[-1]["generated_text"] == expected("w3")
    assert client.info()["source"] == "en"


def test_refusals_carry_the_servers_sentence(client: Client, server: Running) -> None:
    with pytest.raises(ClientError, match="beta") as caught:
        client.generate("w1", beta=0)
    assert caught.value.status == 422
    with pytest.raises(ClientError, match="cannot be reached"):
        Client("http://127.0.0.1:9").info()
    with pytest.raises(ClientError, match="no address"):
        Client("nonsense").info()


class Answer(BaseHTTPRequestHandler):
    """Sends its class's bytes to everybody and hangs up."""

    headers_sent: ClassVar[dict[str, str]] = {}
    body: ClassVar[bytes] = b""
    status: ClassVar[int] = 200
    reset: ClassVar[threading.Event | None] = None  # hang up rudely, when it is set

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)
        if self.reset is not None:
            assert self.reset.wait(PATIENCE)
            linger = struct.pack("ii", 1, 0)  # a close throws away what is unsent, and says so
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def answering(body: bytes, **fields: Any) -> Iterator[Client]:
    """A client of a server that gives this answer, whatever it is asked."""
    handler = type("Fixed", (Answer,), {"body": body, **fields})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as there:
        thread = threading.Thread(target=there.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Client(f"http://127.0.0.1:{there.server_port}")
        finally:
            there.shutdown()
            thread.join(PATIENCE)


LONGER = {"Content-Length": "99"}  # than what comes
CALLS: list[Callable[[Client], Any]] = [
    lambda client: client.info(),
    lambda client: client.generate("w1"),
    lambda client: client.translate("w1"),
    lambda client: client.translate("w1", source="en", target="de"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("body", "fields", "message"),
    [
        (b'{"generated_', {"headers_sent": LONGER}, "its answer broke off"),
        (b"<html>", {}, "answered with what is no JSON"),
        (b"\xff", {}, "answered with what is no JSON"),
        (b"[]", {}, "JSON that is not this project's"),
        (b'{"err', {"headers_sent": LONGER, "status": 500}, "answered with status 500"),
    ],
)
def test_answers_that_are_none(
    call: Callable[[Client], Any], body: bytes, fields: dict[str, Any], message: str
) -> None:
    with answering(body, **fields) as client, pytest.raises(ClientError, match=message):
        call(client)


@pytest.mark.parametrize("call", CALLS[1:])
def test_answers_of_another_service(call: Callable[[Client], Any]) -> None:
    with answering(b'{"status": "ok"}') as client, pytest.raises(ClientError, match="not this pro"):
        call(client)


@pytest.mark.parametrize(
    ("rest", "is_reset", "message"),
    [
        (b"", False, "its answer broke off"),
        (b'data: {"index": 1, "gener', False, "its answer broke off"),
        (b"data: nonsense\n\n", False, "answered with what is no JSON"),
        (b'data: {"error": "It failed."}\n\n', False, "It failed"),
        (b"", True, "its answer broke off .*reset by peer"),
    ],
)
def test_streams_that_do_not_end_well(rest: bytes, is_reset: bool, message: str) -> None:
    first = b'data: {"index": 0, "generated_text": null}\n\n'
    reset = threading.Event() if is_reset else None
    with answering(first + rest, reset=reset) as client:
        events = client.stream("w1")
        assert next(events)["index"] == 0
        if reset is not None:
            reset.set()
        with pytest.raises(ClientError, match=message):
            next(events)


def test_a_busy_server_is_asked_again() -> None:
    with running(max_waiting=1, max_rows=1) as there, ThreadPoolExecutor(3) as pool:
        patient = Client(f"http://127.0.0.1:{there.port}")
        hasty = Client(f"http://127.0.0.1:{there.port}", patience=0)
        worker = there.service.worker
        there.gate.clear()
        answers = [pool.submit(patient.generate, word) for word in ("w1", "w2")]
        wait_until(lambda: worker.num_rows + worker.num_waiting == 2)
        with pytest.raises(ClientError) as caught:
            hasty.generate("w4")
        assert (caught.value.status, caught.value.retry_after) == (429, 1.0)
        answers.append(pool.submit(patient.generate, "w4"))
        wait_until(lambda: there.metric("specdec_request_failures_total", kind="overloaded") >= 2)
        there.gate.set()
        for answer, word in zip(answers, ("w1", "w2", "w4"), strict=True):
            assert answer.result()["generated_text"] == expected(word)


@pytest.fixture
def translate(server: Running, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """specdec-translate through the server: its exit status, and what the output holds then."""

    def run(text: bytes, *flags: str) -> tuple[int, str]:
        source, target = tmp_path / "in", tmp_path / "out"
        source.write_bytes(text)
        target.write_text("old\n")
        files = ["--input", str(source), "--output", str(target)]
        status = main(["--server", f"http://127.0.0.1:{server.port}", *files, *flags])
        return status, target.read_text(encoding="utf-8")

    return run


@pytest.mark.parametrize("num_requests", ["1", "7"])
def test_files_through_a_server(
    translate: Callable[..., tuple[int, str]], num_requests: str
) -> None:
    status, translations = translate("\n".join(LINES).encode(), "--requests", num_requests)
    assert status == 0
    assert translations.split("\n") == [*map(wanted, LINES), ""]


def test_an_old_output_makes_way_for_a_new_one_alone(
    translate: Callable[..., tuple[int, str]],
) -> None:
    assert translate(b"w1\n\xff\n") == (2, "old\n")
    assert translate(b"") == (0, "")


def test_a_pipe_in_place_of_a_file(server: Running, tmp_path: Path) -> None:
    """As the shell makes of `--input <(command)`; it can be read but once."""
    target = tmp_path / "out"
    read_end, write_end = os.pipe()
    with open(read_end, "rb"):
        with open(write_end, "w", encoding="utf-8") as pipe:
            pipe.write("w1\nw2\n")
        files = ["--input", f"/dev/fd/{read_end}", "--output", str(target), "--progress"]
        assert main(["--server", f"http://127.0.0.1:{server.port}", *files]) == 0
    assert target.read_text(encoding="utf-8") == f"{expected('w1')}\n{expected('w2')}\n"


def test_the_same_without_a_server() -> None:
    settings = ServerSettings(max_new_tokens=MAX_LEN)
    lines = translate_texts(LINES, Parameters(), toy_model(), settings)
    assert lines == [wanted(line) for line in LINES]
    whole = Parameters(split_sentences=False)
    assert translate_texts(["w4 w1. w2"], whole, toy_model(), settings) == [expected("w4 w1. w2")]


def test_lines_that_cannot_be_decoded_are_empty_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = toy_model()
    assert isinstance(model.decoder.verifier, GatedVerifier)
    model.decoder.verifier.overflow = 3
    monkeypatch.setattr(translate_cli, "load_model", lambda _: model)
    monkeypatch.setattr(translate_cli, "request_defaults", lambda _: {"max_new_tokens": MAX_LEN})
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("w1\nw2. w3\n\nw4\n")
    assert main(["--input", str(source), "--output", str(target)]) == 1
    assert target.read_text() == f"{expected('w1')}\n\n\n{expected('w4')}\n"
    assert "1 lines could not be decoded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "http://127.0.0.1:9"], "cannot be reached"),
        (["/nowhere", "--server", "http://x"], "omit the folder"),
        (["/nowhere"], "is no folder"),
        (["/nowhere", "--processes", "-1"], "--processes"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    source.write_text("w1\n")
    assert main([*arguments, "--input", str(source), "--output", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("specdec-translate: ")
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()
