"""What a distillation consists of: its settings, its chunks, and how these become a data-bin.

The split is cut into chunks of consecutive sentences. Each is one JSON file in OUT.parts, written
whole, so any number of runs on any machines can be stopped and continued. A chunk is translated in
batches of its own, so it does not matter who translates it, or when.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.resume import locked, read_json, write_json, written_whole
from specdec_plugins.corpus.teacher import DataBin, Search, Teacher
from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Job:
    """One distillation, whatever the number of shards."""

    data: DataBin
    checkpoint: Path
    search: Search
    output: Path
    chunk_size: int  # sentences

    @property
    def parts(self) -> Path:
        return self.output.with_name(self.output.name + ".parts")

    def chunk_path(self, chunk: int) -> Path:
        return self.parts / f"chunk-{chunk:06d}.json"

    def settings(self) -> dict[str, Any]:
        """What must be the same for chunks to belong together."""
        sides = [self.data.stem(x) for x in (self.data.source_lang, self.data.target_lang)]
        return {
            **asdict(self.search),
            "checkpoint": _sha256(self.checkpoint),
            "data": [_sha256(self.data.folder / f"{side}.bin") for side in sides],
            "subset": self.data.subset,
            "num_sentences": self.data.num_sentences(),
            "chunk_size": self.chunk_size,
        }

    @property
    def is_begun(self) -> bool:
        return (self.parts / "settings.json").is_file()

    def claim(self, settings: dict[str, Any]) -> None:
        """Record the settings, or refuse to mix chunks of different ones."""
        path = self.parts / "settings.json"
        if not path.is_file():
            self.parts.mkdir(parents=True, exist_ok=True)
            # Shards may arrive together: each writes its own name, and all compare what stayed.
            own = self.parts / f"settings.{os.uname().nodename}.{os.getpid()}.json"
            write_json(own, settings)
            os.replace(own, path)
        before = read_json(path)
        changed = [key for key in settings if settings[key] != before.get(key)]
        if changed:
            raise UserError(
                f"{self.parts} was begun with another {' and '.join(changed)}; give another "
                f"output, or remove that folder to begin again"
            )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


class Shard:
    """Translates the chunks of one shard that are not there yet."""

    def __init__(self, job: Job, num_sentences: int, num_shards: int, shard_id: int) -> None:
        self._job = job
        self._num_sentences = num_sentences
        chunks = range(shard_id, -(-num_sentences // job.chunk_size), num_shards)
        self.missing = [chunk for chunk in chunks if not job.chunk_path(chunk).is_file()]
        self.num_chunks = len(chunks)

    def still_missing(self) -> list[int]:
        """The missing chunks that nobody has written since."""
        return [chunk for chunk in self.missing if not self._job.chunk_path(chunk).is_file()]

    def spans(self) -> dict[int, range]:
        """The sentences of the missing chunks."""
        size = self._job.chunk_size
        return {
            chunk: range(chunk * size, min((chunk + 1) * size, self._num_sentences))
            for chunk in self.missing
        }

    def run(self, teacher: Teacher, max_tokens: int, until: float = 0.0) -> bool:
        """Whether all is done; not so where the Unix time ``until`` (0: none) came first."""
        spans = self.spans()
        with tqdm(total=sum(map(len, spans.values())), desc="distilling", unit=" sentences") as bar:
            for chunk, span in spans.items():
                if until and time.time() >= until:
                    return False
                content = translate_chunk(teacher, span, max_tokens, bar.update)
                write_json(self._job.chunk_path(chunk), content)
        return True


def translate_chunk(
    teacher: Teacher,
    span: range,
    max_tokens: int,
    on_done: Callable[[int], object] = lambda number: None,
) -> dict[str, Any]:
    """The content of a chunk's file: its lines, and which are the originals for being too long."""
    originals = [index for index in span if teacher.too_long(index)]
    lines = {index: teacher.original(index) for index in originals}
    on_done(len(originals))
    wanted = [index for index in span if index not in lines]
    for batch in teacher.translate(wanted, max_tokens):
        lines.update(batch)
        on_done(len(batch))
    return {"lines": [lines[index] for index in span], "originals": originals}


def merge(job: Job, settings: dict[str, Any]) -> None:
    """Binarise all chunks to the output folder; a ``UserError`` names what is missing."""
    num_chunks = -(-settings["num_sentences"] // job.chunk_size)
    missing = [chunk for chunk in range(num_chunks) if not job.chunk_path(chunk).is_file()]
    if missing:
        raise UserError(
            f"{job.parts}: {len(missing)} of {num_chunks} chunks are missing (the first is "
            f"{missing[0]}); run the shards that have them, chunk c is of shard c modulo shards"
        )
    with locked(job.parts, wait=True):
        if is_done(job, settings):
            return
        with written_whole(job.output) as part:
            part.mkdir()
            counts = _binarise(job, part, num_chunks)
            if counts["sentences"] != settings["num_sentences"]:
                raise UserError(f"{job.parts}: chunks are damaged; remove the folder, run it again")
            _copy_the_rest(job, part)
            write_json(part / "distilled.json", {"settings": settings, "counts": counts})
    logger.info(
        "%s: %d sentences, %d of them too long for the verifier (their own target kept)",
        job.output,
        counts["sentences"],
        counts["originals"],
    )


def is_done(job: Job, settings: dict[str, Any]) -> bool:
    stamp = job.output / "distilled.json"
    if not job.output.exists():
        return False
    if not stamp.is_file() or read_json(stamp)["settings"] != settings:
        raise UserError(f"{job.output}: holds something else; give another output, or remove it")
    logger.info("%s: done already", job.output)
    return True


def _lines(job: Job, num_chunks: int, counts: dict[str, int]) -> Iterator[str]:
    for chunk in tqdm(range(num_chunks), desc="binarising", unit=" chunks"):
        content = read_json(job.chunk_path(chunk))
        counts["sentences"] += len(content["lines"])
        counts["originals"] += len(content["originals"])
        yield from content["lines"]


def _binarise(job: Job, folder: Path, num_chunks: int) -> dict[str, int]:
    """Write the target side with the data-bin's own dictionary; returns counts."""
    from fairseq.data import Dictionary, indexed_dataset

    dictionary = Dictionary.load(str(job.data.folder / f"dict.{job.data.target_lang}.txt"))
    stem = str(folder / job.data.stem(job.data.target_lang))
    builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(dictionary))
    counts = {"sentences": 0, "originals": 0}
    for line in _lines(job, num_chunks, counts):
        builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(f"{stem}.idx")
    return counts


def _copy_the_rest(job: Job, folder: Path) -> None:
    """Sources, dictionaries, codes, dev and test sets are those of the original."""
    for path in sorted(job.data.folder.iterdir()):
        if path.is_file() and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
