"""A toy model to serve: every source word names a table, and the gate decides when it decodes.

Imported by the other tests of this folder.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families

from specdec_plugins.app.settings import Settings
from specdec_plugins.app.types import Limits
from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.contract import Draft, Prefix, Scores
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.decoding.rules.top_beta import TopBeta
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.formats.pretrained.tokenizer import Languages
from specdec_plugins.serving.app import Server, create_app
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.service import Service
from specdec_plugins.serving.settings import ServerSettings
from tests.decoding.toys import (
    SCRIPTS,
    SPECIAL,
    ScriptedDrafter,
    TableVerifier,
    oracle,
    random_table,
)

ROOT = Path(__file__).resolve().parents[2]
TABLE = random_table()
MAX_LEN = 40
PATIENCE = 20.0  # seconds until a test that waits for something gives up
START = 400.0  # until a process listens, on a machine that is busy


class ToyCodec:
    """Source words w0, w1, ... are ids; target words t0, t1, ... likewise."""

    joining: ClassVar[frozenset[int]] = frozenset()
    num_framing, num_behind, first_ids, reads_texts, reads_raw, unk = 1, 1, (), False, False, -1
    source_lang: str | None = "en"
    target_lang: str | None = "de"
    languages = Languages("toy", ("en",), ("de",))

    def between(self, source_lang: str | None, target_lang: str | None) -> ToyCodec:
        self.languages.choose(source_lang, target_lang)
        return self

    def source_ids(self, line: str) -> list[int]:
        return [int(word.strip("w.?!")) for word in line.split()] + [SPECIAL.eos]

    @staticmethod
    def splitter(line: str) -> list[str]:
        """Sentences end in a full stop."""
        return [piece for piece in re.split(r"(?<=\. )", line) if piece]

    def unknown(self, text: str) -> list[tuple[int, int]]:
        return []

    def separates(self, line: str, begin: int, end: int) -> bool:
        return False  # no sentence can be divided

    def target_ids(self, line: str) -> list[int]:
        """Words that are no target word are unknown."""
        words = (word.strip(".") for word in line.split())
        return [int(w[1:]) if re.fullmatch("t[0-8]", w) else SPECIAL.unk for w in words]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        stop = ids.index(SPECIAL.eos) if SPECIAL.eos in ids else len(ids)
        return [f"t{i}" for i in ids[:stop]]

    def symbol(self, token_id: int) -> str:
        return f"t{token_id}"

    def text(self, tokens: Sequence[str], source: str = "") -> str:
        return " ".join(tokens)


class Polyglot(ToyCodec):
    """Notes in which languages it is asked for."""

    languages = Languages("toy", ("eng_Latn", "fra_Latn", "deu_Latn"), ("deu_Latn", "ita_Latn"))
    source_lang = target_lang = None

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str | None]] = []

    def between(self, source_lang: str | None, target_lang: str | None) -> ToyCodec:
        self.asked.append(self.languages.choose(source_lang, target_lang))
        return super().between(source_lang, target_lang)

    def source_ids(self, line: str) -> list[int]:
        return super().source_ids("w4")


class GatedVerifier(TableVerifier):
    """Decodes while the gate is open; breaks on rows of one distribution, or overflows on them."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.origin = self  # what its copies in sessions obey
        self.gate = threading.Event()
        self.gate.set()
        self.poison: int | None = None
        self.overflow: int | None = None
        self._num_left: int | None = None

    def fresh(self, *_: Any) -> GatedVerifier:
        self.lent = super().fresh()
        return self.lent

    def allow(self, num_rounds: int | None) -> None:
        """So many more rounds, then the gate closes; None = open for good."""
        self._num_left = num_rounds
        self.gate.set()

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        if self.origin._num_left is not None:
            if self.origin._num_left == 0:
                self.gate.clear()
            self.origin._num_left -= 1
        assert self.gate.wait(PATIENCE)
        poison, overflow = self.origin.poison, self.origin.overflow
        if poison is not None and bool((self.keys[prefix.active] == poison).any()):
            raise RuntimeError("poisoned")
        scores = super().score(prefix, draft)
        if overflow is not None:
            scores.logits[self.keys == overflow] = torch.nan
        return scores


