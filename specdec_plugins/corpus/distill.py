"""Sequence-level distillation (Kim and Rush 2016): a training set with the verifier's targets.

The split is cut into chunks of consecutive sentences. Each chunk is one JSON file in OUT.parts,
written whole, so any number of runs on any machines can be stopped and resumed. No batch spans two
chunks, so it does not matter which run translates a chunk, or when. With ``--ray`` a cluster shares
them out. The run that finishes the last chunk binarises them to OUT.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from joblib import cpu_count
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import BY_TIMEOUT, logger, option
from specdec_plugins.corpus.resume import first_difference, locked, read_json, sha256, write_json
from specdec_plugins.corpus.teacher import (
    DTYPES,
    DataBin,
    Search,
    Task,
    Teacher,
    has_ray,
    translate_in_processes,
    translate_on_cluster,
)
from specdec_plugins.errors import not_installed, require
from specdec_plugins.formats.output import check_output, written_whole


class Distillation:
    """One distillation, whatever the number of shards.

    Raises UserError if the flags conflict or the data is missing.
    """

    def __init__(self, args: DistillOptions, teacher: type[Teacher] | None = None) -> None:
        self.args, self.output = args, args.output.resolve()
        self.data = DataBin.find(args.data.resolve(), args.subset)
        search = Search(*(getattr(args, name) for name in Search._fields))
        what = (teacher or Teacher, self.data, args.path.resolve(), search)
        self.task = Task(*what, args.max_tokens, args.cpu)
        inputs = (self.data.folder, self.task.checkpoint)
        check_output(args.output, "--output", inputs=inputs, folder=True)
        self.parts = self.output.with_name(self.output.name + ".parts")
        self.num_sentences = self.data.num_sentences()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that all chunks must share."""
        sides = [self.data.stem(language) for language in self.data.languages]
        return {
            **self.task.search._asdict(),
            "engine": "specdec",  # other versions searched with other engines
            "checkpoint": sha256(self.task.checkpoint),
            "data": [sha256(self.data.folder / f"{side}.bin") for side in sides],
            "subset": self.data.subset,
            "num_sentences": self.num_sentences,
            "chunk_size": self.args.chunk_size,
        }

    def chunk_path(self, chunk: int) -> Path:
        return self.parts / f"chunk-{chunk:06d}.json"

    def chunks(self) -> range:
        return range(-(-self.num_sentences // self.args.chunk_size))

    def there(self) -> list[int]:
        return [chunk for chunk in self.chunks() if self.chunk_path(chunk).is_file()]

    def missing(self) -> list[int]:
        """The chunks that are not finished; none once ``--hours`` are over."""
        found = [chunk for chunk in self.chunks() if not self.chunk_path(chunk).is_file()]
        return [] if found and self._seconds_left() <= 0 else found

    def _seconds_left(self) -> float:
        """What is left of ``--hours`` after the chunks on disk."""
        if not self.args.hours:
            return math.inf
        contents = (read_json(self.chunk_path(chunk)) for chunk in self.there())
        return float(3600 * self.args.hours - sum(content["seconds"] for content in contents))

    def is_done(self) -> bool:
        stamp = self.output / "distilled.json"
        if not self.output.exists():
            return False
        require(
            stamp.is_file() and read_json(stamp)["settings"] == self.settings,
            f"{self.output}: exists with other data or settings; give another --output, or "
            "remove that folder",
        )
        if self.there() and self.missing():  # more --hours than before
            return False
        logger.info("%s: done already", self.output)
        return True

    def claim(self) -> None:
        """Record the settings, or refuse to mix chunks of different settings."""
        path = self.parts / "settings.json"
        if not path.is_file():
            write_json(path, self.settings)
        changed = first_difference(read_json(path), self.settings)
        require(
            changed is None,
            f"{self.parts} was started with a different {changed}; give another --output, or "
            "remove that folder to start over",
        )

    def translate(self) -> None:
        """Translate the missing chunks, as far as the hours go."""
        args = self.args
        if args.ray is not None and not has_ray():
            logger.warning("%s; distilling on this machine", not_installed("ray", "ray"))
            args.ray = None
        # Loaded before anything is recorded, so that a bad checkpoint leaves nothing behind.
        told = "--fp16 needs a GPU; leave it out to distil on the CPU"
        require(self.task.on_gpu or args.dtype != "float16", told)
        is_begun = (self.parts / "settings.json").is_file()
        teacher = None if is_begun else self.task.teacher()
        with locked(self.parts):
            self.claim()
            missing = sorted(self.missing(), key=_spread)
            logger.info("%d of %d chunks to do", len(missing), len(self.chunks()))
            if args.ray is not None:
                teacher = None  # the workers have their own
            if missing:
                self._translate(missing, teacher)

    def _translate(self, chunks: Sequence[int], teacher: Teacher | None) -> None:
        args, task = self.args, self.task
        spans, left = {chunk: self._span(chunk) for chunk in chunks}, self._seconds_left()
        with tqdm(total=sum(map(len, spans.values())), desc="distilling", unit=" sentences") as bar:
            told = (spans, bar.update)
            if args.ray is not None:
                found = translate_on_cluster(args.ray, args.ray_workers, task, *told)
            elif args.processes > 1 and len(spans) > 1 and not task.on_gpu:
                found = translate_in_processes(args.processes, task, *told)
            else:
                found = (teacher or task.teacher()).chunks(args.max_tokens, *told)
            with closing(found):
                while left > 0 and (done := next(found, None)) is not None:
                    write_json(self.chunk_path(done[0]), done[1])
                    left -= done[1]["seconds"]

    def _span(self, chunk: int) -> range:
        size = self.args.chunk_size
        return range(chunk * size, min((chunk + 1) * size, self.num_sentences))

    def merge(self) -> None:
        """Binarise the finished chunks to the output folder."""
        with locked(self.parts), written_whole(self.output) as part:
            part.mkdir()
            counts = self._binarise(part)
            # Sources, dictionaries, codes, dev and test sets are those of the original.
            for path in sorted(self.data.folder.iterdir()):
                if path.is_file() and not (part / path.name).exists():
                    shutil.copyfile(path, part / path.name)
            write_json(part / "distilled.json", {"settings": self.settings, "counts": counts})
        logger.info(
            "%s: %d sentences, %d of them too long for the verifier (original targets kept)",
            self.output,
            counts["sentences"],
            counts["originals"],
        )

    def _binarise(self, folder: Path) -> dict[str, float]:
        """Write both sides of the finished chunks, with the data-bin's dictionaries.

        Returns counts, and the seconds that translating took.
        """
        sources, counts = self.data.sentences(self.data.source_lang), dict[str, float]()
        counts |= dict.fromkeys(("sentences", "originals", "left_out", "seconds"), 0)
        with self.data.writing(folder) as write:
            for chunk in tqdm(self.there(), desc="binarising", unit=" chunks"):
                content, span = read_json(self.chunk_path(chunk)), self._span(chunk)
                require(
                    len(content["lines"]) == len(span),
                    f"{self.parts}: damaged chunks; remove the folder and run the command again",
                )
                counts["sentences"] += len(span)
                counts["originals"] += len(content["originals"])
                counts["left_out"] += content["lines"].count(None)
                counts["seconds"] += content.get("seconds", 0)
                for index, line in zip(span, content["lines"], strict=True):
                    if line is not None:
                        write(sources[index], line)
        return counts


def _spread(chunk: int) -> float:
    """Sort key that spreads the first chunks over the whole set: multiples of the golden ratio.

    A training set is often a concatenation of corpora, and ``--hours`` may stop anywhere in it.
    """
    return chunk * (5**0.5 - 1) / 2 % 1


def main(args: DistillOptions, teacher: type[Teacher] | None = None) -> None:
    """teacher: None = a beam search."""
    work = Distillation(args, teacher)
    if not work.is_done():
        work.translate()
        work.merge()


@dataclass(kw_only=True)
class DistillOptions:
    """Translate a training set with the verifier and binarise the result as a new data-bin with
    the same dictionaries, dev and test sets.

    The command resumes when it is run again.
    """

    REMOVED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--num-shards", "--shard-id"), "--ray shares the chunks out to machines"),
        "--until": BY_TIMEOUT,
        "--merge": "the run that translates the last chunk writes the output",
    }

    # fmt: off
    data: Path = option(MISSING, "data-bin to distil", positional=True)
    path: Path = option(MISSING, "checkpoint of the verifier")
    output: Path = option(MISSING, "data-bin to write")
    subset: str = option("train", "split of the data-bin")
    beam: int = option(5, "beam size; 1 is greedy", least=1)
    lenpen: float = option(1.0, "length penalty; above 1 favours long outputs", least=-10,
        most=10)
    max_len_a: float = option(0.0, "at most A * source tokens + B target tokens", least=0,
        most=1000)
    max_len_b: int = option(200, "see --max-len-a", least=1)
    max_tokens: int = option(4096, "source tokens per batch", least=1)
    dtype: str = option("float32", "precision; int8 is for a CPU, and float16 for a GPU: some "
        "translations are others, as good", choices=tuple(DTYPES), alias=("--fp16", "float16"))
    cpu: bool = option(False, "do not use a GPU")
    processes: int = option(cpu_count(), "processes that translate on a CPU, each "
        "with a verifier and one thread; one uses all cores by threads, slower", least=1)
    chunk_size: int = option(500, "sentences per chunk; a stop loses the current chunk", least=1)
    ray: str | None = option(None, "distribute the chunks on the Ray cluster at this address, or "
        "on 'local' processes; chunks of workers that die are repeated (default: no Ray)")
    ray_workers: int = option(2, "workers on the cluster, each with a verifier", least=1)
    hours: float = option(0.0, "hours to translate, over all runs; then binarise the finished "
        "chunks (default: translate everything)", least=0)
    # fmt: on


COMMAND = cli.CommandLine("specdec distill", main, DistillOptions)  # fmt: skip
