"""The files and the documentation around the server agree with it and with each other."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from specdec_plugins.errors import BAD_INPUT
from specdec_plugins.formats.text import PROTECTED
from specdec_plugins.serving import errors
from specdec_plugins.serving.cli import COMMAND
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.settings import ProcessOptions, ServerSettings
from tests.decoding.toys import SPECIAL
from tests.serving.toys import Running, ToyCodec, running, toy_model

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PANELS = json.loads((DEPLOY / "grafana" / "specdec.json").read_text())["panels"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
GUIDE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
LINES = "\n".join(BLOCKS).replace("\\\n", " ").splitlines()
CURLS = [line for line in LINES if line.startswith("curl ")]
PATIENCE = ServerSettings().drain_timeout + ServerSettings().shutdown_timeout
PORT = ProcessOptions().port


SUFFIXES = {"counter": "_total", "histogram": "_bucket", "gauge": ""}
# Names as they stand in queries; _sum and _count of histograms besides.
EXPORTED = {family.name + SUFFIXES[family.type] for family in Metrics().registry.collect()}
FAMILIES = {name.removesuffix("_bucket") for name in EXPORTED}


def instruction(name: str) -> list[str]:
    """The words of a Dockerfile's instruction in JSON's form, the last one that counts."""
    words: list[str] = json.loads(re.findall(rf"^{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])
    return words


def by_default(value: str) -> str:
    """Compose's ${NAME:-default} where NAME is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    asked = set(re.findall(r"specdec_\w+", " ".join(queries)))
    assert asked <= EXPORTED | {name + end for name in FAMILIES for end in ("_sum", "_count")}
    assert EXPORTED - asked <= {"specdec_batch_size_bucket"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_metrics_that_are_named_exist() -> None:
    named = set(re.findall(r"`(specdec_\w+)", GUIDE))
    assert "specdec_skipped_tokens_total" in named
    assert named <= FAMILIES


def test_images_and_units_start_the_server_with_flags_that_it_has() -> None:
    entry = instruction("ENTRYPOINT")
    assert entry[:2] == ["specdec", "serve"]
    parse = COMMAND.parse
    given = vars(parse(*entry[2:], *instruction("CMD")))
    assert given["port"] == PORT
    assert f"EXPOSE {PORT}\n" in DOCKERFILE
    parse(*entry[2:], *shlex.split(by_default(COMPOSE["services"]["specdec"]["command"])))
    example = re.search(r'SPECDEC_FLAGS="(.*?)"', (ROOT / "compose.yaml").read_text())
    assert example
    assert vars(parse(*entry[2:], *shlex.split(example[1])))["data"] == "/models"
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    unit.read(DEPLOY / "specdec.service")
    parse(*shlex.split(unit["Service"]["ExecStart"])[2:])
    assert float(unit["Service"]["TimeoutStopSec"]) > PATIENCE
    assert unit["Service"]["RestartPreventExitStatus"] == str(BAD_INPUT)


def test_the_health_check_asks_the_port_that_was_given_last(tmp_path: Path) -> None:
    python, _, program = instruction(" ")
    assert python == "python"
    assert "/proc/1/cmdline" in program
    place = tmp_path / "cmdline"
    program = program.replace("/proc/1/cmdline", str(place))
    words = ["docker-init", "--", *instruction("ENTRYPOINT")]
    with running() as server:
        for given in (["--port", str(server.port)], [f"--port={server.port}"]):
            place.write_text("\0".join([*words, *given, ""]))
            assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
        server.service.is_stopping = True
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1


class AnyWords(ToyCodec):
    """Words of English are distributions by their length."""

    def source_ids(self, line: str) -> list[int]:
        return [len(word) % 12 for word in line.split()] + [SPECIAL.eos]

    def symbols(self, text: str) -> str:
        return PROTECTED


def ask(server: Running, command: str) -> httpx.Response:
    """What curl would do."""
    _, *words = shlex.split(command)
    [url] = [word for word in words if word.startswith("http://")]
    given = dict(zip(words, words[1:], strict=False))
    headers = dict([given["-H"].split(": ")]) if "-H" in given else {}
    path = url.removeprefix("http://127.0.0.1:8080")
    if "-F" in given:
        fields = dict(re.findall(r"(\w+)=(\S+)", command.partition(path)[2]))
        file = fields.pop("file").removeprefix("@")
        text = (ROOT / "tests" / "documents" / "samples" / file).read_bytes()
        return server.client.post(path, data=fields, files={"file": (file, text)})
    method = "POST" if "-d" in given else "GET"
    return server.client.request(method, path, headers=headers, content=given.get("-d"))


def test_every_route_is_documented_and_every_curl_command_works() -> None:
    assert len(CURLS) >= 4
    with running(toy_model(codec=AnyWords())) as server:
        for path in server.client.get("/openapi.json").json()["paths"]:
            named = f"`POST {path}`", f"`GET {path}", f"`{path}`"
            assert any(name in GUIDE for name in named), path
        for command in CURLS:
            answer = ask(server, command)
            assert answer.status_code == 200, command
            assert answer.headers["x-request-id"]
            assert '"error"' not in answer.text


@pytest.mark.parametrize(("status", "kind"), errors.KINDS.items())
def test_every_error_is_documented(status: int, kind: str) -> None:
    assert f"| {status} | `{kind}` |" in GUIDE or f"logged as {status}" in GUIDE


def test_containers_wait_for_accepted_work_and_can_be_stopped_while_they_load() -> None:
    server = COMPOSE["services"]["specdec"]
    assert float(server["stop_grace_period"].removesuffix("s")) > PATIENCE
    # Process 1 ignores a signal for which it has no handler yet.
    assert server["init"] is True
    commands = re.findall(r"^docker run .*", GUIDE, re.MULTILINE)
    assert commands
    for command in commands:
        assert "--init" in command
        assert float(re.findall(r"--stop-timeout (\d+)", command)[0]) > PATIENCE
