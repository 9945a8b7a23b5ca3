"""specdec-translate: files and pipes, with a model of its own or through a server."""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from specdec_plugins.errors import Parser, UserError, require
from specdec_plugins.serving.cli import KEY_VARIABLE
from specdec_plugins.serving.client import Client
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.local import TranslateAll, local_translator
from specdec_plugins.serving.model import request_defaults
from specdec_plugins.serving.planning import Options
from specdec_plugins.serving.settings import ModelOptions, ServerSettings

_BUFFER = 64  # lines that are decoded together
_UNBOUNDED = 2**31  # limits of a server protect it from strangers, not a user from themselves

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
        prog="specdec-translate",
        description="Translate lines of text. A line may hold several sentences; white space "
        "and empty lines are kept.",
        allow_abbrev=False,
    )
    add_options(parser, ModelOptions)
    add_options(parser, ServerSettings, only=("beta", "tau", "max_new_tokens", "max_rows"))
    add_options(parser, TranslateOptions)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of a command line."""
    given = vars(make_parser().parse_args(argv))
    told = "interrupted; what was written is complete lines."
    return run_command(
        "specdec-translate", lambda: _run(given), "debug" in given, told, (UserError, ServiceError)
    )


def _run(given: dict[str, Any]) -> None:
    options = build(TranslateOptions, given)
    source, target = options.input_path, options.output_path
    check_places([source], [target])
    with ExitStack() as stack:
        stream = stack.enter_context(open_input(source))
        translate = stack.enter_context(_translator(given, options))
        texts = (line.text for line in read_lines(stream, name_of(source)))
        writer = stack.enter_context(LineWriter(target))
        bar = stack.enter_context(progress_bar(source, options.progress))
        for lines in translate(in_buffers(texts, buffer_size(source, _BUFFER))):
            writer.write(lines)
            bar.update(len(lines))
        writer.write([])  # an input without lines makes an output without any


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
    names = ("beta", "tau", "max_new_tokens")
    parameters = {name: given[name] for name in names if name in given}
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
