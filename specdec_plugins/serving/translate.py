"""`specdec translate`: as `app.main`, here, on several processes, or through a server."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from itertools import chain
from typing import Any, TypeVar

import torch
from joblib import cpu_count

from specdec_plugins.app.documents import DocumentOptions, DocumentRun, parted, tell_of_lines
from specdec_plugins.app.files import FileOptions, Sentences, in_buffers
from specdec_plugins.app.glossary import distinct, read_terms
from specdec_plugins.app.main import (
    FLAGS,
    Here,
    Run,
    Translated,
    Worker,
    command_line,
    read_options,
)
from specdec_plugins.app.report import Tally, many, summary
from specdec_plugins.app.settings import BY_SENTENCE, EXACT, REPEATS, Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.app.types import UNREADABLE, Limits, RankedText, Sentence, Translation
from specdec_plugins.corpus.cli import build, check, flag_of, flags_of, option
from specdec_plugins.decoding.requests import FinishReason
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import (
    UserError,
    end_with_parent,
    handling,
    imported,
    require,
    run_command,
)
from specdec_plugins.serving.client import KEY_VARIABLE, Client, ClientError

R = TypeVar("R")
_BUFFER = 64  # most lines of a task
_FIRST_ANSWER = 20.0  # seconds until a server that says nothing is given up
_AHEAD = 2  # tasks for each worker, so that none waits
_where = partial(option, group="where to translate")
# Settings that a server takes with a request, and their names there.
_ASKED = {
    **{name: name for name in (*EXACT, *REPEATS, "source_lang", "target_lang")},
    "beam": "num_beams",
    "n_best": "n_best",
    "max_len_b": "max_new_tokens",
    "split": "split_sentences",
    "protect": "protect",
    "protect_numbers": "protect_numbers",
}
_COUNTS = ("drafted", "accepted", "emitted")  # tokens of each round


@dataclass(frozen=True)
class WhereOptions:
    """What translates."""

    # fmt: off
    processes: int = _where(1, "each with its own model and one thread (default: 1); 0 = one per "
        "core", least=0)
    server: str | None = _where(None, "translate through this server of specdec serve, and load no "
        "model here", "URL")
    requests: int = _where(16, "requests sent at once, with --server", least=1)
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        require(
            self.server is None or self.processes == 1,
            "--processes and --server exclude each other; give one of them.",
        )


COMMAND = command_line(
    "specdec translate",
    [*FLAGS, *flags_of(DocumentOptions, WhereOptions)],
    {"--max-new-tokens": "give --max-len-b"},  # of specdec-translate
)


def main(words: Sequence[str] | None = None) -> int:
    """Run `specdec translate`; returns the exit status."""
    given = parted(COMMAND.given(words))

    def work() -> int:
        how = build(DocumentOptions, given)
        worker, files = _worker(given)
        if how.file is not None:
            return DocumentRun(COMMAND.name, how, worker, files, given).run()
        told = "--units and --memory are for a document; name it as FILE, or omit them."
        require(not {"units", "memory"} & given.keys(), told)
        tell_of_lines(COMMAND.name, files)
        return Run(worker, files, COMMAND.name).run()

    return run_command(COMMAND.name, work, "debug" in given, "interrupted.")


def _worker(given: Mapping[str, Any]) -> tuple[Worker, FileOptions]:
    where = build(WhereOptions, given)
    if where.server is not None:
        files = build(FileOptions, given)
        return Server(where.server, where.requests, given, files), files
    require("requests" not in given, "--requests go to a server; add --server, or omit them.")
    settings, files = read_options({**BY_SENTENCE, **given})
    if settings.split and settings.raw_text:
        imported("sentencex", "text")  # said before a model is loaded
    num_processes = where.processes or cpu_count()
    here = Here(settings) if num_processes == 1 else Processes(settings, num_processes)
    return here, files


class Processes(Here):
    """Processes with a translator each."""

    def __init__(self, settings: Settings, count: int) -> None:
        super().__init__(settings)
        self._count = count
        self._said: dict[int, tuple[DecodeStats, Limits]] = {}  # last words of each process

    def start(self, files: FileOptions, say: Callable[[str], object]) -> None:
        self._files = files

    def translated(self, sentences: Sentences, on_done: Callable[[], None]) -> Translated:
        size = min(_BUFFER, self._files.buffer_size)
        with _pool(self._count, self.settings, bool(self._files.json_path)) as pool:
            buffers = in_buffers(sentences, size, sentences.is_awaited)
            num_ahead = _AHEAD * self._count
            for buffer, (done, pid, stats, limits) in _in_order(
                pool, _translate, buffers, num_ahead, sentences.is_awaited
            ):
                self._said[pid] = stats, limits
                for _ in done:
                    on_done()
                yield buffer, done

    def report(self, tally: Tally, seconds: float) -> str:
        stats = sum((stats for stats, _ in self._said.values()), DecodeStats())
        limits = next((limits for _, limits in self._said.values()), Limits(0, 0, 0))
        text = summary(tally, stats, self.settings, limits, seconds)
        return f"{text}\n{self._count} processes"


@contextmanager
def _pool(count: int, *arguments: Any) -> Iterator[Executor]:
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
    translate: Callable[[list[Sentence]], R],
    buffers: Iterator[list[Sentence]],
    num_ahead: int,
    is_awaited: Callable[[], bool],
) -> Iterator[tuple[list[Sentence], R]]:
    """Results of buffers, of which so many are read ahead; all of them while input is awaited."""
    pending: deque[tuple[list[Sentence], Future[R]]] = deque()
    for buffer in chain(buffers, [None]):
        if buffer is not None:
            with _holding_signals():
                pending.append((buffer, pool.submit(translate, buffer)))
        while pending and (buffer is None or len(pending) > num_ahead or is_awaited()):
            begun, future = pending.popleft()
            yield begun, future.result()


_Said = tuple[list[Translation], int, DecodeStats, Limits]  # from a process of that id, so far
_own: Callable[[], Any]  # the translator of a process of the pool


def _start(*arguments: Any) -> None:
    global _own
    end_with_parent()
    torch.set_num_threads(1)
    # Loaded by the first call, whose caller gets its errors; here they would break the pool.
    _own = cache(partial(load_translator, *arguments))


def _translate(sentences: list[Sentence]) -> _Said:
    own = _own()
    return own.translate_sentences(sentences), os.getpid(), own.stats, own.limits


class Server:
    """A server, which is asked for a line at a time, by several threads."""

    def __init__(
        self, url: str, num_requests: int, given: Mapping[str, Any], files: FileOptions
    ) -> None:
        """given: of the command line. Raises UserError for settings that no request has."""
        for name in given:
            is_ours = name in Settings.__dataclass_fields__
            require(
                not is_ours or name in (*_ASKED, "on_unreadable", "glossary"),
                "--server uses the server's own model and settings; omit "
                f"{'the folder' if name == 'data' else flag_of(Settings, name)}.",
            )
        told = "--prefix-file cannot be sent to a server; omit it."
        require("prefix_file" not in given, told)
        self._url, self._num_requests = url, num_requests
        self._copies = given.get("on_unreadable", "copy") == "copy"
        self._asked: dict[str, Any] = {"split_sentences": True}
        self._asked |= {_ASKED[name]: given[name] for name in given if name in _ASKED}
        if "glossary" in given:
            terms = read_terms(given["glossary"])
            distinct(terms)  # a request keeps the last of several
            self._asked["glossary"] = {s: t for s, t, _ in terms}
        self.reads = [given["glossary"]] if "glossary" in given else []
        self.target_lang: str | None = self._asked.get("target_lang")
        if files.json_path:
            self._asked["details"] = True

    @property
    def num_best(self) -> int:
        return int(self._asked.get("n_best", 1))

    def origin(self) -> dict[str, dict[str, Any]]:
        return {"values": {"--server": self._url, **self._asked}, "contents": {}}

    def start(self, files: FileOptions, say: Callable[[str], object]) -> None:
        key = os.environ.get(KEY_VARIABLE)
        info = Client(self._url, key, timeout=_FIRST_ANSWER).info()
        self.target_lang = self.target_lang or info.get("target")
        self._client = Client(self._url, key)

    def translated(self, sentences: Sentences, on_done: Callable[[], None]) -> Translated:
        with ExitStack() as stack:
            pool = ThreadPoolExecutor(self._num_requests)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            buffers = in_buffers(sentences, 1)
            num_ahead, is_awaited = _AHEAD * self._num_requests, sentences.is_awaited
            for lines, done in _in_order(pool, self._ask, buffers, num_ahead, is_awaited):
                on_done()
                yield lines, done

    def _ask(self, sentences: list[Sentence]) -> list[Translation]:
        [line] = sentences
        if not line.text.strip():
            return [Translation(line.number, line.text)]
        try:
            answer = self._client.generate(line.text, **self._asked)
        except ClientError as error:
            if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise
            raise UserError(f"{line.where}: {error}") from error
        # An earlier server refuses what it cannot read, and does not say what it cuts.
        fault = answer.get("unreadable") or ""
        require(self._copies or not fault, f"{line.where}: {fault}")
        details = answer.get("details") or {}
        told = details.get("finish_reason", FinishReason.LENGTH.value)
        reason = told if answer.get("truncated") else FinishReason.EOS.value
        rounds, score = details.get("speculation", []), details.get("score") or {}
        counts: dict[str, Any] = {n: [num for one in rounds for num in one[n]] for n in _COUNTS}
        least = score.get("least") or {}
        done = Translation(
            line.number,
            answer["generated_text"],
            rounds=sum(one["rounds"] for one in rounds),
            finish_reason=UNREADABLE if fault else reason,
            seconds=sum(one["decode_ms"] for one in rounds) / 1000,
            score=score.get("logprob"),
            mean_score=score.get("mean_logprob"),
            least_token=least.get("text"),
            least_score=least.get("logprob"),
            token_scores=[t["logprob"] for t in details.get("tokens") or () if not t["special"]],
            fault=fault,
            n_best=[
                RankedText(one["generated_text"], [], one["score"], one["logprob"], [])
                for one in answer.get("n_best") or []
            ],
            **counts,
        )
        return [done]

    def report(self, tally: Tally, seconds: float) -> str:
        return f"{many(tally.sentences, 'line')} in {seconds:.2f} s through {self._url}"
