"""Sequence-level distillation (Kim and Rush 2016): a training set with the verifier's targets.

The split is cut into chunks of consecutive sentences. Each is one JSON file in OUT.parts, written
whole, so any number of runs on any machines can be stopped and continued. A chunk is translated in
batches of its own, so it does not matter who translates it, or when. Chunk c belongs to shard
c % num_shards; with ``--ray`` a cluster shares all chunks out instead. Once all are there, whoever
finished the last one binarises them to OUT.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import UNFINISHED, logger
from specdec_plugins.corpus.resume import (
    first_difference,
    locked,
    read_json,
    sha256,
    write_json,
)
from specdec_plugins.corpus.teacher import (
    Chunks,
    DataBin,
    Search,
    Spans,
    Teacher,
    has_ray,
    translate_on_cluster,
)
from specdec_plugins.errors import UserError, not_installed
from specdec_plugins.formats.output import written_whole

# Told how many sentences are done.
Translate = Callable[[Spans, Callable[[int], object]], Chunks]


@dataclass(frozen=True)
class Distillation:
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

    def chunks(self, num_sentences: int, shard_id: int = 0, num_shards: int = 1) -> range:
        """Those of a shard; of one shard, all."""
        return range(shard_id, -(-num_sentences // self.chunk_size), num_shards)

    def missing(self, chunks: Iterable[int]) -> list[int]:
        """Those of the chunks that are not there yet."""
        return [chunk for chunk in chunks if not self.chunk_path(chunk).is_file()]

    def settings(self) -> dict[str, Any]:
        """What must be the same for chunks to belong together."""
        sides = [self.data.stem(x) for x in (self.data.source_lang, self.data.target_lang)]
        return {
            **asdict(self.search),
            "checkpoint": sha256(self.checkpoint),
            "data": [sha256(self.data.folder / f"{side}.bin") for side in sides],
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
        if (changed := first_difference(before, settings)) is not None:
            raise UserError(
                f"{self.parts} was begun with another {changed}; give another output, or remove "
                "that folder to begin again"
            )


def translate_missing(
    work: Distillation,
    num_sentences: int,
    chunks: Sequence[int],
    translate: Translate,
    until: float,
) -> bool:
    """Whether all is done; not so where the Unix time ``until`` (0: none) came first."""
    size = work.chunk_size
    spans = {c: range(c * size, min((c + 1) * size, num_sentences)) for c in chunks}
    with (
        tqdm(total=sum(map(len, spans.values())), desc="distilling", unit=" sentences") as bar,
        closing(translate(spans, bar.update)) as contents,
    ):
        while not (until and time.time() >= until) and (done := next(contents, None)):
            write_json(work.chunk_path(done[0]), done[1])
    return not work.missing(chunks)


def merge(work: Distillation, settings: dict[str, Any]) -> None:
    """Binarise all chunks to the output folder; a ``UserError`` names what is missing."""
    chunks = work.chunks(settings["num_sentences"])
    missing = work.missing(chunks)
    if missing:
        raise UserError(
            f"{work.parts}: {len(missing)} of {len(chunks)} chunks are missing (the first is "
            f"{missing[0]}); run the shards that have them, chunk c is of shard c modulo shards"
        )
    with locked(work.parts, wait=True):
        if is_done(work, settings):
            return
        with written_whole(work.output) as part:
            part.mkdir()
            counts = _binarise(work, part, chunks)
            if counts["sentences"] != settings["num_sentences"]:
                raise UserError(
                    f"{work.parts}: chunks are damaged; remove the folder, run it again"
                )
            _copy_the_rest(work, part)
            write_json(part / "distilled.json", {"settings": settings, "counts": counts})
    logger.info(
        "%s: %d sentences, %d of them too long for the verifier (their own target kept)",
        work.output,
        counts["sentences"],
        counts["originals"],
    )


def is_done(work: Distillation, settings: dict[str, Any]) -> bool:
    stamp = work.output / "distilled.json"
    if not work.output.exists():
        return False
    if not stamp.is_file() or read_json(stamp)["settings"] != settings:
        raise UserError(f"{work.output}: holds something else; give another output, or remove it")
    logger.info("%s: done already", work.output)
    return True


def _binarise(work: Distillation, folder: Path, chunks: Iterable[int]) -> dict[str, int]:
    """Write the target side with the data-bin's own dictionary; returns counts."""
    from fairseq.data import Dictionary, indexed_dataset

    dictionary = Dictionary.load(str(work.data.folder / f"dict.{work.data.target_lang}.txt"))
    stem = str(folder / work.data.stem(work.data.target_lang))
    builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(dictionary))
    counts = {"sentences": 0, "originals": 0}
    for chunk in tqdm(chunks, desc="binarising", unit=" chunks"):
        content = read_json(work.chunk_path(chunk))
        counts["sentences"] += len(content["lines"])
        counts["originals"] += len(content["originals"])
        for line in content["lines"]:
            builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(f"{stem}.idx")
    return counts


