"""The load test's clients and accounts, on a toy: they must find what they are there to find."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.serving import load
from benchmarks.serving.load import Load, measure, report, send
from benchmarks.serving.reference import Reference, balance
from benchmarks.serving.server import Server
from benchmarks.serving.traffic import KILLED, PATHS, SHARES, Tally
from tests.serving.toys import Running, running, toy_model

TEXTS = ["w4 w1. w5 w2.", "w7", "w1 w1", "w2. w3. w6.", "w8 w9 w10", "w11 w1", "w5"]
MIXED = Load("toy", concurrency=12, mixed=250)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(toy_model(), TEXTS)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[tuple[Running, Server]]:
    log, logger = tmp_path / "log", logging.getLogger("specdec.serving")
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with running(max_waiting=10) as there:
            yield there, Server(there.port, log)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def test_a_mixed_load_loses_nothing(
    toy: tuple[Running, Server],
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(SHARES, KILLED, 0.02)
    result = measure(toy[1], reference, MIXED)
    assert result["faults"] == []
    assert result["near_ties"] == []
    assert result["kinds"].keys() == {*PATHS, *SHARES}
    assert result["codes"][400] == result["kinds"]["bad JSON"]
    assert result["codes"][413] == result["kinds"]["oversize"]
    assert result["codes"].get(429, 0) >= result["retries"]  # whoever leaves may be told it, too
    report(str(tmp_path / "report"), reference, [result], ["FOLDER"])
    page = (tmp_path / "report.md").read_text()
    assert "## 250 mixed requests, 12 clients, speculation toy" in page
    assert "No fault: " in page
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["results"][0]["load"]["mixed"] == 250


def test_a_timed_load_is_counted_to_the_token(
    toy: tuple[Running, Server], reference: Reference
) -> None:
    result = measure(toy[1], reference, Load("toy", concurrency=3, seconds=0.5))
    assert result["faults"] == []
    assert result["kinds"] == {"generate": result["num_requests"]}
    [tokens] = [figure for figure in result["figures"] if figure.startswith("tokens")]
    assert " to " not in tokens
    assert result["p50"] <= result["p95"] <= result["p99"]


def test_servers_take_turns(
    toy: tuple[Running, Server], reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "serving", lambda flags, threads: nullcontext(toy[1]))
    monkeypatch.setattr(load, "WARM_UP", Load("warm", concurrency=1, seconds=0.1))
    flags = ["--seconds", "0.1", "--repeats", "2", "--concurrency", "1,2", "--modes", "on,off"]
    results = load.run(load.COMMAND.parse("--texts", "none", *flags), reference)
    loads = [(result["load"]["mode"], result["load"]["concurrency"]) for result in results]
    assert loads == [("on", 1), ("on", 2)] * 2 + [("off", 1), ("off", 2)] * 2
    assert [result["faults"] for result in results] == [[]] * 8
    assert len({Load(**result["load"]).name for result in results}) == 8
    lines = load.timed_table(results, plain=1.0).splitlines()
    assert len(lines) == 2 + 4  # a mode and a number of clients a line


def test_what_is_wrong_is_found(toy: tuple[Running, Server], reference: Reference) -> None:
    server = toy[1]
    before = server.wait_until_idle()
    tally: Tally = send(server, reference, Load("toy", concurrency=3, seconds=0.2))
    after = server.wait_until_idle()
    logged = server.logged("toy-3")

    def problems(**more: float) -> list[str]:
        names = after.keys() | more.keys()
        zero = dict.fromkeys(names, 0.0)
        change = {n: {**zero, **after}[n] - before.get(n, 0.0) + more.get(n, 0.0) for n in names}
        return balance(reference, tally, change, logged)[1]

    assert problems() == []
    assert len(problems(specdec_tokens_total=1)) == 1
    assert len(problems(specdec_sentences_total=-1)) >= 1
    assert len(problems(specdec_rounds_total=10_000)) == 1
    assert len(problems(**{"specdec_requests_total:200": 1})) == 1
    assert len(problems(**{"specdec_request_failures_total:cancelled": 1})) == 1
    lost, codes = logged.popitem()
    assert any(lost in fault for fault in problems())
    logged[lost] = codes * 2
    assert any("[200, 200]" in fault for fault in problems())
    tally.answers[0].text += "!"
    tally.answers.pop()
    ties, wrong = reference.compare(tally)
    assert ties == []
    assert len(wrong) == 2
