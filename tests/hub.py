"""A server that speaks the hub's protocol for reading models, as far as huggingface_hub asks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

COMMIT = "ab" * 20


@dataclass
class Hub:
    """What is served, and how it fails."""

    models: dict[str, Path] = field(default_factory=dict)  # folders, by ORG/NAME
    tokens: dict[str, str] = field(default_factory=dict)  # of models that need one
    status: int = 0  # of every answer, if not 0
    page: str = ""  # HTML in place of every answer
    breaks: int = 0  # as often a connection ends in the middle of what is left of the weights
    asked: list[str] = field(default_factory=list)  # METHOD PATH BYTES, in order
    url: str = ""

    @contextmanager
    def served(self) -> Iterator[Hub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Answer, self))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def files(self) -> list[str]:
        """The names of the files that were asked for."""
        asked = (line.split() for line in self.asked)
        paths = [path for method, path, _ in asked if method == "GET"]
        return [path.rpartition("/")[2] for path in paths if "/resolve/" in path]


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *given: object) -> None:
        self.hub = hub
        super().__init__(*given)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '-')}")
        if hub.status or hub.page:
            return self._send(hub.page.encode(), hub.status or 200, "text/html")
        repository = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        folder = hub.models.get(repository)
        if folder is None:
            return self._refuse(404, "RepoNotFound")
        wanted = hub.tokens.get(repository)
        if wanted and self.headers.get("Authorization") != f"Bearer {wanted}":
            return self._refuse(401, "RepoNotFound")
        if "/revision/" in path and path.rpartition("/")[2] not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if path.startswith("/api/models"):
            return self._describe(repository, folder, listed="/tree/" in path)
        return self._file(folder / path.rpartition("/")[2])

    def _describe(self, repository: str, folder: Path, listed: bool) -> None:
        files = [
            {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": _digest(p)[:40]}
            for p in sorted(folder.iterdir())
        ]
        siblings = [{"rfilename": file["path"]} for file in files]
        whole = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False}
        self._send(json.dumps(files if listed else whole).encode())

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        content, start = path.read_bytes(), 0
        if given := self.headers.get("Range"):
            start = int(given.removeprefix("bytes=").partition("-")[0])
        more = {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(path)}"', "Accept-Ranges": "bytes"}
        if start:
            more["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        room, is_weights = len(content) - start, path.suffix == ".safetensors"
        if is_weights and self.command == "GET" and self.hub.breaks > 0:
            self.hub.breaks -= 1
            room //= 2
        kind = "application/octet-stream"
        self._send(content[start:], 206 if start else 200, kind, more, room)

    def _refuse(self, status: int, why: str) -> None:
        self._send(b"", status, more={"X-Error-Code": why})

    def _send(
        self,
        content: bytes,
        status: int = 200,
        kind: str = "application/json",
        more: dict[str, str] | None = None,
        room: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**(more or {}), "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:room])
            self.close_connection = room is not None and room < len(content)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
