"""The verifier as a teacher: beam search over a binarised training set, in this process, in several
of one thread each, which on a CPU is faster, or on Ray.

On a Ray cluster, a free worker takes the next chunk. If a worker dies, its replacement translates
its chunk. Finished chunks return to this process, which writes them as it does without Ray, so
stopping the cluster or this process loses only the chunks in progress. Workers read the data-bin
and the checkpoint under the same paths, so several machines need a shared folder.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from socket import create_connection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch

from specdec_plugins.corpus.resume import Watch
from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.constraints import Constraints
from specdec_plugins.decoding.engine import EngineConfig
from specdec_plugins.decoding.networks import Transformer, with_fast_products
from specdec_plugins.decoding.requests import BeamParams, DecodeParams, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.dictionaries import Dictionary, load_dictionaries
from specdec_plugins.formats.indexed import Sentences, SentenceWriter
from specdec_plugins.formats.models import check_direction, read_model

LOCAL = "local"  # in place of a cluster's address
ROOT = Path(__file__).resolve().parents[2]

Spans = Mapping[int, range]  # the sentences of each chunk
Chunks = Generator[tuple[int, dict[str, Any]]]  # a chunk, and the content of its file: the lines
# (None: left out), the indices that keep their original target, and the seconds it took
DTYPES = {"float32": torch.float32, "int8": torch.float32, "float16": torch.float16}
_PATIENCE = 10.0  # seconds until a cluster's machine is reached
_CPU_ROWS = 16  # sentences at once; what more of them compute leaves the nearest caches


class Search(NamedTuple):
    """The flags that change a translation."""

    beam: int
    lenpen: float
    max_len_a: float
    max_len_b: int
    dtype: str  # one of DTYPES


@dataclass(frozen=True)
class DataBin:
    """One split of a folder that fairseq-preprocess wrote (its mmap format)."""

    folder: Path
    subset: str
    source_lang: str
    target_lang: str

    @classmethod
    def find(cls, folder: Path, subset: str) -> DataBin:
        found = sorted(folder.glob(f"{subset}.*-*.*.idx")) if folder.is_dir() else []
        pairs = {tuple(path.name.split(".")[1].split("-")) for path in found}
        if len(pairs) != 1 or len(found) != 2:
            raise UserError(
                f"{folder}: expected {subset}.SRC-TGT.LANG.bin and .idx for two languages, as "
                "fairseq-preprocess writes them; prepare it with specdec prepare"
            )
        source_lang, target_lang = pairs.pop()
        return cls(folder, subset, source_lang, target_lang)

    def stem(self, language: str) -> str:
        """The name of one side's files, without .bin or .idx."""
        return f"{self.subset}.{self.source_lang}-{self.target_lang}.{language}"

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang

    def sentences(self, language: str) -> Sentences:
        """One side's sentences. Raises ``UserError`` if they are missing."""
        return Sentences(self.folder / self.stem(language))

    @contextmanager
    def writing(self, folder: Path) -> Iterator[Callable[[Any, str], None]]:
        """Yields a function that adds a pair to the same split in another folder.

        It takes source ids and a line of target tokens, and uses this folder's dictionaries.
        """
        paths = {language: self.folder / f"dict.{language}.txt" for language in self.languages}
        sides = [Dictionary.load(path) for path in paths.values()]
        with ExitStack() as stack:
            sources, targets = (
                stack.enter_context(SentenceWriter(folder / self.stem(language), len(side)))
                for language, side in zip(paths, sides, strict=True)
            )

            def write(source_ids: Any, line: str) -> None:
                sources.add(source_ids)
                targets.add(sides[1].encode_line(line))

            yield write

    def num_sentences(self) -> int:
        return len(self.sentences(self.source_lang))


