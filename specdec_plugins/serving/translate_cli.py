"""specdec-translate: translates files and pipes, with its own model or through a server."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any

import torch

from specdec_plugins.app import files
from specdec_plugins.app.options import build, check, flags_of, like, option, removed_from, renames
from specdec_plugins.app.planning import Translated
from specdec_plugins.app.report import Flaws
from specdec_plugins.app.settings import EXACT, NO_TOLERANCE, Settings
from specdec_plugins.corpus.cli import CommandLine
from specdec_plugins.errors import UserError, handling, imported, require, run_command
from specdec_plugins.formats.output import LineWriter
from specdec_plugins.serving.cli import KEY_VARIABLE
from specdec_plugins.serving.client import Client
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.model import load_model, request_defaults
from specdec_plugins.serving.planning import Wishes, translate_texts
from specdec_plugins.serving.settings import BATCH, ModelOptions, ServerSettings

TranslateLines = Callable[[list[str]], list[Translated]]

_NAME = "specdec-translate"
_BUFFER = 64  # lines that are decoded together
_UNBOUNDED = 2**31  # limits that protect a server do not apply to local use

DESCRIPTION = """\
Translate lines of text. A line may hold several sentences; white space and
empty lines are kept.
"""

EPILOG = """\
examples:
  specdec-translate < raw.en > raw.de                           # the bundled pair
  specdec-translate models/mine --processes 4 --input raw.en --output raw.de
  specdec-translate --server http://127.0.0.1:8080 < raw.en > raw.de

