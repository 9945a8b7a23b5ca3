"""A load on specdec-serve, by locust: latency by route, tokens a second, and correct answers.

    specdec-serve FOLDER --threads 1 --port 8080 &
    locust -f benchmarks/load.py -H http://127.0.0.1:8080 --texts FILE -u 8 -t 14s --tags steady

sends the lines of FILE to /generate from 8 clients for 14 seconds; without --tags, also to the
other routes, with bodies that are too large or no JSON, and with clients that hang up. An answer is
wrong if it is not what the server says to that text alone and without drafts. When the load is
over, the server must be empty and must have counted the clients' answers. Exit status 1 if not.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from locust import FastHttpUser, events, tag, task
from prometheus_client.parser import text_string_to_metric_families

LARGE = json.dumps({"inputs": "x" * 10**6})
RIGHT: dict[str, str] = {}  # by text
TARGETS: list[str] = []  # languages that the server translates into
COUNTS: Counter[str] = Counter()  # good answers, and clients that left
BEFORE: dict[str, float] = {}
log = logging.getLogger("load")


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    parser.add_argument("--texts", required=True, type=Path, help="one text a line, 100 are used")
    parser.set_defaults(headless=True, spawn_rate=100, stop_timeout=60)


@events.init.add_listener
def _ask_for_the_right_answers(environment: Any, **_: Any) -> None:
    host = environment.parsed_options.host
    lines = environment.parsed_options.texts.read_text(encoding="utf-8").splitlines()
    before, began = _metrics(host), time.perf_counter()
    for text in [line for line in lines if line.strip()][:100]:
        body = {"inputs": text, "parameters": {"use_drafter": False}}
        header = {"Content-Type": "application/json"}
        asked = Request(f"{host}/generate", json.dumps(body).encode(), header)
        with urlopen(asked, timeout=300) as answer:
            RIGHT[text] = json.load(answer)["generated_text"]
    with urlopen(f"{host}/languages", timeout=60) as answer:
        TARGETS.extend(json.load(answer)[0]["targets"])
    BEFORE.update(_metrics(host), began=time.perf_counter())
    tokens = BEFORE["specdec_tokens_total"] - before["specdec_tokens_total"]
    log.info("alone and without drafts: %.0f tokens/s", tokens / (BEFORE["began"] - began))


@events.test_stop.add_listener
def _compare_with_the_servers_counts(environment: Any, **_: Any) -> None:
    host, seconds = environment.parsed_options.host, time.perf_counter() - BEFORE["began"]
    for _attempt in range(300):
        now = _metrics(host)
        if not now["specdec_queue_size"] + now["specdec_batch_rows"]:
            break
        time.sleep(0.2)
    else:
        environment.process_exit_code = 1
        log.error("the server still holds sentences that no client waits for")
    more = {name: value - BEFORE.get(name, 0.0) for name, value in now.items()}
    tokens, rounds = more["specdec_tokens_total"], more["specdec_rounds_total"]
    log.info("%.0f tokens/s, %.2f tokens a round", tokens / seconds, tokens / max(1, rounds))
    counted, good, left = more.get("200", 0), COUNTS["good"], COUNTS["left"]
    if not good <= counted <= good + left:
        environment.process_exit_code = 1
        log.error("the server counts %d good answers, the clients %d (+%d)", counted, good, left)


def _metrics(host: str) -> dict[str, float]:
    """Sums over all labels; "200": good answers to texts."""
    with urlopen(f"{host}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    sums: defaultdict[str, float] = defaultdict(float)
    for sample in (sample for family in families for sample in family.samples):
        sums[sample.name] += sample.value
        if sample.name == "specdec_requests_total" and sample.labels["route"] != "/metrics":
            sums[sample.labels["code"]] += sample.value
    return sums


class Reader(FastHttpUser):
    """A client that sends the next request when it has the answer to the last."""

    @tag("steady")
    @task(50)
    def generate(self) -> None:
        self._ask("/generate", inputs=random.choice([*RIGHT]))

    @task(25)
    def stream(self) -> None:
        self._ask("/generate_stream", inputs=random.choice([*RIGHT]))

    @task(20)
    def translate(self) -> None:
        self._ask("/translate", q=random.choice([*RIGHT]), source="auto", target=TARGETS[0])

    @task(3)
    def too_large(self) -> None:
        self._refused(LARGE, 413)

    @task(3)
    def no_json(self) -> None:
        self._refused('{"inputs": "half', 400)

    @task(3)
    def hang_up(self) -> None:
        COUNTS["left"] += 1
        body = json.dumps({"inputs": random.choice([*RIGHT])}).encode()
        head = f"POST /generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        place = urlsplit(self.host)
        with socket.create_connection((str(place.hostname), place.port or 80)) as client:
            client.sendall(head.encode() + body)
            time.sleep(random.random() / 10)

    def _ask(self, route: str, **body: str) -> None:
        text = body.get("inputs") or body["q"]
        with self.client.post(route, json=body, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                return
            COUNTS["good"] += 1
            last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data:"))
            if RIGHT[text] not in (last.get("generated_text"), last.get("translatedText")):
                answer.failure(f"wrong: {text}")

    def _refused(self, body: str, status: int) -> None:
        with self.client.post("/generate", data=body, catch_response=True) as answer:
            if answer.status_code == status:
                answer.success()
            else:
                answer.failure(f"status {answer.status_code}, not {status}")