def toy_model(
    script: str | None = "partly",
    samples: bool = True,
    verifier: GatedVerifier | None = None,
    codec: ToyCodec | None = None,
) -> ServedModel:
    """script: how the drafter errs; None = no drafter."""
    rule: Any = MixedRule() if samples else TopBeta()
    drafter = ScriptedDrafter(TABLE, SCRIPTS[script]) if script else None
    method = Method(drafter, rule, SCHEDULES.build("constant"))
    strategy = "specdec" if script else "AR"
    return ServedModel(
        Settings("toy", verifier="toy", drafter_checkpoint="toy", strategy=strategy),
        codec=codec or ToyCodec(),
        decoder=SpeculativeDecoder(verifier or GatedVerifier(), method, EngineConfig(max_rows=4)),
        searcher=BeamDecoder(TableVerifier(TABLE), EngineConfig(max_rows=2)),
        limits=Limits(source=20, target=MAX_LEN, block_size=5 if script else 0),
    )


def expected_ids(sentence: str, max_len: int = MAX_LEN) -> list[int]:
    """Greedy decoding by definition."""
    ids = ToyCodec().source_ids(sentence)
    return oracle(TABLE, Request("oracle", ids, DecodeParams(max_len=max_len)))


def expected_scores(sentence: str) -> list[float]:
    """The log-probabilities of these tokens."""
    [key, *_], ids = ToyCodec().source_ids(sentence), expected_ids(sentence)
    rows = (TABLE[key, at, last] for at, last in enumerate([SPECIAL.start, *ids[:-1]], 1))
    return [float(row.log_softmax(-1)[i]) for row, i in zip(rows, ids, strict=True)]


def expected(sentence: str, max_len: int = MAX_LEN) -> str:
    codec = ToyCodec()
    return codec.text(codec.tokens(expected_ids(sentence, max_len)))


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Raises AssertionError where it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@dataclass
class Running:
    """A server on loopback."""

    client: httpx.Client
    service: Service
    port: int

    @property
    def verifier(self) -> GatedVerifier:
        verifier = self.service.model.decoder.verifier
        assert isinstance(verifier, GatedVerifier)
        return verifier

    @property
    def gate(self) -> threading.Event:
        return self.verifier.gate

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0

    def is_idle(self) -> bool:
        worker = self.service.worker
        return worker.num_rows == 0 and worker.num_waiting == 0


@contextmanager
def running(model: ServedModel | None = None, **settings: Any) -> Iterator[Running]:
    """Serve a toy over real sockets; afterwards nothing may be left in the batch."""
    options = {"max_new_tokens": MAX_LEN, "max_rows": 4, **settings}
    limits = ServerSettings(**options)
    app = create_app(model or toy_model(), limits)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = Server(app, limits, lifespan="on")
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            there = Running(client, app.state.service, port)
            try:
                yield there
            finally:
                there.gate.set()
                server.should_exit = True
                thread.join(PATIENCE)
        assert not thread.is_alive()
        assert there.is_idle()


class ServerProcess:
    """specdec-serve in a process of its own, and what it says."""

    def __init__(self, *flags: str, under: Sequence[str] = ()) -> None:
        """Returns when it listens. under: a module that runs it, with its arguments."""
        command = [sys.executable, "-m", *under, "specdec_plugins.serving.cli", *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        self._lines: list[str] = []
        listening = iter(self.process.stderr.readline, "")
        threading.Thread(target=self._lines.extend, args=[listening], daemon=True).start()
        try:
            wait_until(lambda: "running on" in self.log or self.process.poll() is not None, START)
            assert "running on" in self.log, self.log
        except AssertionError:
            self.process.kill()
            raise
        [self.url] = re.findall(r"running on (http://[\d.:]+)", self.log)

    @property
    def log(self) -> str:
        return "".join(list(self._lines))

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        found = [s for s in samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(sample.value for sample in found)
