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
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_START = 300.0  # seconds to start, or to stop
_LINE = re.compile(r"request_id=(\S+) method=POST path='/\w+' status=(\d+)")
# Metrics that are also summed by one of their labels.
_LABELS = {"specdec_requests_total": "code", "specdec_request_failures_total": "kind"}


class Server:
    """specdec-serve on loopback."""

    def __init__(self, port: int, log: Path) -> None:
        """log: the file that its log goes to."""
        self.port = port
        self._log = log

    def metrics(self) -> dict[str, float]:
        """Sums over all labels, by name; of POST requests also `specdec_requests_total:200`."""
        address = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(address, timeout=60) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        sums: defaultdict[str, float] = defaultdict(float)
        for sample in (sample for family in families for sample in family.samples):
            sums[sample.name] += sample.value
            label = _LABELS.get(sample.name)
            if label and sample.labels.get("route") != "/metrics":
                sums[f"{sample.name}:{sample.labels[label]}"] += sample.value
        return dict(sums)

    def wait_until_idle(self, seconds: float = 300.0) -> dict[str, float]:
        """The metrics once nothing decodes or waits. Raises RuntimeError if a row stays behind."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            now = self.metrics()
            busy = now["specdec_queue_size"] + now["specdec_batch_rows"]
            # The request for the metrics is itself active.
            if busy == 0 and now["specdec_requests_active"] == 1:
                return now
            time.sleep(0.2)
        raise RuntimeError("the server still holds sentences that no client waits for")

    def logged(self, run: str) -> dict[str, list[int]]:
        """The log's status codes by request id, for ids that begin with the name of a run."""
        codes: dict[str, list[int]] = {}
        for request_id, code in _LINE.findall(self._log.read_text()):
            if request_id.startswith(f"{run}."):
                codes.setdefault(request_id, []).append(int(code))
        return codes

    def errors(self) -> list[str]:
        """Errors and tracebacks in the log."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if " ERROR " in line or line.startswith("Traceback")]


@contextmanager
def serving(flags: Sequence[str], threads: int) -> Iterator[Server]:
    """A running server. Raises RuntimeError if it does not start or does not stop cleanly."""
    command = [sys.executable, "-m", "specdec_plugins.serving.cli", *flags, "--port", "0"]
    command += ["--threads", str(threads), "--log-level", "info"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stderr=file, env=environment)
        try:
            yield Server(_port(process, log), log)
            process.send_signal(signal.SIGTERM)
            if process.wait(_START) != 0:
                raise RuntimeError(f"the server ended with status {process.returncode}")
        finally:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
