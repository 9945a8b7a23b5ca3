"""One file an engine: everything that can translate with the verifier's weights.

Adding one is a file with a function `load(job: Job, threads: int) -> Engine`, named in ENGINES.
What stands here is all that the harness knows of an engine.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.pair import Pair, Sentence
from benchmarks.systems import System
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.formats.ctranslate2 import export_ctranslate2
from specdec_plugins.formats.marian import export_marian
from specdec_plugins.formats.models import read_model_of

ENGINES = ("ctranslate2", "fairseq", "ours", "published", "transformers")
# Forms of the verifier's weights that the peers read.
CTRANSLATE2, MARIAN, ASSISTANT = "ctranslate2", "marian", "marian-assistant"


@dataclass(frozen=True)
class Lengths:
    """Limits that every engine keeps: those of fairseq's search."""

    min_len: int = 1  # target tokens before the end of the sentence may come
    max_len: int = 200  # target tokens at most, the end of the sentence included

    @property
    def fixed(self) -> bool:
        """True if every output has the same length, as random weights need it."""
        return self.min_len >= self.max_len - 1


@dataclass(frozen=True)
class Job:
    """What one engine is to do, whatever the threads and the batch."""

    system: System
    pair: Pair
    lengths: Lengths
    device: str  # "cpu" or "cuda"
    work: str  # folder for converted weights
    max_batch: int  # sentences that will be decoded together at most
    sentences: Sequence[Sentence]  # all that will be asked for


@dataclass(frozen=True)
class Output:
    """What one call of `translate` gave."""

    tokens: list[list[str]]  # a list for each sentence, in their order; no end of sentence
    stats: DecodeStats | None = None  # rounds, and seconds by part; None where there are no rounds


class Engine(Protocol):
    """Something loaded that translates."""

    def translate(self, batch: Sequence[Sentence]) -> Output:
        """The best translation of each sentence, decoded together; this is what is timed."""
        ...

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        """Seconds by part of one `translate`, not timed otherwise; empty where nobody can say."""
        ...


@dataclass(frozen=True)
class Peer:
    """An engine of others, which tells nothing of its rounds and the parts of its time."""

    decode: Callable[[Sequence[Sentence]], list[list[str]]]

    def translate(self, batch: Sequence[Sentence]) -> Output:
        return Output(self.decode(batch))

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        return {}


def load(job: Job, threads: int) -> Engine:
    """The engine that the system names; only then are its packages imported."""
    assert job.system.engine in ENGINES
    module = importlib.import_module(f"benchmarks.engines.{job.system.engine}")
    engine: Engine = module.load(job, threads)
    return engine


def converted(form: str, job: Job) -> Path:
    """Where `convert` has put the model."""
    return Path(job.work) / form


def convert(pair: Pair, forms: Iterable[str], work: Path) -> None:
    """Write each form anew, as `work/<form>`; the peers' own precisions are made when they load."""
    dictionaries = pair.dictionaries()
    for form in forms:
        folder = work / form
        shutil.rmtree(folder, ignore_errors=True)
        path = pair.assistant if form == ASSISTANT else pair.verifier
        assert path is not None
        export = export_ctranslate2 if form == CTRANSLATE2 else export_marian
        model = read_model_of(Transformer, path, dictionaries.source, dictionaries.target)
        export(model, dictionaries, folder)
