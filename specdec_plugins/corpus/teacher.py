"""The verifier as a teacher: beam search over a binarised training set, here or on Ray.

On a Ray cluster, a free worker takes the next chunk. If a worker dies, its replacement translates
its chunk. Finished chunks return to this process, which writes them as it does without Ray, so
stopping the cluster or this process loses only the chunks in progress. Workers read the data-bin
and the checkpoint under the same paths, so several machines need a shared folder.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.errors import UserError, imported, require
from specdec_plugins.formats.ctranslate2 import export_ctranslate2
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.fairseq_search import SearchConfig, load_fairseq_search
from specdec_plugins.formats.indexed import Sentences, SentenceWriter
from specdec_plugins.formats.models import check_direction, read_model

LOCAL = "local"  # in place of a cluster's address
ROOT = Path(__file__).resolve().parents[2]

Spans = Mapping[int, range]  # the sentences of each chunk
Chunks = Generator[tuple[int, dict[str, Any]]]  # a chunk, and the content of its file: the lines
# (None: left out), the indices that keep their original target, and the seconds it took
Search = Mapping[str, Any]  # fields of `SearchConfig`, and fp16


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
    """Translates a split with a verifier, by fairseq's beam search."""

    def __init__(
        self, data: DataBin, checkpoint: Path, search: Search, device: torch.device
    ) -> None:
        self._data = data
        dictionaries = load_dictionaries(data.folder, data.source_lang, data.target_lang)
        model = read_model(checkpoint)
        is_verifier = model.kind == "transformer"
        require(is_verifier, f"{checkpoint}: expected a verifier, found {model.arch}")
        check_direction(checkpoint, model.languages, data.languages)
        model.check_dictionaries(dictionaries.source, dictionaries.target)
        self._dictionary = dictionaries.target
        self._longest = model.config.encoder.max_positions  # end mark included
        self._sources, self._targets = map(data.sentences, data.languages)
        self._load(checkpoint, dictionaries, search, device)

    def _load(
        self, checkpoint: Path, dictionaries: Dictionaries, search: Search, device: torch.device
    ) -> None:
        config = SearchConfig(**{name: search[name] for name in search if name != "fp16"})
        dtype = torch.float16 if search["fp16"] else torch.float32
        self._search = load_fairseq_search(
            checkpoint, self._data.folder, config,
            dtype=dtype, device=device, languages=self._data.languages,
        )  # fmt: skip

    def _translated(self, sources: list[list[int]]) -> list[str]:
        """The best translation of each source."""
        found = self._search.search(sources)
        return [self._dictionary.string(best.token_ids) for best, *_ in found]

    def translate(
        self, indices: Sequence[int], max_tokens: int
    ) -> Iterator[list[tuple[int, str | None]]]:
        """Yields batches of (index, translation); every index occurs exactly once."""
        for batch in self._batches(indices, max_tokens):
            texts = self._translated([self._sources[index].tolist() for index in batch])
            yield list(zip(batch, texts, strict=True))

    def chunks(self, max_tokens: int, spans: Spans, on_done: Callable[[int], object]) -> Chunks:
        """Yields the chunks; sources too long for the verifier keep their original target."""
        for chunk, span in spans.items():
            began = time.monotonic()
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
            for batch in self.translate(list(first.values()), max_tokens):
                lines.update(batch)
                on_done(len(batch))
            lines |= {index: lines[one] for index, one in same.items()}
            on_done(len(same) - len(first))
            content = {"lines": [lines[index] for index in span], "originals": originals}
            yield chunk, {**content, "seconds": round(time.monotonic() - began, 3)}

    def _batches(self, indices: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
        # fairseq's own batching drops a last partial batch by default; this one never does.
        batch: list[int] = []
        for index in sorted(indices, key=lambda i: (self._sources.sizes[i], i)):
            # Sorted, so this sentence is the longest and sets the width of the batch.
            if batch and (len(batch) + 1) * self._sources.sizes[index] > max_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


class CTranslate2Teacher(Teacher):
    """The same by CTranslate2: 8-bit on a CPU, where it is several times as fast."""

    def _load(
        self, checkpoint: Path, dictionaries: Dictionaries, search: Search, device: torch.device
    ) -> None:
        ctranslate2 = imported("ctranslate2", "convert")
        self._symbols, self._settings = dictionaries.source.symbols, search
        kind = "float16" if search["fp16"] else "float32" if device.type == "cuda" else "int8"
        with tempfile.TemporaryDirectory() as folder:
            network = read_model(checkpoint)
            path = export_ctranslate2(network, dictionaries, Path(folder) / "model")
            threads = torch.get_num_threads()
            self._translator = ctranslate2.Translator(
                str(path), device=device.type, compute_type=kind, intra_threads=threads
            )

    def _translated(self, sources: list[list[int]]) -> list[str]:
        told = self._settings
        length = max(map(len, sources))
        found = self._translator.translate_batch(
            [[self._symbols[index] for index in ids[:-1]] for ids in sources],  # it adds </s>
            beam_size=told["beam"],
            length_penalty=told["lenpen"],
            max_decoding_length=int(told["max_len_a"] * length + told["max_len_b"]),
        )
        return [" ".join(best.hypotheses[0]) for best in found]


TEACHERS: dict[str, type[Teacher]] = {"fairseq": Teacher, "ctranslate2": CTranslate2Teacher}

# What each worker of a cluster needs: the kind of teacher, data, checkpoint, search, source tokens
# per batch, and whether to use the CPU only.
Task = tuple[type[Teacher], DataBin, Path, Search, int, bool]


class ChunkTranslator:
    """A worker of the cluster: loads the verifier once, and translates chunks."""

    def __init__(
        self,
        kind: type[Teacher],
        data: DataBin,
        checkpoint: Path,
        search: Search,
        max_tokens: int,
        cpu: bool,
    ) -> None:
        device = torch.device("cpu" if cpu or not torch.cuda.is_available() else "cuda")
        self._teacher = kind(data, checkpoint, search, device)
        self._max_tokens = max_tokens

    def translate(self, chunk: int, span: range) -> tuple[int, dict[str, Any]]:
        """The chunk and the content of its file."""
        return next(self._teacher.chunks(self._max_tokens, {chunk: span}, lambda number: None))


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
    num_gpus = 0 if task[-1] or not torch.cuda.is_available() else 1
    # Ray replaces a worker that died, and its replacement repeats the chunk.
    worker = ray.remote(num_gpus=num_gpus, max_restarts=-1, max_task_retries=-1)(ChunkTranslator)
    try:
        pool = ActorPool([worker.remote(*task) for _ in range(min(num_workers, len(spans)))])
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


def _last_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
