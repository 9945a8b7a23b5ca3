"""Clients of a load test: many at once, some of them ill-behaved, all of them counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

from specdec_plugins.serving.settings import ServerSettings

GENERATE, STREAM, TRANSLATE = "generate", "stream", "translate"
HANG_UP, RESET, KILLED = "hang-up", "reset", "killed process"
OVERSIZE, BAD_JSON = "oversize", "bad JSON"
# Shares of a mixed load; the rest are requests to /generate.
SHARES = {
    STREAM: 0.25,
    TRANSLATE: 0.20,
    HANG_UP: 0.03,
    RESET: 0.02,
    KILLED: 0.002,
    OVERSIZE: 0.03,
    BAD_JSON: 0.03,
}
PATHS = {GENERATE: "/generate", STREAM: "/generate_stream", TRANSLATE: "/translate"}
_BAD = (b'{"inputs": "half', b'{"inputs": "caf\xe9"}', b"[1, 2]")
_MAX_TRIES = 200
_KILLED_CONNECTIONS = 8
# A client that requests streams, reads the first bytes, and then does nothing until it is killed.
_DOOMED = """
import socket, sys, time
port, request = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(int(sys.argv[3]))]
for number, client in enumerate(clients):
    client.sendall(request.replace(b"NUMBER", b"%d" % number))
clients[0].recv(1)
print("ready", flush=True)
time.sleep(600)
"""


@dataclass
class Answer:
    """A translation, and the server's details about its speculation, if any."""

    index: int  # of the text
    text: str
    speculation: Sequence[dict[str, Any]] = ()  # of each sentence


@dataclass
class Tally:
    """The results of a run's requests."""

    answers: list[Answer] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # seconds, of good requests
    codes: dict[str, int] = field(default_factory=dict)  # of every answer, by request id
    left: list[int] = field(default_factory=list)  # texts of requests whose clients left
    kinds: Counter[str] = field(default_factory=Counter)  # of every request
    faults: list[str] = field(default_factory=list)  # anything unexpected
    retries: int = 0  # after 429
    seconds: float = 0.0

    @property
    def num_good(self) -> int:
        return sum(self.kinds[kind] for kind in PATHS)


