"""An engine that has died: what its callers are told, and how the process ends."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from specdec_plugins.serving.cli import serve
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.settings import ServerSettings
from tests.serving.toys import PATIENCE, running, toy_model, wait_until


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's thread dies in its first round."""

    def stepped(*_: object) -> None:
        raise AssertionError("bug")

    monkeypatch.setattr(Metrics, "stepped", stepped)


@pytest.mark.usefixtures("broken")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_died_is_no_server_that_stops() -> None:
    with running() as server:
        for _ in range(2):
            answer = server.client.post("/generate", json={"inputs": "w1"})
            assert (answer.status_code, answer.json()["error_type"]) == (500, "internal")
            assert "shutting down" not in answer.json()["error"]
        server.service.worker.close(0.0)  # as a supervisor's signal would
        health = server.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "failing"})


@pytest.fixture
def signals() -> Iterator[None]:
    """Handlers as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.usefixtures("broken", "signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_whose_engine_died_ends_with_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A server that lives on is stopped as by its supervisor, and ends with 0.
    end = threading.Timer(PATIENCE, signal.raise_signal, (signal.SIGTERM,))

    def ask() -> int:
        end.start()
        wait_until(lambda: listens(port))
        url = f"http://127.0.0.1:{port}/generate"
        return httpx.post(url, json={"inputs": "w1"}, timeout=PATIENCE).status_code

    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(ask)
        assert serve(toy_model(), ServerSettings(), "127.0.0.1", port) == 1
        end.cancel()
        assert code.result() == 500
