"""Starts a server on the device, sends it every kind of request, and stops it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu.place import BUNDLED, Check, Place
from benchmarks.reports import ROOT
from specdec_plugins.serving.client import Client

_NEEDS = (
    *("fastapi", "uvicorn", "pydantic", "prometheus_client", "sentence_splitter"),
    *("sacremoses", "subword_nmt"),
)
PAGES = ("/", "/languages", "/health", "/info", "/metrics")


class Served:
    """A server in a process of its own, started by the first check and stopped by the last."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._client = Client(f"http://127.0.0.1:{self._port}", timeout=60, patience=5)
        self._line = place.lines[0]

    def start(self) -> str:
        module = ["specdec_plugins.serving.cli"]
        if self._place.rehearses:
            module.insert(0, "benchmarks.gpu.accelerator")
        dtype = "float32" if self._place.rehearses else "float16"
        command = [sys.executable, "-m", *module, BUNDLED, "--device", self._place.device]
        command += ["--dtype", dtype, "--port", self._port]
        with (self._place.folder / "logs/serving.log").open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                list(map(str, command)), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + 60
        while True:
            assert self._process.poll() is None, "the server ended (logs/serving.log)"
            try:
                return self._get("/health")
            except OSError:
                assert time.monotonic() < end, "no answer in 60 s (logs/serving.log)"
                time.sleep(0.2)

    def _get(self, page: str) -> str:
        with urllib.request.urlopen(f"{self._client.url}{page}", timeout=30) as response:
            return f"{page}: {len(response.read())} bytes"

    def pages(self) -> str:
        return ", ".join(map(self._get, PAGES))

    def generate(self, **parameters: Any) -> str:
        text = self._client.generate(self._line, **parameters)["generated_text"]
        assert text.strip(), "the text is empty"
        return str(text)

    def stream(self) -> str:
        *events, last = self._client.stream(self._line)
        text, whole = last["generated_text"], self.generate()
        assert text == whole, f"streamed {text!r}, generated {whole!r}"
        return f"{len(events) + 1} events"

    def translate(self) -> str:
        lines = self._place.lines[: self._place.size(10, 2)]
        texts = self._client.translate(lines)
        assert len(texts) == len(lines), f"{len(texts)} texts for {len(lines)} lines"
        assert all(text.strip() for text in texts), f"an empty text: {texts}"
        return f"{len(texts)} texts"

    def root(self) -> str:
        body = json.dumps({"inputs": self._line}).encode()
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._client.url}/", body, header)
        with urllib.request.urlopen(request, timeout=60) as response:
            return f"{len(response.read())} bytes"

    def stop(self) -> str:
        assert self._process is not None, "the server was not started"
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(30)
        assert status == 0, f"exit status {status} (logs/serving.log)"
        return "exit status 0"


def serving(place: Place) -> list[Check]:
    server = Served(place)
    text = "a text"
    checks: list[tuple[str, str, Callable[[], str]]] = [
        ("start", "an answer within 60 s", server.start),
        ("pages", "status 200", server.pages),
        ("POST /generate", text, server.generate),
        ("POST /generate, relaxed", text, partial(server.generate, beta=3, tau=1.0)),
        ("POST /generate, sampling", text, partial(server.generate, do_sample=True, seed=3)),
        ("POST /generate, no drafter", text, partial(server.generate, use_drafter=False)),
        ("POST /generate_stream", "events, and the text of /generate", server.stream),
        ("POST /translate", "a text for each line", server.translate),
        ("POST /", "an answer", server.root),
        ("stop", "exit status 0", server.stop),
    ]
    return [Check(*check, _NEEDS) for check in checks]
