"""specdec-translate: files and pipes, with a model of its own or through a server."""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm import tqdm

from specdec_plugins.app.files import (
    STANDARD,
    LineWriter,
    in_buffers,
    open_input,
    read_lines,
    refuse_same_file,
    total_lines,
)
from specdec_plugins.app.options import add_options, build
from specdec_plugins.errors import Parser, UserError, refuse, require
from specdec_plugins.formats.output import check_output
from specdec_plugins.serving.cli import KEY_VARIABLE
from specdec_plugins.serving.client import Client
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.local import TranslateAll, local_translator
from specdec_plugins.serving.model import request_defaults
from specdec_plugins.serving.planning import Options
from specdec_plugins.serving.settings import ModelOptions, ServerSettings

INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE
_BUFFER = 64  # lines that are decoded together
_UNBOUNDED = 2**31  # limits of a server protect it from strangers, not a user from themselves


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="specdec-translate",
        description="Translate lines of text. A line may hold several sentences; white space "
        "and empty lines are kept.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add_options(parser, ModelOptions)
    add_options(parser, ServerSettings, only=("beta", "tau", "max_new_tokens", "max_rows"))
    add = parser.add_argument_group("texts").add_argument
    add("--input", metavar="FILE", default=STANDARD, help="default: standard input")
    add("--output", metavar="FILE", default=STANDARD, help="default: standard output")
    add("--whole-lines", action="store_true", help="do not split lines into sentences")
    add = parser.add_argument_group("how").add_argument
    add(
        "--processes",
        type=int,
        metavar="N",
        default=1,
        help="each with a model of its own and one thread; 0 = as many as there are cores",
    )
    add("--server", metavar="URL", help="translate there, and load no model here")
    add("--requests", type=int, metavar="N", default=16, help="at once, with --server")
    add("--progress", action=argparse.BooleanOptionalAction, help="default: at a terminal")
    add("--debug", action="store_true", help="show where an error was raised")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of a command line."""
    given = vars(make_parser().parse_args(argv))
    try:
        _run(given)
    except (UserError, ServiceError) as error:
        if given.get("debug"):
            raise
        return refuse("specdec-translate", str(error))
    except KeyboardInterrupt:
        sys.stderr.write("specdec-translate: interrupted; what was written is complete lines.\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has enough; Python would flush standard output once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return 0


def _run(given: dict[str, Any]) -> None:
    source, target = given["input"], given["output"]
    refuse_same_file(source, target)
    if target != STANDARD:
        check_output(target)
    with ExitStack() as stack:
        stream = stack.enter_context(open_input(source))
        translate = stack.enter_context(_translator(given))
        name = "standard input" if source == STANDARD else source
        texts = (line.text for line in read_lines(stream, name))
        writer = stack.enter_context(LineWriter(target))
        shown = given.get("progress", sys.stderr.isatty())
        total = total_lines(source) if shown else None
        bar = stack.enter_context(tqdm(total=total, unit=" lines", disable=not shown))
        # At a terminal a person waits for every line.
        size = 1 if source == STANDARD and sys.stdin.isatty() else _BUFFER
        for lines in translate(in_buffers(texts, size)):
            writer.write(lines)
            bar.update(len(lines))
        writer.write([])  # an input without lines makes an output without any


@contextmanager
def _translator(given: dict[str, Any]) -> Iterator[TranslateAll]:
    if "server" in given:
        require("data" not in given, "--server has a model already; leave the folder away.")
        require(given["requests"] >= 1, "--requests must be 1 or more.")
        with _through_server(given) as translate:
            yield translate
        return
    require(given["processes"] >= 0, "--processes must be 0 or more.")
    bounds = {"max_characters": _UNBOUNDED, "max_waiting": _UNBOUNDED}
    model = build(ModelOptions, given)
    settings = build(ServerSettings, {**request_defaults(model), **given, **bounds})
    options = Options(split_sentences="whole_lines" not in given)
    num_processes = given["processes"] or os.cpu_count() or 1
    with local_translator(model, settings, options, num_processes) as local:
        yield local


@contextmanager
def _through_server(given: dict[str, Any]) -> Iterator[TranslateAll]:
    client = Client(given["server"], os.environ.get(KEY_VARIABLE))
    client.info()
    names = ("beta", "tau", "max_new_tokens")
    parameters = {name: given[name] for name in names if name in given}
    parameters["split_sentences"] = "whole_lines" not in given
    num_requests = given["requests"]

    def one(line: str) -> str:
        return str(client.generate(line, **parameters)["generated_text"])

    def translate(buffers: Iterator[list[str]]) -> Iterator[list[str]]:
        pending: deque[Future[str]] = deque()
        for buffer in buffers:
            for line in buffer:
                pending.append(pool.submit(one, line))
                if len(pending) >= 2 * num_requests:
                    yield [pending.popleft().result()]
            # A short buffer is the last one, or a line that somebody has just typed.
            while pending and len(buffer) < _BUFFER:
                yield [pending.popleft().result()]
        while pending:
            yield [pending.popleft().result()]

    with ThreadPoolExecutor(num_requests) as pool:
        try:
            yield translate
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