One line in gives one line out, in the same order, as soon as it is ready. Exit
status: 0 done, 1 a line is cut, copied or empty (which is said) or an error of
this program, 2 bad input or settings, 130 interrupted.
"""

# Settings that a server takes with a request.
_ASKED = (*EXACT, "max_new_tokens")
_LANGUAGES = ("source_lang", "target_lang")

_text = partial(like, files.FileOptions, group="texts")
_how = partial(option, group="how to translate")


@dataclass(frozen=True)
class TranslateOptions:
    """Input and output of lines, and how they are translated."""

    input_path: str = _text("input_path", flags=("--input",))
    output_path: str = _text("output_path", flags=("--output",))
    whole_lines: bool = option(False, "do not split lines into sentences", group="texts")
    processes: int = _how(
        1, "each with its own model and one thread (default: 1); 0 = one per core", least=0
    )
    on_unreadable: str = like(Settings, "on_unreadable", group="how to translate")
    server: str | None = _how(None, "translate through this server, and load no model here", "URL")
    requests: int = _how(16, "requests sent at once, with --server", least=1)
    progress: bool | None = like(files.FileOptions, "progress", group="how to translate")
    debug: bool = like(files.FileOptions, "debug", group="how to translate")

    def __post_init__(self) -> None:
        check(self)


COMMAND = CommandLine(
    _NAME,
    DESCRIPTION,
    None,
    [
        *flags_of(TranslateOptions, ModelOptions),
        *flags_of(ServerSettings, only=(*_ASKED, "max_rows")),
    ],
    epilog=EPILOG,
    removed=removed_from(ModelOptions),
    usage=f"{_NAME} [FOLDER] [flags]",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = COMMAND.given(argv)
    told, refused = "interrupted; only complete lines were written.", (UserError, ServiceError)
    flags = renames(Settings, ModelOptions, ServerSettings, TranslateOptions) | BATCH
    return run_command(_NAME, lambda: _run(given), "debug" in given, told, refused, flags)


def _run(given: dict[str, Any]) -> int:
    """Translate; returns 1 if some lines are cut, copied or could not be decoded."""
    options = build(TranslateOptions, given)
    source, target = options.input_path, options.output_path
    files.check_places([source], [target])
    flaws = Flaws(lambda told: sys.stderr.write(f"{_NAME}: {told}\n"))
    with ExitStack() as stack:
        stream = stack.enter_context(files.open_input(source))
        name = files.name_of(source)
        read = files.read_lines(stream, name)
        texts = (line.text + line.end for line in read)  # white space stays as it is
        translations = _translator(given, options, texts, stream.is_awaited, stack)
        writer = stack.enter_context(LineWriter(target))
        stack.callback(flaws.sum_up)
        bar = stack.enter_context(files.progress_bar(source, options.progress))
        numbers = count(1)
        for lines in translations:
            for one, number in zip(lines, numbers, strict=False):
                where = f"{name}, line {number}"
                is_refused = one.fault and options.on_unreadable == "fail"
                require(not is_refused, f"{where}: {one.fault}")
                flaws.add(number, where, one)
            writer.write([one.text for one in lines])
            bar.update(len(lines))
        writer.write([])  # an empty input makes an empty output
    return int(bool(flaws.lines))


def _translator(
    given: Mapping[str, Any],
    how: TranslateOptions,
    texts: Iterator[str],
    is_awaited: Callable[[], bool],
    stack: ExitStack,
) -> Iterator[list[Translated]]:
    """Load models; returns translated lists of lines, in order, as they become ready."""
    buffers = files.in_buffers(texts, _BUFFER if how.server is None else 1, is_awaited)
    num_ahead = 2  # for each worker, so that none waits
    pool: Executor
    if how.server is not None:
        require("data" not in given, "--server uses the server's own model; omit the folder.")
        translate = _remote(how.server, given, how)
        pool, num_ahead = ThreadPoolExecutor(how.requests), num_ahead * how.requests
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
    else:
        model = build(ModelOptions, given)
        bounds = {"max_characters": _UNBOUNDED, "max_waiting": _UNBOUNDED}
        settings = build(ServerSettings, {**request_defaults(model), **given, **bounds})
        is_tolerant = settings.beta > 1 or not given.get("tau")
        require(is_tolerant, NO_TOLERANCE.format(value=settings.tau))
        num_processes = how.processes or os.cpu_count() or 1
        if num_processes == 1:
            return map(_local(model, settings, how), buffers)
        pool = stack.enter_context(_processes(num_processes, model, settings, how))
        translate, num_ahead = _translate, num_ahead * num_processes
    return _in_order(pool, translate, buffers, num_ahead, is_awaited)


@contextmanager
def _processes(count: int, *arguments: Any) -> Iterator[Executor]:
    """Processes that load a model each, and end with the block.

    Raises UserError if one of them is killed.
    """
    others = multiprocessing.active_children()
    # Not fork: torch's threads do not survive it.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, _start, arguments)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "one of --processes was killed, perhaps because memory was short; use fewer of them."
        ) from error
    finally:
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()  # in the middle of its lines, if a signal ended the block
        pool.shutdown(cancel_futures=True)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _holding_signals() -> Iterator[None]:
    """Processes that start in the block heed no signal to stop: this one does, and ends them.

    It gets such a signal at the end of the block, as half a start would be a traceback there.
    """
    held = list[int]()
    # Blocked for the new process, which inherits that; other threads of this one still get it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        with handling(held.append, _STOPPING):
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        for number in held:
            signal.raise_signal(number)


def _in_order(
    pool: Executor,
    translate: TranslateLines,
    buffers: Iterator[list[str]],
    num_ahead: int,
    is_awaited: Callable[[], bool],
) -> Iterator[list[Translated]]:
    """Results of buffers, of which so many are read ahead; all of them while input is awaited."""
    pending: deque[Future[list[Translated]]] = deque()
    for buffer in buffers:
        with _holding_signals():
            pending.append(pool.submit(translate, buffer))
        while pending and (len(pending) > num_ahead or is_awaited()):
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _remote(url: str, given: Mapping[str, Any], how: TranslateOptions) -> TranslateLines:
    client = Client(url, os.environ.get(KEY_VARIABLE))
    client.info()
    parameters = {name: given[name] for name in (*_ASKED, *_LANGUAGES) if name in given}
    parameters["split_sentences"] = not how.whole_lines

    def translate(line: str) -> Translated:
        answer = client.generate(line, **parameters)
        # An earlier server refuses what it cannot read, and does not say what it cuts.
        is_cut, fault = answer.get("truncated", False), answer.get("unreadable") or ""
        return Translated(answer["generated_text"], is_cut, fault)

    return lambda lines: [*map(translate, lines)]


def _local(model: ModelOptions, settings: ServerSettings, how: TranslateOptions) -> TranslateLines:
    options = Wishes(split_sentences=not how.whole_lines)
    if not how.whole_lines:
        imported("sentence_splitter", "serve")  # said before the model is loaded
    loaded = load_model(model)
    return lambda lines: translate_texts(lines, options, loaded, settings)


_own: Callable[[], TranslateLines]  # in a process of the pool


def _start(*arguments: Any) -> None:
    global _own
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    # Loaded by the first call, whose caller gets its errors; here they would break the pool.
    _own = cache(partial(_local, *arguments))


def _end_with_parent() -> None:
    """However it ends: a killed process cannot end its children."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _translate(lines: list[str]) -> list[Translated]:
    return _own()(lines)