def _copy_the_rest(work: Distillation, folder: Path) -> None:
    """Sources, dictionaries, codes, dev and test sets are those of the original."""
    for path in sorted(work.data.folder.iterdir()):
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
    return cli.parser(
        "Translate a training set with the verifier and binarise the result as a new data-bin with "
        "the same dictionaries, dev and test sets. Run again, the command goes on where it "
        "stopped.",
        ("data", None, Path, "data-bin to distil"),
        ("--path", cli.REQUIRED, Path, "checkpoint of the verifier"),
        ("--output", cli.REQUIRED, Path, "data-bin to write"),
        ("--subset", "train", str, "part of the data-bin"),
        ("--beam", 5, number, "1 is greedy"),
        ("--lenpen", 1.0, float, "above 1 favours long outputs"),
        ("--max-len-a", 0.0, cli.at_least(0, float), "at most A * source tokens + B target tokens"),
        ("--max-len-b", 200, number, "see --max-len-a"),
        ("--max-tokens", 4096, number, "source tokens a batch"),
        ("--fp16", False, bool, "half precision, on a GPU"),
        ("--cpu", False, bool, "leave a GPU alone"),
        ("--chunk-size", 2000, number, "sentences lost by a stop"),
        ("--num-shards", 1, number, "machines at work"),
        ("--shard-id", 0, cli.at_least(0), "from 0"),
        ("--ray", None, str, "share the chunks out on the Ray cluster of this address, or on "
         "'local' processes; what dies is done again (default: no Ray)"),
        ("--ray-workers", 2, number, "verifiers on the cluster"),
        ("--until", 0.0, cli.at_least(0, float), "stop behind the chunk of that Unix time with "
         f"exit status {UNFINISHED}; the same command goes on (default: no end)"),
        ("--merge", False, bool, "only put finished chunks together"),
        prog="distill.sh",
    )  # fmt: skip


def main(args: argparse.Namespace) -> None:
    if args.shard_id >= args.num_shards:
        raise UserError(f"--shard-id {args.shard_id}: expected 0 to {args.num_shards - 1}")
    if args.ray is not None and args.num_shards > 1:
        raise UserError("--ray shares all chunks out itself; omit --num-shards")
    search = Search(args.beam, args.lenpen, args.max_len_a, args.max_len_b, args.fp16)
    data = DataBin.find(args.data.resolve(), args.subset)
    output = args.output.resolve()
    if output == data.folder:
        raise UserError(f"--output {output}: is the data itself; give another folder")
    work = Distillation(data, args.path.resolve(), search, output, args.chunk_size)
    settings = work.settings()
    if is_done(work, settings):
        return

    finished = True
    if args.merge:
        work.claim(settings)
    else:
        finished = _translate(args, work, settings)
    others = work.missing(work.chunks(settings["num_sentences"]))
    if not finished:
        logger.info("time is up; %d chunks are missing, and the same command goes on", len(others))
        raise SystemExit(UNFINISHED)
    if others and not args.merge:
        logger.info("this shard is done; %d chunks of other shards are missing", len(others))
        return
    merge(work, settings)


def _translate(args: argparse.Namespace, work: Distillation, settings: dict[str, Any]) -> bool:
    """Translate the chunks of this shard; whether there was time for all of them."""
    translate: Translate
    by_ray = args.ray is not None
    if by_ray and not has_ray():
        logger.warning("%s; distilling in one process", not_installed("ray", "ray"))
        by_ray = False
    # Loaded before anything is recorded: a checkpoint that cannot be used leaves nothing behind.
    teacher = None if work.is_begun else _teacher(args, work)
    work.claim(settings)
    with locked(work.parts / f"shard-{args.shard_id}-of-{args.num_shards}"):
        number = settings["num_sentences"]
        chunks = work.chunks(number, args.shard_id, args.num_shards)
        missing = work.missing(chunks)
        logger.info("%d of %d chunks to do", len(missing), len(chunks))
        if not missing:
            return True
        if by_ray:
            del teacher  # the workers have their own
            task = (work.data, work.checkpoint, work.search, args.max_tokens, args.cpu)
            translate = partial(translate_on_cluster, args.ray, args.ray_workers, task)
        else:
            translate = partial((teacher or _teacher(args, work)).chunks, args.max_tokens)
        return translate_missing(work, number, missing, translate, args.until)


def _teacher(args: argparse.Namespace, work: Distillation) -> Teacher:
    return Teacher(work.data, work.checkpoint, work.search, _device(args.cpu, args.fp16))


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
