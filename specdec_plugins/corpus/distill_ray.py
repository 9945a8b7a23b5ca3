"""The chunks of a distillation on a Ray cluster: whoever is free takes the next.

Ray Data starts workers, hands out chunks, and gives the chunk of a worker that died to another.
Finished chunks come back to this process, which writes them as it does without Ray, so a stop of
the cluster or of this process loses what was being translated and no more. Workers read the
data-bin and the checkpoint under the same paths: on several machines, in a shared folder.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.corpus.teacher import DataBin, Search, Teacher, translate_chunk
from specdec_plugins.errors import UserError

LOCAL = "local"
NUM_ATTEMPTS = 2  # to start a cluster here
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Task:
    """What each worker of a cluster needs to translate chunks."""

    data: DataBin
    checkpoint: Path
    search: Search
    max_tokens: int  # source tokens a batch
    cpu: bool  # leave GPUs alone


class ChunkTranslator:
    """A worker of the cluster: loads the verifier once, and translates chunks."""

    def __init__(self, task: Task) -> None:
        device = torch.device("cpu" if task.cpu or not torch.cuda.is_available() else "cuda")
        self._teacher = Teacher(task.data, task.checkpoint, task.search, device)
        self._max_tokens = task.max_tokens

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The content of a chunk's file as JSON; row: a chunk and the span of its sentences."""
        span = range(row["start"], row["stop"])
        content = translate_chunk(self._teacher, span, self._max_tokens)
        return {"chunk": row["chunk"], "content": json.dumps(content)}


@dataclass(frozen=True)
class Cluster:
    """Where to run, and what."""

    address: str  # of a Ray cluster; LOCAL starts one on this machine
    num_workers: int  # each holds a verifier
    task: Task

    def translate(
        self, spans: Mapping[int, range], on_done: Callable[[int], object]
    ) -> Generator[tuple[int, dict[str, Any]]]:
        """Chunks and the content of their files, as they come.

        Raises UserError where the cluster cannot be reached or a worker cannot do its work.
        """
        rows = [{"chunk": c, "start": s.start, "stop": s.stop} for c, s in spans.items()]
        with _connected(self) as data:
            # A block for each chunk, so that a worker that dies costs one chunk.
            translated = data.from_items(rows, override_num_blocks=len(rows)).map(
                ChunkTranslator,
                fn_constructor_args=(self.task,),
                concurrency=min(self.num_workers, len(rows)),
                num_gpus=0 if self.task.cpu or not torch.cuda.is_available() else 1,
            )
            for row in translated.iter_rows():
                on_done(len(spans[row["chunk"]]))
                yield row["chunk"], json.loads(row["content"])


def is_installed() -> bool:
    return importlib.util.find_spec("ray") is not None


@contextmanager
def _connected(cluster: Cluster) -> Iterator[Any]:
    """Ray Data on the cluster, which is left, or stopped where it was started here."""
    import ray
    import ray.data
    import ray.exceptions

    _connect(cluster)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    try:
        yield ray.data
    except ray.exceptions.RayError as error:
        raise UserError(f"--ray {cluster.address}: {_cause(error)}") from error
    finally:
        ray.shutdown()


def _connect(cluster: Cluster) -> None:
    """Raises UserError where no cluster answers, or none could be started."""
    import ray

    is_local = cluster.address == LOCAL
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for attempt in range(NUM_ATTEMPTS):
        try:
            ray.init(
                address=cluster.address,
                num_cpus=cluster.num_workers if is_local else None,
                include_dashboard=False if is_local else None,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        except Exception as error:  # ray has no class of its own for a node that did not start
            ray.shutdown()
            if is_local and attempt < NUM_ATTEMPTS - 1:
                continue  # on a busy machine its processes may miss the time that Ray grants them
            raise UserError(
                f"--ray {cluster.address}: no cluster answers there ({_first_line(error)}); start "
                f"one with ray start --head, give --ray {LOCAL}, or omit --ray"
            ) from error


def _cause(error: BaseException) -> str:
    """What went wrong in a worker, in a line."""
    cause = getattr(error, "cause", None)
    return _first_line(cause if isinstance(cause, BaseException) else error)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
