"""Sequence-level distillation (Kim and Rush 2016): a training set with the verifier's targets.

The split is cut into chunks of consecutive sentences. Chunk c belongs to shard c % num_shards and
is one JSON file in OUT.parts, written whole, so any number of runs on any machines can be stopped
and continued. Once all chunks are there, whoever finished the last one binarises them to OUT.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.steps import locked, read_json, write_json, written_whole
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

    def run(self, teacher: Teacher, max_tokens: int) -> None:
        size = self._job.chunk_size
        spans = [
            range(chunk * size, min((chunk + 1) * size, self._num_sentences))
            for chunk in self.missing
        ]
        with tqdm(total=sum(map(len, spans)), desc="distilling", unit=" sentences") as bar:
            for chunk, span in zip(self.missing, spans, strict=True):
                write_json(
                    self._job.chunk_path(chunk), self._translate(teacher, span, bar, max_tokens)
                )

    @staticmethod
    def _translate(
        teacher: Teacher, span: range, bar: tqdm[Any], max_tokens: int
    ) -> dict[str, Any]:
        originals = [index for index in span if teacher.too_long(index)]
        lines = {index: teacher.original(index) for index in originals}
        bar.update(len(originals))
        wanted = [index for index in span if index not in lines]
        for batch in teacher.translate(wanted, max_tokens):
            lines.update(batch)
            bar.update(len(batch))
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
        if _is_done(job, settings):
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


def _is_done(job: Job, settings: dict[str, Any]) -> bool:
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


def _device(cpu: bool, fp16: bool) -> torch.device:
    if not cpu and torch.cuda.is_available():
        return torch.device("cuda")
    if fp16:
        raise UserError("--fp16 needs a GPU; leave it out to distil on the CPU")
    return torch.device("cpu")


def _parser() -> argparse.ArgumentParser:
    number = cli.at_least(1)
    parser = cli.parser(
        "Translate a training set with the verifier and binarise the result as a new data-bin with "
        "the same dictionaries, dev and test sets. Run again, the command goes on where it "
        "stopped.",
        prog="distill.sh",
    )
    parser.add_argument("data", type=Path, help="data-bin to distil")
    parser.add_argument("--path", type=Path, required=True, help="checkpoint of the verifier")
    parser.add_argument("--output", type=Path, required=True, help="data-bin to write")
    parser.add_argument("--subset", default="train", help="part of the data-bin")
    parser.add_argument("--beam", type=number, default=5, help="1 is greedy")
    parser.add_argument("--lenpen", type=float, default=1.0, help="above 1 favours long outputs")
    parser.add_argument(
        "--max-len-a",
        type=cli.at_least(0, float),
        default=0.0,
        help="at most A * source tokens + B target tokens",
    )
    parser.add_argument("--max-len-b", type=number, default=200, help="see --max-len-a")
    parser.add_argument("--max-tokens", type=number, default=4096, help="source tokens a batch")
    parser.add_argument("--fp16", action="store_true", help="half precision, on a GPU")
    parser.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    parser.add_argument("--chunk-size", type=number, default=2000, help="sentences lost by a stop")
    parser.add_argument("--num-shards", type=number, default=1, help="machines at work")
    parser.add_argument("--shard-id", type=cli.at_least(0), default=0, help="from 0")
    parser.add_argument("--merge", action="store_true", help="only put finished chunks together")
    return parser


def main(args: argparse.Namespace) -> None:
    if args.shard_id >= args.num_shards:
        raise UserError(f"--shard-id {args.shard_id}: expected 0 to {args.num_shards - 1}")
    search = Search(args.beam, args.lenpen, args.max_len_a, args.max_len_b, args.fp16)
    data = DataBin.find(args.data.resolve(), args.subset)
    output = args.output.resolve()
    if output == data.folder:
        raise UserError(f"--output {output}: is the data itself; give another folder")
    job = Job(data, args.path.resolve(), search, output, args.chunk_size)
    settings = job.settings()
    if _is_done(job, settings):
        return

    def teacher() -> Teacher:
        return Teacher(data, job.checkpoint, search, _device(args.cpu, args.fp16))

    # Loaded before anything is recorded: a checkpoint that cannot be used leaves nothing behind.
    loaded = None if args.merge or job.is_begun else teacher()
    job.claim(settings)
    if not args.merge:
        with locked(job.parts / f"shard-{args.shard_id}-of-{args.num_shards}"):
            shard = Shard(job, settings["num_sentences"], args.num_shards, args.shard_id)
            logger.info("%d of %d chunks to do", len(shard.missing), shard.num_chunks)
            if shard.missing:
                shard.run(loaded or teacher(), args.max_tokens)
    others = Shard(job, settings["num_sentences"], 1, 0).missing
    if others and not args.merge:
        logger.info("this shard is done; %d chunks of other shards are missing", len(others))
        return
    merge(job, settings)


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
