"""A server in a process of its own, for as long as a measurement takes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

_START = 120.0  # seconds


@contextmanager
def serving(flags: Sequence[str], threads: int) -> Iterator[int]:
    """Its port on loopback. Raises RuntimeError where it does not start or does not stop well."""
    command = [sys.executable, "-m", "specdec_plugins.serving", *flags, "--port", "0"]
    command += ["--threads", str(threads), "--log-level", "info"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stderr=log, env=environment)
        try:
            yield _port(server, log)
            server.send_signal(signal.SIGTERM)
            if server.wait(_START) != 0:
                raise RuntimeError(f"the server ended with status {server.returncode}")
        finally:
            server.kill()
            server.wait()


def _port(server: subprocess.Popen[bytes], log) -> int:  # type: ignore[no-untyped-def]
    end = time.monotonic() + _START
    while time.monotonic() < end and server.poll() is None:
        log.seek(0)
        if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", log.read()):
            return int(found[1])
        time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"the server did not start:\n{log.read()}")


def metrics(port: int) -> dict[str, float]:
    """Sums over all labels, by name; requests also by code as `specdec_requests_total:200`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
    sums: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        names = [sample.name]
        if sample.name == "specdec_requests_total" and sample.labels["route"].startswith("/gen"):
            names.append(f"{sample.name}:{sample.labels['code']}")
        for name in names:
            sums[name] = sums.get(name, 0.0) + sample.value
    return sums


def wait_until_idle(port: int, seconds: float = 60.0) -> dict[str, float]:
    """The metrics once nothing decodes or waits. Raises RuntimeError where a row stays behind."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = metrics(port)
        # The request that asks is under way itself.
        busy = now["specdec_queue_size"] + now["specdec_batch_rows"]
        if busy == 0 and now["specdec_requests_active"] == 1:
            return now
        time.sleep(0.2)
    raise RuntimeError("sentences are left in the server although nobody waits for them")
