"""Engines, one file each: everything that can translate with the verifier's weights.

To add one, write a file with a function `load(system, workload, threads) -> Engine` and name it in
ENGINES. This module is all that the harness knows of an engine.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.marian import to_ctranslate2
from benchmarks.pair import Pair, Sentence
from benchmarks.systems import ASSISTED, System
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.formats.exports import export_ctranslate2, export_marian
from specdec_plugins.formats.models import read_model_of

ENGINES = ("ctranslate2", "fairseq", "ours", "published", "transformers")
# Exporters of weights for a peer: the verifier's for an engine, the assistant's for a role.
_EXPORTS: dict[str, Callable[..., Path]] = {
    "ctranslate2": export_ctranslate2,
    "transformers": export_marian,
    ASSISTED: export_marian,
}


@dataclass(frozen=True)
class Lengths:
    """Length limits of every engine: those of fairseq's search."""

    min_len: int = 1  # target tokens before the end of the sentence is allowed
    max_len: int = 200  # target tokens at most, the end of the sentence included


@dataclass(frozen=True)
class Workload:
    """What all systems of a run decode, and with what."""

    pair: Pair
    sentences: Sequence[Sentence]
    lengths: Lengths = Lengths()
    device: str = "cpu"  # or "cuda"
    max_batch: int = 1  # sentences that will be decoded together at most
    work: str = ""  # folder for converted weights

    def converted(self, name: str) -> Path:
        """Where a peer, or its assistant, finds its model: as given, or where `convert` put it."""
        own = self.pair.model if name == "transformers" else None
        return Path(own or Path(self.work) / name)


@dataclass(frozen=True)
class Output:
    """The result of one call of `translate`."""

    tokens: list[list[str]]  # a list for each sentence, in their order; no end of sentence
    stats: DecodeStats | None = None  # rounds, and seconds by part; None where there are no rounds
    seconds: float = 0.0  # of the call; filled in by the caller that timed it


class Engine:
    """A loaded engine; those of other projects report no rounds and parts."""

    def __init__(self, decode: Callable[[Sequence[Sentence]], list[list[str]]]) -> None:
        self._decode = decode

    def translate(self, batch: Sequence[Sentence]) -> Output:
        """The best translation of each sentence, decoded together; this is what is timed."""
        return Output(self._decode(batch))

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        """Seconds by part of one `translate`, not timed otherwise; empty if the engine has none."""
        return {}


def load(system: System, workload: Workload, threads: int) -> Engine:
    """Load the engine that the system names; its packages are imported only now."""
    assert system.engine in ENGINES
    module = importlib.import_module(f"benchmarks.engines.{system.engine}")
    engine: Engine = module.load(system, workload, threads)
    return engine


def convert(workload: Workload, names: Collection[str]) -> None:
    """Rewrite the models that these engines and roles read; precision is applied at load."""
    pair = workload.pair
    if pair.model is not None:
        if "ctranslate2" in names:
            to_ctranslate2(pair.model, workload.converted("ctranslate2"))
        return
    dictionaries = pair.dictionaries()
    for name in _EXPORTS.keys() & names:
        shutil.rmtree(workload.converted(name), ignore_errors=True)
        path = pair.assistant if name == ASSISTED else pair.verifier
        assert path is not None
        model = read_model_of(Transformer, path, dictionaries.source, dictionaries.target)
        _EXPORTS[name](model, dictionaries, workload.converted(name))