class Traffic:
    """One run of requests to a server on loopback, from as many clients as wanted."""

    def __init__(self, port: int, name: str, texts: Sequence[str], target_lang: str) -> None:
        """name: prefix of all request ids; no two runs of one server may share it."""
        self.tally = Tally()
        self._port = port
        self._name = name
        self._texts = texts
        self._target_lang = target_lang
        self._random = random.Random(name)

    async def run_for(self, seconds: float, concurrency: int) -> Tally:
        """As many requests to /generate as there is time for."""
        end = time.perf_counter() + seconds
        endless = itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count())
        return await self._run(((GENERATE, number) for number in endless), concurrency, {})

    async def run_mixed(self, num_requests: int, concurrency: int) -> Tally:
        """All routes; a share of the clients hangs up, sends nonsense, or is killed."""
        kinds, shares = [*SHARES, GENERATE], [*SHARES.values(), 1 - sum(SHARES.values())]
        drawn = self._random.choices(kinds, shares, k=num_requests)
        work = ((kind, number) for number, kind in enumerate(drawn))
        return await self._run(work, concurrency, {"details": True})

    async def _run(
        self, work: Iterator[tuple[str, int]], concurrency: int, parameters: dict[str, Any]
    ) -> Tally:
        """work: kinds and numbers of requests. parameters: of those that are answered."""

        async def client() -> None:
            for kind, number in work:
                self.tally.kinds[kind] += 1
                index, request_id = number % len(self._texts), f"{self._name}.{number}"
                if kind in PATHS:
                    await self._good(kind, index, request_id, parameters)
                elif kind == KILLED:
                    await self._killed(index, request_id)
                elif kind in (HANG_UP, RESET):
                    await self._leave(kind, index, request_id)
                else:
                    await self._wrong(kind, number, request_id)

        begin = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        self.tally.seconds = time.perf_counter() - begin
        return self.tally

    async def _good(
        self, kind: str, index: int, request_id: str, parameters: dict[str, Any]
    ) -> None:
        body = self._body(kind, index, parameters)
        begin, code, content = time.perf_counter(), 0, b""
        for attempt in range(_MAX_TRIES):
            this_id = f"{request_id}.{attempt}"
            code, headers, content = await self._exchange(PATHS[kind], body, this_id)
            if code != 429:
                break
            self.tally.retries += 1
            await asyncio.sleep(float(headers["retry-after"]))
        try:
            answer = read_answer(kind, index, content) if code == 200 else None
        except (ValueError, KeyError):
            answer = None
        if answer is None:
            self.tally.faults.append(f"text {index}, {kind}: {code} {content[:200]!r}")
            return
        self.tally.latencies.append(time.perf_counter() - begin)
        self.tally.answers.append(answer)

    def _body(self, kind: str, index: int, parameters: Mapping[str, Any] | None = None) -> bytes:
        text = self._texts[index]
        if kind == TRANSLATE:
            body: dict[str, Any] = {"q": text, "source": "auto", "target": self._target_lang}
        else:
            body = {"inputs": text, "parameters": parameters or {}}
        return json.dumps(body).encode()

    async def _wrong(self, kind: str, number: int, request_id: str) -> None:
        body, wanted = _BAD[number % len(_BAD)], 400
        if kind == OVERSIZE:
            body, wanted = b'{"inputs": "' + b"x" * ServerSettings().max_body + b'"}', 413
        path = list(PATHS.values())[number % len(PATHS)]
        code, _, content = await self._exchange(path, body, request_id)
        if code != wanted or "error" not in json.loads(content):
            self.tally.faults.append(f"{kind}: {code} {content[:200]!r}")

    async def _leave(self, kind: str, index: int, request_id: str) -> None:
        """Leave after a moment, by closing or by resetting the connection."""
        self.tally.left.append(index)
        route = STREAM if index % 2 else GENERATE
        _, writer = await self._open(PATHS[route], self._body(route, index), request_id)
        await asyncio.sleep(self._random.random() * 0.1)
        if kind == RESET:
            writer.transport.abort()
        else:
            writer.close()

    async def _killed(self, index: int, request_id: str) -> None:
        """A client in a process of its own, which is killed while it reads several streams."""
        self.tally.left += [index] * _KILLED_CONNECTIONS
        request = _request(PATHS[STREAM], self._body(STREAM, index), f"{request_id}.NUMBER")
        arguments = [str(self._port), request.hex(), str(_KILLED_CONNECTIONS)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _DOOMED, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        process.kill()
        await process.wait()

    async def _open(
        self, path: str, body: bytes, request_id: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(_request(path, body, request_id))
        return reader, writer

    async def _exchange(
        self, path: str, body: bytes, request_id: str
    ) -> tuple[int, Message, bytes]:
        """Status, headers and content of the answer."""
        reader, writer = await self._open(path, body, request_id)
        try:
            # A refused body may still be in transit when the answer arrives.
            answer = await reader.read()
        finally:
            writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        status, _, fields = head.partition(b"\r\n")
        headers = message_from_bytes(fields)
        code = int(status.split()[1]) if status else 0
        self.tally.codes[request_id] = code
        if headers["x-request-id"] != request_id:
            self.tally.faults.append(f"{request_id}: the answer's id is {headers['x-request-id']}")
        return code, headers, content


def _request(path: str, body: bytes, request_id: str) -> bytes:
    # HTTP/1.0: the answer is not chunked and ends with the connection.
    head = (
        f"POST {path} HTTP/1.0\r\nHost: localhost\r\nX-Request-ID: {request_id}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_answer(kind: str, index: int, content: bytes) -> Answer:
    """Parse an answer. Raises ValueError or KeyError if it is none."""
    if kind == TRANSLATE:
        return Answer(index, json.loads(content)["translatedText"])
    if kind == GENERATE:
        return _told(index, json.loads(content))
    events = [json.loads(part.removeprefix(b"data:")) for part in content.split(b"\n\n") if part]
    if [event["index"] for event in events] != list(range(len(events))):
        raise ValueError("events of the stream are missing")
    return _told(index, events[-1])


def _told(index: int, record: dict[str, Any]) -> Answer:
    details = record["details"] or {"speculation": ()}
    return Answer(index, record["generated_text"], details["speculation"])
