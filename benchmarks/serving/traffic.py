"""Clients of a load test: many at once, some of them ill-behaved, all of them counted."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

GOOD, HANG_UP, KILLED, OVERSIZE, BAD_JSON = "good", "hang-up", "killed", "oversize", "bad JSON"
_WRONG = {HANG_UP: 0.03, KILLED: 0.02, OVERSIZE: 0.03, BAD_JSON: 0.03}  # shares of a mixed load
_MAX_TRIES = 50


@dataclass
class Tally:
    """What came of a run's requests."""

    answers: list[tuple[int, str]] = field(default_factory=list)  # index of the text, translation
    latencies: list[float] = field(default_factory=list)  # seconds, of good requests
    codes: Counter[int] = field(default_factory=Counter)  # of every answer
    kinds: Counter[str] = field(default_factory=Counter)  # of every request
    faults: list[str] = field(default_factory=list)  # what should not have happened
    retries: int = 0  # after 429
    seconds: float = 0.0


class Traffic:
    """Requests to one server on loopback."""

    def __init__(self, port: int, texts: Sequence[str], max_body: int, seed: int = 0) -> None:
        self._port = port
        self._texts = texts
        self._max_body = max_body
        self._random = random.Random(seed)

    async def run(self, num_requests: int, concurrency: int, mixed: bool) -> Tally:
        """`mixed`: a share of the clients hangs up, sends nonsense, or is killed."""
        tally = Tally()
        work = iter([self._kind(mixed) for _ in range(num_requests)])
        indices = iter(range(num_requests))

        async def client() -> None:
            for kind in work:
                await self._send(kind, next(indices) % len(self._texts), tally)

        begin = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        tally.seconds = time.perf_counter() - begin
        return tally

    def _kind(self, mixed: bool) -> str:
        drawn = self._random.random()
        for kind, share in _WRONG.items() if mixed else ():
            if drawn < share:
                return kind
            drawn -= share
        return GOOD

    async def _send(self, kind: str, index: int, tally: Tally) -> None:
        tally.kinds[kind] += 1
        if kind == GOOD:
            await self._good(index, tally)
        elif kind in (HANG_UP, KILLED):
            await self._leave(kind, index)
        else:
            await self._wrong(kind, tally)

    async def _good(self, index: int, tally: Tally) -> None:
        body = json.dumps({"inputs": self._texts[index]}).encode()
        begin = time.perf_counter()
        for _ in range(_MAX_TRIES):
            code, headers, answer = await self._exchange(body)
            tally.codes[code] += 1
            if code != 429:
                break
            tally.retries += 1
            await asyncio.sleep(float(headers["retry-after"]))
        if code != 200:
            tally.faults.append(f"text {index}: {code} {answer[:200]!r}")
            return
        tally.latencies.append(time.perf_counter() - begin)
        tally.answers.append((index, json.loads(answer)["generated_text"]))

    async def _wrong(self, kind: str, tally: Tally) -> None:
        body, wanted = b'{"inputs": "half', 400
        if kind == OVERSIZE:
            body, wanted = b'{"inputs": "' + b"x" * self._max_body + b'"}', 413
        code, _, answer = await self._exchange(body)
        tally.codes[code] += 1
        if code != wanted or "error" not in json.loads(answer):
            tally.faults.append(f"{kind}: {code} {answer[:200]!r}")

    async def _leave(self, kind: str, index: int) -> None:
        """Hang up after a moment; a killed client's connection is reset instead of closed."""
        body = json.dumps({"inputs": self._texts[index]}).encode()
        _, writer = await self._open(body, "/generate_stream" if index % 2 else "/generate")
        await asyncio.sleep(self._random.random() * 0.05)
        if kind == KILLED:
            writer.transport.abort()
        else:
            writer.close()

    async def _open(
        self, body: bytes, path: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return reader, writer

    async def _exchange(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await self._open(body, "/generate")
        try:
            # A refused body may still be on its way when the answer is here.
            answer = await reader.read()
        finally:
            writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return int(status.split()[1]), headers, content
