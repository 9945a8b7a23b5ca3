"""Translating without a server: the same plan and the same engine, in one process or several."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.types import RowResult
from specdec_plugins.serving.model import ServedModel, load_model
from specdec_plugins.serving.planning import Options, TextPlan, make_plan
from specdec_plugins.serving.settings import ModelOptions, ServerSettings


class TranslateAll(Protocol):
    """Translations of lists of lines, in order, as they become ready."""

    def __call__(self, buffers: Iterator[list[str]]) -> Iterator[list[str]]: ...


class LocalTranslator:
    """A loaded model that translates texts as the server does."""

    def __init__(self, model: ServedModel, settings: ServerSettings, options: Options) -> None:
        self._model = model
        self._settings = settings
        self._options = options
        self._decoder = SpeculativeDecoder(model.verifier, model.method, model.engine)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Raises UserError where a sentence is too long for the model."""
        plan = make_plan(texts, self._options, self._model, self._settings)
        codec = self._model.codec
        return plan.join([codec.text(codec.tokens(r.token_ids)) for r in self.decode(plan)])

    def decode(self, plan: TextPlan) -> list[RowResult]:
        """The sentences of a plan."""
        return self._decoder.decode(plan.requests)

    @property
    def num_tokens(self) -> int:
        """Target tokens decoded so far, ends of sentences included."""
        return self._decoder.stats.emitted


@contextmanager
def local_translator(
    model: ModelOptions, settings: ServerSettings, options: Options, num_processes: int
) -> Iterator[TranslateAll]:
    """Loads the model, in every process where there are several; each then has one thread."""
    if num_processes == 1:
        translator = LocalTranslator(load_model(model), settings, options)
        yield lambda buffers: map(translator.translate, buffers)
        return
    # A bad path should be told once, before processes are started for it.
    load_model(model)
    # Not fork: torch's threads do not survive it.
    context = multiprocessing.get_context("spawn")
    with context.Pool(num_processes, _start, (model, settings, options)) as pool:
        yield lambda buffers: _ahead(pool, buffers, 2 * num_processes)


_translator: LocalTranslator | None = None  # of a process of the pool


def _start(model: ModelOptions, settings: ServerSettings, options: Options) -> None:
    global _translator
    torch.set_num_threads(1)
    _translator = LocalTranslator(load_model(model), settings, options)


def _translate(texts: list[str]) -> list[str]:
    assert _translator is not None
    return _translator.translate(texts)


def _ahead(
    pool: multiprocessing.pool.Pool, buffers: Iterator[list[str]], num_ahead: int
) -> Iterator[list[str]]:
    """Results in order; input is read only so far ahead as keeps every process busy."""
    pending: list[multiprocessing.pool.AsyncResult[list[str]]] = []
    for buffer in buffers:
        pending.append(pool.apply_async(_translate, (buffer,)))
        if len(pending) >= num_ahead:
            yield pending.pop(0).get()
    for result in pending:
        yield result.get()
