"""docs/serving.md does as it says: every curl command, every route, every error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdec_plugins.serving import errors
from tests.decoding.toys import SPECIAL
from tests.serving.toys import Running, ToyCodec, running, toy_model

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LINES = "\n".join(BLOCKS).replace("\\\n", " ").splitlines()
CURLS = [line for line in LINES if line.startswith("curl ")]


class AnyWords(ToyCodec):
    """Words of English are laws by their length."""

    def source_ids(self, line: str) -> list[int]:
        return [len(word) % 12 for word in line.split()] + [SPECIAL.eos]


def ask(server: Running, command: str) -> httpx.Response:
    """What curl would do."""
    words: Sequence[str] = shlex.split(command)[1:]
    arguments: dict[str, Any] = {}
    url, left = "", iter(words)
    for word in left:
        if word == "-H":
            name, _, value = next(left).partition(": ")
            arguments["headers"] = {name: value}
        elif word == "-d":
            arguments["content"] = next(left)
        elif word != "-N":
            url = word
    path = url.removeprefix("http://127.0.0.1:8080")
    assert path.startswith("/"), command
    return server.client.request("POST" if "content" in arguments else "GET", path, **arguments)


def test_every_curl_command_works() -> None:
    assert len(CURLS) >= 4
    with running(toy_model(codec=AnyWords())) as server:
        for command in CURLS:
            answer = ask(server, command)
            assert answer.status_code == 200, command
            assert answer.headers["x-request-id"]
            assert '"error"' not in answer.text


def test_every_route_is_documented() -> None:
    with running() as server:
        for path in server.client.get("/openapi.json").json()["paths"]:
            assert f"`POST {path}`" in TEXT or f"`GET {path}" in TEXT or f"`{path}`" in TEXT, path


@pytest.mark.parametrize("fault", errors.ServiceError.__subclasses__(), ids=lambda f: f.__name__)
def test_every_error_is_documented(fault: type[errors.ServiceError]) -> None:
    if fault is errors.Gone:  # is never sent
        assert "logged as 499" in TEXT
    else:
        assert f"| {fault.status} | `{fault.kind}` |" in TEXT
