"""specdec-translate: files and pipes, with a model of its own or through a server."""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.pool
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from specdec_plugins.app.files import (
    FileOptions,
    LineWriter,
    buffer_size,
    check_places,
    in_buffers,
    name_of,
    open_input,
    progress_bar,
    read_lines,
)
from specdec_plugins.app.main import run_command
from specdec_plugins.app.options import add_options, build, check, like, option
from specdec_plugins.app.settings import EXACT
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.types import FinishReason, RowResult
from specdec_plugins.errors import Parser, UserError, require
from specdec_plugins.serving.cli import KEY_VARIABLE
from specdec_plugins.serving.client import Client
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.model import ServedModel, load_model, request_defaults
from specdec_plugins.serving.planning import Options, TextPlan, make_plan
from specdec_plugins.serving.settings import ModelOptions, ServerSettings

_NAME = "specdec-translate"
_BUFFER = 64  # lines that are decoded together
_UNBOUNDED = 2**31  # limits of a server protect it from strangers, not a user from themselves

_ASKED = (*EXACT, "max_new_tokens")  # settings that a server takes with a request

_text = partial(like, FileOptions, group="texts")
_how = partial(option, group="how")


@dataclass(frozen=True)
class TranslateOptions:
    """Where lines come from and go to, and who translates them."""

    input_path: str = _text("input_path", flags=("--input",))
    output_path: str = _text("output_path", flags=("--output",))
    whole_lines: bool = option(False, "do not split lines into sentences", group="texts")
    processes: int = _how(
        1,
        "each with a model of its own and one thread (default: 1); 0 = as many as there are cores",
        least=0,
    )
    server: str | None = _how(None, "translate there, and load no model here", "URL")
    requests: int = _how(16, "at once, with --server", least=1)
    progress: bool | None = like(FileOptions, "progress", group="how")
    debug: bool = like(FileOptions, "debug", group="how")

    def __post_init__(self) -> None:
        check(self)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_NAME,
        description="Translate lines of text. A line may hold several sentences; white space "
        "and empty lines are kept.",
        allow_abbrev=False,
    )
    add_options(parser, ModelOptions)
    add_options(parser, ServerSettings, only=(*_ASKED, "max_rows"))
    add_options(parser, TranslateOptions)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of a command line."""
    given = vars(make_parser().parse_args(argv))
    told = "interrupted; what was written is complete lines."
    num_failed = 0

    def work() -> None:
        nonlocal num_failed
        num_failed = _run(given)

    status = run_command(_NAME, work, "debug" in given, told, (UserError, ServiceError))
    if num_failed:
        sys.stderr.write(
            f"{_NAME}: {num_failed} lines could not be decoded, because the model's scores were "
            "not numbers; their translations are empty lines. Try --dtype float32.\n"
        )
    return status or int(num_failed > 0)


def _run(given: dict[str, Any]) -> int:
    """Translate; how many lines could not be decoded."""
    options = build(TranslateOptions, given)
    source, target = options.input_path, options.output_path
    check_places([source], [target])
    with ExitStack() as stack:
        stream = stack.enter_context(open_input(source))
        translate = stack.enter_context(_translator(given, options))
        texts = (line.text for line in read_lines(stream, name_of(source)))
        writer = stack.enter_context(LineWriter(target))
        bar = stack.enter_context(progress_bar(source, options.progress))
        num_failed = 0
        for lines in translate(in_buffers(texts, buffer_size(source, _BUFFER))):
            writer.write([line or "" for line in lines])
            bar.update(len(lines))
            num_failed += lines.count(None)
        writer.write([])  # an input without lines makes an output without any
    return num_failed


@contextmanager
def _translator(given: dict[str, Any], how: TranslateOptions) -> Iterator[TranslateAll]:
    if how.server is not None:
        require("data" not in given, "--server has a model already; omit the folder.")
        with _through_server(how.server, given, how) as translate:
            yield translate
        return
    bounds = {"max_characters": _UNBOUNDED, "max_waiting": _UNBOUNDED}
    model = build(ModelOptions, given)
    settings = build(ServerSettings, {**request_defaults(model), **given, **bounds})
    options = Options(split_sentences=not how.whole_lines)
    num_processes = how.processes or os.cpu_count() or 1
    with local_translator(model, settings, options, num_processes) as local:
        yield local


@contextmanager
def _through_server(
    url: str, given: dict[str, Any], how: TranslateOptions
) -> Iterator[TranslateAll]:
    client = Client(url, os.environ.get(KEY_VARIABLE))
    client.info()
    parameters = {name: given[name] for name in _ASKED if name in given}
    parameters["split_sentences"] = not how.whole_lines

    def one(line: str) -> str:
        return str(client.generate(line, **parameters)["generated_text"])

    def translate(buffers: Iterator[list[str]]) -> Iterator[list[str]]:
        pending: deque[Future[str]] = deque()
        for buffer in buffers:
            for line in buffer:
                pending.append(pool.submit(one, line))
                if len(pending) >= 2 * how.requests:
                    yield [pending.popleft().result()]
            # A short buffer is the last one, or a line that somebody has just typed.
            while pending and len(buffer) < _BUFFER:
                yield [pending.popleft().result()]
        while pending:
            yield [pending.popleft().result()]

    with ThreadPoolExecutor(how.requests) as pool:
        try:
            yield translate
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class TranslateAll(Protocol):
    """Translations of lists of lines, in order, as they become ready; None = it failed."""

    def __call__(self, buffers: Iterator[list[str]]) -> Iterator[Sequence[str | None]]: ...


class LocalTranslator:
    """A loaded model that translates texts as the server does."""

    def __init__(self, model: ServedModel, settings: ServerSettings, options: Options) -> None:
        self._model = model
        self._settings = settings
        self._options = options
        self._decoder = SpeculativeDecoder(model.verifier, model.method, model.engine)

    def translate(self, texts: Sequence[str]) -> list[str | None]:
        """None where the model's scores of a sentence are not numbers.

        Raises UserError where a sentence is too long for the model.
        """
        plan = make_plan(texts, self._options, self._model, self._settings)
        codec, results = self._model.codec, self.decode(plan)
        joined = plan.join([codec.text(codec.tokens(r.token_ids)) for r in results])
        left = iter(results)
        reasons = [{next(left).finish_reason for _ in text.sentences} for text in plan.texts]
        failed = [FinishReason.ERROR in of_text for of_text in reasons]
        return [None if bad else text for bad, text in zip(failed, joined, strict=True)]

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


_own: LocalTranslator | None = None  # of a process of the pool


def _start(model: ModelOptions, settings: ServerSettings, options: Options) -> None:
    global _own
    torch.set_num_threads(1)
    _own = LocalTranslator(load_model(model), settings, options)


def _translate(texts: list[str]) -> list[str | None]:
    assert _own is not None
    return _own.translate(texts)


def _ahead(
    pool: multiprocessing.pool.Pool, buffers: Iterator[list[str]], num_ahead: int
) -> Iterator[list[str | None]]:
    """Results in order; input is read only so far ahead as keeps every process busy."""
    pending: list[multiprocessing.pool.AsyncResult[list[str | None]]] = []
    for buffer in buffers:
        pending.append(pool.apply_async(_translate, (buffer,)))
        if len(pending) >= num_ahead:
            yield pending.pop(0).get()
    for result in pending:
        yield result.get()
