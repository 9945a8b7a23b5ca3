"""The Python client and specdec translate, against a real server and without one."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app import main as app
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.errors import UnreadableError
from specdec_plugins.serving.client import Client, ClientError
from specdec_plugins.serving.translate import main
from tests.decoding.toys import SPECIAL
from tests.refusals import told
from tests.serving.toys import (
    PATIENCE,
    GatedVerifier,
    Running,
    ToyCodec,
    expected,
    running,
    toy_model,
    wait_until,
)

LINES = [f"w{i % 12} w{i % 5}. w{(i * 7) % 12}" for i in range(70)]
WANTED = [
    f"{expected(first + '.')} {expected(second)}"
    for first, _, second in (line.partition(". ") for line in LINES)
]
LINES[3], WANTED[3] = "", ""
LINES[5], WANTED[5] = "  w1 ", f"  {expected('w1')} "


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as there:
        yield there


@pytest.fixture
def client(server: Running) -> Client:
    return Client(f"http://127.0.0.1:{server.port}")


def test_every_call(client: Client) -> None:
    both = [expected("w1"), expected("w2")]
    assert client.translate("w1") == both[0]
    assert client.translate(["w1", "w2"], source="en", target="de") == both
    assert len(client.translate("w1 w1", alternatives=1, seed=3)["alternatives"]) == 1
    assert client.generate("w3", details=True)["details"]["generated_tokens"] > 0
    assert list(client.stream("w3"))[-1]["generated_text"] == expected("w3")
    assert client.info()["source"] == "en"


def test_refusals_carry_the_servers_sentence(client: Client) -> None:
    with pytest.raises(ClientError, match="beta") as caught:
        client.generate("w1", beta=0)
    assert caught.value.status == 422
    for url, message in (
        ("http://127.0.0.1:9", "cannot be reached"),
        ("nonsense", "'nonsense' is not an address; give one such as http://"),
        ("127.0.0.1:8080", "not an address"),
        ("file:///tmp", "not an address"),  # which Python would read
        ("http://", "not an address"),
        ("http://[::1", "not an address"),
    ):
        with pytest.raises(ClientError, match=message):
            Client(url).info()


Call = Callable[[Client], Any]


@contextmanager
def answering(
    body: bytes, status: int = 200, length: str = "", reset: threading.Event | None = None
) -> Iterator[Client]:
    """A client of a server that gives this answer, once, whatever it is asked.

    length: what it says of the body's; reset: it hangs up rudely, when this is set.
    """

    def answer() -> None:
        with listener.accept()[0] as connection:
            connection.recv(2**16)
            connection.sendall(f"HTTP/1.0 {status} Told\r\n{length}\r\n".encode() + body)
            if reset is None:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
            else:
                assert reset.wait(PATIENCE)
                linger = struct.pack("ii", 1, 0)  # a close throws away what is unsent, and says so
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(answer)
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}")


LONGER = "Content-Length: 99\r\n"  # than what comes


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.generate("w1"),
        lambda client: client.translate("w1"),
        lambda client: client.translate("w1", source="en", target="de"),
    ],
)
@pytest.mark.parametrize(
    ("message", "body", "fields"),
    [
        ("its answer broke off", b'{"generated_', {"length": LONGER}),
        ("the answer is not JSON", b"<html>", {}),
        ("the answer is not JSON", b"\xff", {}),
        ("JSON, but not from a specdec server", b"[]", {}),
        ("JSON, but not from a specdec server", b'{"status": "ok"}', {}),
        ("answered with status 500", b'{"err', {"length": LONGER, "status": 500}),
    ],
)
def test_answers_that_are_none(
    call: Call, message: str, body: bytes, fields: dict[str, Any]
) -> None:
    with answering(body, **fields) as client, pytest.raises(ClientError, match=message):
        call(client)


@pytest.mark.parametrize(
    ("rest", "reset", "message"),
    [
        (b"", None, "its answer broke off"),
        (b'data: {"index": 1, "gener', None, "its answer broke off"),
        (b"data: nonsense\n\n", None, "the answer is not JSON"),
        (b'data: {"error": "It failed."}\n\n', None, "It failed"),
        (b"", threading.Event(), "its answer broke off .*reset by peer"),
    ],
)
def test_streams_that_do_not_end_well(
    rest: bytes, reset: threading.Event | None, message: str
) -> None:
    first = b'data: {"index": 0, "generated_text": null}\n\n'
    with answering(first + rest, reset=reset) as client:
        events = client.stream("w1")
        assert next(events)["index"] == 0
        if reset is not None:
            reset.set()
        with pytest.raises(ClientError, match=message):
            next(events)


def test_a_busy_server_is_asked_again() -> None:
    with running(max_waiting=1, max_rows=1) as there, ThreadPoolExecutor(3) as pool:
        url, worker = f"http://127.0.0.1:{there.port}", there.service.worker
        patient, hasty = Client(url), Client(url, patience=0)
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


Translate = Callable[..., tuple[int, str]]


@pytest.fixture
def translate(tmp_path: Path) -> Translate:
    """specdec translate on a text: its exit status, and what the output, old before, holds then."""

    def run(text: bytes, *flags: str) -> tuple[int, str]:
        source, target = tmp_path / "in", tmp_path / "out"
        source.write_bytes(text)
        target.write_text("old\n")
        status = main(["--output", str(target), *flags, "--input", str(source)])
        return status, target.read_bytes().decode()

    return run


@pytest.mark.parametrize("num_requests", ["1", "7"])
def test_files_through_a_server(translate: Translate, client: Client, num_requests: str) -> None:
    text = "\n".join(LINES).encode()
    status, translations = translate(text, "--server", client.url, "--requests", num_requests)
    assert (status, translations.split("\n")) == (1, [*WANTED, ""])  # w0 never ends


def test_an_old_output_makes_way_for_a_new_one_alone(translate: Translate, client: Client) -> None:
    assert translate(b"w1\n\xff\n", "--server", client.url) == (2, "old\n")
    assert translate(b"", "--server", client.url) == (0, "")


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.usefixtures("verifier")
def test_a_program_gets_each_line_before_it_writes_the_next(
    here: bool, client: Client, tmp_path: Path
) -> None:
    """Through a pipe, as of `--input <(command)`, which can be read but once."""
    target = tmp_path / "out"
    read_end, write_end = os.pipe()

    def write_and_wait() -> None:
        with open(write_end, "wb", buffering=0) as pipe:
            for number in (1, 2):
                pipe.write(f"w{number}\n".encode())
                wait_until(lambda number=number: target_lines() == number)  # type: ignore[misc]

    def target_lines() -> int:
        return target.read_bytes().count(b"\n") if target.exists() else 0

    with open(read_end, "rb"), ThreadPoolExecutor() as pool:
        written = pool.submit(write_and_wait)
        flags = ["--progress"] if here else ["--progress", "--server", client.url]
        assert main([*flags, "--input", f"/dev/fd/{read_end}", "--output", str(target)]) == 0
        written.result()
    assert target.read_text(encoding="utf-8") == f"{expected('w1')}\n{expected('w2')}\n"


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> GatedVerifier:
    """Of the model that specdec translate loads, whatever it is told."""
    model = toy_model(samples=False)

    def load(settings: Settings, with_scores: bool) -> SpeculativeTranslator:
        model.codec.reads_raw = True  # and says one thing again and again
        settings = replace(settings, protect=False)
        parts = model.codec, model.decoder, model.limits
        return SpeculativeTranslator(settings, *parts, with_scores=with_scores)

    monkeypatch.setattr(app, "load_translator", load)
    assert isinstance(model.decoder.verifier, GatedVerifier)
    return model.decoder.verifier


@pytest.mark.usefixtures("verifier")
def test_the_same_without_a_server(translate: Translate) -> None:
    assert translate("\n".join(LINES).encode()) == (1, "\n".join([*WANTED, ""]))
    assert translate(b"w4 w1. w2", "--no-split") == (0, expected("w4 w1. w2") + "\n")


@pytest.mark.usefixtures("verifier")
def test_a_line_that_is_not_split_is_whole_and_ends_as_it_did(
    translate: Translate, client: Client
) -> None:
    line = "w4\x0bw1.\x0cw2\x85w3\u2028w5\rw6"
    for where in ([], ["--server", client.url]):
        found = translate(f" {line}\t\r\n \t\r\nw2\n".encode(), "--no-split", *where)
        assert found == (0, f" {expected(line)}\t\r\n \t\r\n{expected('w2')}\n")


@pytest.mark.usefixtures("verifier")
def test_a_line_in_json_is_that_of_the_server(
    translate: Translate, client: Client, tmp_path: Path
) -> None:
    records = tmp_path / "json"
    found = {}
    for where in ([], ["--server", client.url]):
        assert translate(b"w1. w2\n\n", *where, "--json-path", str(records))[0] == 0
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        for line in lines:
            del line["milliseconds"], line["tokens"]
        found[bool(where)] = lines
    assert found[True] == found[False]
    assert found[True][0]["rounds"] > 1
    assert found[True][0]["score"] < sum(found[True][0]["token_scores"])  # of the end, too


def test_an_unfinished_output_is_continued_by_the_same_server_alone(
    translate: Translate, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--server", client.url, "--requests", "1"]
    assert translate(b"w1\nw2\nw4\nw1\n\xff\n", *where)[0] == 2
    files = ["--output", str(tmp_path / "out"), "--input", str(tmp_path / "in"), "--resume"]
    (tmp_path / "in").write_bytes(b"w1\nw2\nw4\n")
    assert main([*files, *where, "--beta", "2"]) == 2
    assert "was started with no beta, not beta 2" in capsys.readouterr().err
    assert main([*files, *where]) == 0
    wanted = [expected(word) for word in ("w1", "w2", "w4")]
    assert (tmp_path / "out").read_text().splitlines() == wanted


@pytest.mark.parametrize(
    ("name", "what", "flags"),
    [("stdin", "input", []), ("stdout", "output", ["--input", "/dev/null"])],
)
def test_a_closed_stream_is_said_before_a_model_is_loaded(
    name: str,
    what: str,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(app, "load_translator", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr(sys, name, None)
    assert f"standard {what} is closed" in told(capsys, main, flags)


def test_lines_that_cannot_be_decoded_are_empty_and_told(
    translate: Translate, verifier: GatedVerifier, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier.overflow = 3
    translations = f"{expected('w1')}\n\n\n{expected('w4')}\n"
    assert translate(b"w1\nw2. w3\n\nw4\n") == (1, translations)
    assert "in, line 2: is left empty, as the model's scores" in capsys.readouterr().err


def test_a_line_that_the_server_refuses_is_named(
    translate: Translate, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = translate(b"w1\n" + b"w1 " * 9000, "--server", client.url)
    assert status == 2
    assert "in, line 2: 27000 characters exceed the limit of 20000" in capsys.readouterr().err


@pytest.mark.parametrize("here", [True, False])
def test_lines_that_are_cut_or_copied_are_named(
    here: bool,
    translate: Translate,
    verifier: GatedVerifier,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def picky(self: ToyCodec, line: str) -> list[int]:
        if "x" in line:
            raise UnreadableError("no letter is known.")
        return [int(line.strip("w.")), SPECIAL.eos]

    monkeypatch.setattr(ToyCodec, "source_ids", picky)
    with running() as there:
        where = [] if here else ["--server", f"http://127.0.0.1:{there.port}"]
        text = f"{expected('w1')}\n{expected('w2')}. xx\n{expected('w0')}\n"
        assert translate(b"w1\nw2. xx\nw0\n", *where) == (1, text.replace(". xx", " xx"))
        told = capsys.readouterr().err
        source = tmp_path / "in"
        assert (
            f"{source}, line 2: no letter is known. It is copied, in whole or in part, as" in told
        )
        assert "specdec translate: line 2: copied, in whole or in part, as" in told
        assert "specdec translate: line 3: cut at the length limit, so the end is missing." in told
        assert translate(b"w1\nxx\n", "--on-unreadable", "fail", *where)[0] == 2
        assert f"{source}, line 2: no letter is known.\n" in capsys.readouterr().err


def test_a_glossary_that_contradicts_itself_is_refused_as_here(
    translate: Translate, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("w1\tw2\nw1\tw3\n")
    flags = ["--server", client.url, "--glossary", str(terms)]
    assert translate(b"w1\n", *flags) == (2, "old\n")
    assert f"line 2: 'w1' is 'w2' in {terms}, line 1; remove one of them." in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "http://127.0.0.1:9"], "cannot be reached"),
        (["/nowhere", "--server", "http://x"], "omit the folder"),
        (["--server", "http://x", "--dtype", "int8"], "omit --dtype"),
        (["--server", "http://x", "--prefix-file", "x"], "--prefix-file cannot be sent to a"),
        (["--server", "http://x", "--processes", "2"], "exclude each other"),
        (["--requests", "16"], "--requests go to a server; add --server"),
        (["/nowhere"], "not a folder"),
        (["/nowhere", "--processes", "-1"], "--processes"),
        (["--memory", "x.tmx"], "--units and --memory are for a document; name it as FILE"),
        (["--tau", "1"], "--tau 1 has no effect with --beta 1; add --beta 3"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, translate: Translate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translate(b"w1\n", *arguments) == (2, "old\n")
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("specdec translate: ")
    assert "Traceback" not in told
