"""The load on a server: it finds no fault in a good one, and what is wrong in a bad one."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from tests.programs import Done, run
from tests.serving.toys import running

pytestmark = pytest.mark.integration

LOCUST = (sys.executable, "-m", "locust", "-f", "benchmarks/load.py", "-u", 6, "-t", "2s")


def load(port: int, folder: Path, expect: int, *flags: str) -> Done:
    (folder / "texts").write_text("w4 w1. w5 w2.\nw7\n\nw2. w3. w6.\n", encoding="utf-8")
    where = ["-H", f"http://127.0.0.1:{port}", "--texts", folder / "texts"]
    return run(*LOCUST, *where, *flags, expect=expect)


def test_a_good_server(tmp_path: Path) -> None:
    with running() as there:
        said = load(there.port, tmp_path, 0)
    for route in ("/generate ", "/generate_stream", "/translate"):
        assert f"POST     {route}" in said.stderr
    assert " tokens a round" in said.stderr


class Bad(BaseHTTPRequestHandler):
    """Never says the same twice, and has counted nothing."""

    numbers = count()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(json.dumps({"generated_text": str(next(self.numbers))}))

    def do_GET(self) -> None:
        names = ("tokens_total", "rounds_total", "queue_size", "batch_rows")
        pages = {"/languages": '[{"targets": ["de"]}]'}
        self._say(pages.get(self.path, "".join(f"specdec_{name} 0\n" for name in names)))

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_bad_server(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bad) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = load(server.server_port, tmp_path, 1, "--tags", "steady")
        server.shutdown()
    assert "wrong: w7" in said.stderr
    assert "the server counts 0 good answers, the clients " in said.stderr