class Teacher:
    """Translates a split with a verifier, by a beam search."""

    def __init__(
        self, data: DataBin, checkpoint: Path, search: Search, device: torch.device
    ) -> None:
        dictionaries = load_dictionaries(data.folder, data.source_lang, data.target_lang)
        model = read_model(checkpoint)
        is_verifier = model.kind == "transformer"
        require(is_verifier, f"{checkpoint}: expected a verifier, found {model.arch}")
        check_direction(checkpoint, model.languages, data.languages)
        model.check_dictionaries(dictionaries.source, dictionaries.target)
        self._dictionary, self._asked = dictionaries.target, search
        self._longest = model.config.encoder.max_positions  # end mark included
        self._sources, self._targets = map(data.sentences, data.languages)
        network, weights = model.opened(DTYPES[search.dtype], device)
        assert isinstance(network, Transformer)
        with_fast_products(network, search.dtype == "int8", weights=weights)
        self._verifier = TransformerVerifier(network, self._dictionary.special)
        self._beam = BeamParams(search.beam, length_penalty=search.lenpen)

    def translate(
        self, indices: Sequence[int], max_tokens: int
    ) -> Iterator[tuple[int, str | None]]:
        """Yields (index, translation) as sentences finish; every index occurs exactly once.

        A sentence joins as another ends, the longest first; `max_tokens` bounds the source tokens
        that decode at once, padding included.
        """
        requests = [self._request(index) for index in indices]
        requests.sort(key=lambda request: len(request.source_ids), reverse=True)
        if not requests:
            return
        rows = max(1, max_tokens // len(requests[0].source_ids))
        if self._verifier.device.type == "cpu":
            rows = min(rows, _CPU_ROWS)
        never = Constraints(bad_words=((self._dictionary.pad,),))
        decoder = BeamDecoder(self._verifier, EngineConfig(rows, constraints=never))
        for result in decoder.run(requests):
            yield int(result.id), self._dictionary.string(result.token_ids)

    def _request(self, index: int) -> Request:
        source_ids, asked = self._sources[index].tolist(), self._asked
        longest = int(asked.max_len_a * len(source_ids) + asked.max_len_b)
        most = min(longest + 1, self._verifier.max_target_positions)  # with the end
        return Request(str(index), source_ids, DecodeParams(0, most, 1, beam=self._beam))

    def chunks(self, max_tokens: int, spans: Spans, on_done: Callable[[int], object]) -> Chunks:
        """Yields the chunks; sources too long for the verifier keep their original target."""
        for chunk, span in spans.items():
            watch = Watch()
            originals = [index for index in span if self._sources.sizes[index] > self._longest]
            lines: dict[int, str | None] = {
                index: self._dictionary.string(self._targets[index].tolist()) for index in originals
            }
            on_done(len(originals))
            # A mix of corpora repeats some sentences in a row.
            first: dict[tuple[int, ...], int] = {}
            same = {
                index: first.setdefault(tuple(self._sources[index].tolist()), index)
                for index in span
                if index not in lines
            }
            for index, line in self.translate(list(first.values()), max_tokens):
                lines[index] = line
                on_done(1)
            lines |= {index: lines[one] for index, one in same.items()}
            on_done(len(same) - len(first))
            content = {"lines": [lines[index] for index in span], "originals": originals}
            yield chunk, {**content, "seconds": round(watch.seconds, 3)}


class Task(NamedTuple):
    """What each worker needs."""

    kind: type[Teacher]
    data: DataBin
    checkpoint: Path
    search: Search
    max_tokens: int  # of sources in a batch
    cpu: bool  # do not use a GPU

    @property
    def on_gpu(self) -> bool:
        return torch.cuda.is_available() and not self.cpu

    def teacher(self) -> Teacher:
        device = torch.device("cuda" if self.on_gpu else "cpu")
        return self.kind(self.data, self.checkpoint, self.search, device)


class ChunkTranslator:
    """A worker: loads the verifier once, and translates chunks."""

    def __init__(self, task: Task) -> None:
        self._teacher, self._max_tokens = task.teacher(), task.max_tokens

    def translate(self, chunk: int, span: range) -> tuple[int, dict[str, Any]]:
        """The chunk and the content of its file."""
        return next(self._teacher.chunks(self._max_tokens, {chunk: span}, lambda number: None))


def translate_in_processes(
    count: int, task: Task, spans: Spans, on_done: Callable[[int], object]
) -> Chunks:
    """Yields the chunks in the order in which they finish, from processes of one thread each.

    Raises UserError if one of them is killed.
    """
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=1):
        parallel = Parallel(min(count, len(spans)), return_as="generator_unordered")
    done = parallel(delayed(_translate)(task, *item) for item in spans.items())
    try:
        with closing(done):
            for chunk, content in done:
                on_done(len(spans[chunk]))
                yield chunk, content
    except BrokenProcessPool as error:
        raise UserError(
            "one of --processes was killed, perhaps because memory was short; run the command "
            "again with fewer of them."
        ) from error


def _translate(task: Task, chunk: int, span: range) -> tuple[int, dict[str, Any]]:
    return _translator(task).translate(chunk, span)


_translator = lru_cache(maxsize=1)(ChunkTranslator)  # made once in each process


def translate_on_cluster(
    address: str, num_workers: int, task: Task, spans: Spans, on_done: Callable[[int], object]
) -> Chunks:
    """Yields the chunks in the order in which they finish.

    address: of a Ray cluster; LOCAL starts one on this machine. Each worker holds a verifier.
    Raises UserError if the cluster cannot be reached or a worker fails.
    """
    import ray.exceptions
    from ray.util import ActorPool

    _connect(address, num_workers)
    num_gpus = int(task.on_gpu)
    # Ray replaces a worker that died, and its replacement repeats the chunk.
    worker = ray.remote(num_gpus=num_gpus, max_restarts=-1, max_task_retries=-1)(ChunkTranslator)
    try:
        pool = ActorPool([worker.remote(task) for _ in range(min(num_workers, len(spans)))])
        ask = lambda actor, item: actor.translate.remote(*item)  # noqa: E731
        for chunk, content in pool.map_unordered(ask, list(spans.items())):
            on_done(len(spans[chunk]))
            yield chunk, content
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)  # the error in a worker
        raise UserError(f"--ray {address}: {_last_line(cause or error)}") from error
    finally:
        ray.shutdown()


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def _connect(address: str, num_workers: int) -> None:
    """Raises UserError if no cluster answers, or none could be started."""
    import ray

    is_local = address == LOCAL
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # On a busy machine a local cluster may exceed Ray's start-up time, so it is tried twice.
    for is_last in (not is_local, True):
        try:
            _knock(address)
            ray.init(
                address=address,
                num_cpus=num_workers if is_local else None,
                include_dashboard=False if is_local else None,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        except Exception as error:  # ray has no exception class for a node that did not start
            ray.shutdown()
            if is_last:
                reason = _last_line(error)
                raise UserError(
                    f"--ray {LOCAL}: no cluster could be started here ({reason}); omit --ray"
                    if is_local
                    else f"--ray {address}: no cluster answers there ({reason}); start one with "
                    f"ray start --head, give --ray {LOCAL}, or omit --ray"
                ) from error


def _knock(address: str) -> None:
    """Raises OSError if nobody listens at HOST:PORT, which Ray takes minutes to say."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.port is not None:
        create_connection((place.hostname, place.port), _PATIENCE).close()


def _last_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
