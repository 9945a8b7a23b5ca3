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
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import UNFINISHED, logger
from specdec_plugins.corpus.resume import first_difference, locked, read_json, sha256, write_json
from specdec_plugins.corpus.teacher import DataBin, Teacher, has_ray, translate_on_cluster
from specdec_plugins.errors import UserError, not_installed, require
from specdec_plugins.formats.output import written_whole

SEARCH = ("beam", "lenpen", "max_len_a", "max_len_b", "fp16")  # flags that change a translation


class Distillation:
    """One distillation, whatever the number of shards.

    Raises UserError where the flags do not go together or the data is not there.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.data = DataBin.find(args.data.resolve(), args.subset)
        self.checkpoint, self.output = args.path.resolve(), args.output.resolve()
        require(
            self.output != self.data.folder,
            f"--output {self.output}: is the data itself; give another folder",
        )
        self.parts = self.output.with_name(self.output.name + ".parts")
        self.num_sentences = self.data.num_sentences()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What must be the same for chunks to belong together."""
        sides = [self.data.stem(language) for language in self.data.languages]
        return {
            **{name: getattr(self.args, name) for name in SEARCH},
            "checkpoint": sha256(self.checkpoint),
            "data": [sha256(self.data.folder / f"{side}.bin") for side in sides],
            "subset": self.data.subset,
            "num_sentences": self.num_sentences,
            "chunk_size": self.args.chunk_size,
        }

    def chunk_path(self, chunk: int) -> Path:
        return self.parts / f"chunk-{chunk:06d}.json"

    def chunks(self, shard_id: int = 0, num_shards: int = 1) -> range:
        """Those of a shard; of one shard, all."""
        return range(shard_id, -(-self.num_sentences // self.args.chunk_size), num_shards)

    def missing(self, chunks: Iterable[int]) -> list[int]:
        """Those of the chunks that are not there yet."""
        return [chunk for chunk in chunks if not self.chunk_path(chunk).is_file()]

    def is_done(self) -> bool:
        stamp = self.output / "distilled.json"
        if not self.output.exists():
            return False
        require(
            stamp.is_file() and read_json(stamp)["settings"] == self.settings,
            f"{self.output}: holds something else; give another output, or remove it",
        )
        logger.info("%s: done already", self.output)
        return True

    def claim(self) -> None:
        """Record the settings, or refuse to mix chunks of different ones."""
        path = self.parts / "settings.json"
        if not path.is_file():
            # Shards may arrive together: each writes its own name, and all compare what stayed.
            own = self.parts / f"settings.{os.uname().nodename}.{os.getpid()}.json"
            write_json(own, self.settings)
            os.replace(own, path)
        changed = first_difference(read_json(path), self.settings)
        require(
            changed is None,
            f"{self.parts} was begun with another {changed}; give another output, or remove "
            "that folder to begin again",
        )

    def translate(self) -> bool:
        """Translate the missing chunks of this shard; whether there was time for all of them."""
        args = self.args
        if args.ray is not None and not has_ray():
            logger.warning("%s; distilling in one process", not_installed("ray", "ray"))
            args.ray = None
        # Loaded before anything is recorded, so that a bad checkpoint leaves nothing behind.
        is_begun = (self.parts / "settings.json").is_file()
        teacher = None if is_begun else self._teacher()
        self.claim()
        with locked(self.parts / f"shard-{args.shard_id}-of-{args.num_shards}"):
            chunks = self.chunks(args.shard_id, args.num_shards)
            missing = self.missing(chunks)
            logger.info("%d of %d chunks to do", len(missing), len(chunks))
            if args.ray is not None:
                teacher = None  # the workers have their own
            return not missing or self._translate(missing, teacher)

    def _teacher(self) -> Teacher:
        args = self.args
        on_gpu = torch.cuda.is_available() and not args.cpu
        require(on_gpu or not args.fp16, "--fp16 needs a GPU; leave it out to distil on the CPU")
        device = torch.device("cuda" if on_gpu else "cpu")
        return Teacher(self.data, self.checkpoint, self._search, device)

    @property
    def _search(self) -> dict[str, Any]:
        return {name: self.settings[name] for name in SEARCH}

    def _translate(self, chunks: Sequence[int], teacher: Teacher | None) -> bool:
        args, size = self.args, self.args.chunk_size
        spans = {c: range(c * size, min((c + 1) * size, self.num_sentences)) for c in chunks}
        with tqdm(total=sum(map(len, spans.values())), desc="distilling", unit=" sentences") as bar:
            if args.ray is None:
                found = (teacher or self._teacher()).chunks(args.max_tokens, spans, bar.update)
            else:
                task = (self.data, self.checkpoint, self._search, args.max_tokens, args.cpu)
                found = translate_on_cluster(args.ray, args.ray_workers, task, spans, bar.update)
            with closing(found):
                while not (args.until and time.time() >= args.until):
                    done = next(found, None)
                    if done is None:
                        break
                    write_json(self.chunk_path(done[0]), done[1])
        return not self.missing(chunks)

    def merge(self) -> None:
        """Binarise all chunks to the output folder; a ``UserError`` names what is missing."""
        chunks = self.chunks()
        missing = self.missing(chunks)
        if missing:
            raise UserError(
                f"{self.parts}: {len(missing)} of {len(chunks)} chunks are missing (the first is "
                f"{missing[0]}); run the shards that have them, chunk c is of shard c modulo shards"
            )
        with locked(self.parts, wait=True):
            if self.is_done():
                return
            with written_whole(self.output) as part:
                part.mkdir()
                counts = self._binarise(part)
                # Sources, dictionaries, codes, dev and test sets are those of the original.
                for path in sorted(self.data.folder.iterdir()):
                    if path.is_file() and not (part / path.name).exists():
                        shutil.copyfile(path, part / path.name)
                write_json(part / "distilled.json", {"settings": self.settings, "counts": counts})
        logger.info(
            "%s: %d sentences, %d of them too long for the verifier (their own target kept)",
            self.output,
            counts["sentences"],
            counts["originals"],
        )

    def _binarise(self, folder: Path) -> dict[str, int]:
        """Write the target side with the data-bin's own dictionary; returns counts."""
        from fairseq.data import Dictionary, indexed_dataset

        language = self.data.target_lang
        dictionary = Dictionary.load(str(self.data.folder / f"dict.{language}.txt"))
        stem = str(folder / self.data.stem(language))
        builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(dictionary))
        counts = {"sentences": 0, "originals": 0}
        for chunk in tqdm(self.chunks(), desc="binarising", unit=" chunks"):
            content = read_json(self.chunk_path(chunk))
            counts["sentences"] += len(content["lines"])
            counts["originals"] += len(content["originals"])
            for line in content["lines"]:
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
        builder.finalize(f"{stem}.idx")
        require(
            counts["sentences"] == self.num_sentences,
            f"{self.parts}: chunks are damaged; remove the folder, run it again",
        )
        return counts


def main(args: argparse.Namespace) -> None:
    require(
        args.shard_id < args.num_shards,
        f"--shard-id {args.shard_id}: expected 0 to {args.num_shards - 1}",
    )
    require(
        args.ray is None or args.num_shards == 1,
        "--ray shares all chunks out itself; omit --num-shards",
    )
    work = Distillation(args)
    if work.is_done():
        return
    if args.merge:
        work.claim()
    else:
        finished = work.translate()
        others = len(work.missing(work.chunks()))
        if not finished:
            logger.info("time is up; %d chunks are missing, and the same command goes on", others)
            raise SystemExit(UNFINISHED)
        if others:
            logger.info("this shard is done; %d chunks of other shards are missing", others)
            return
    work.merge()


_NUMBER = cli.at_least(1)
COMMAND = cli.CommandLine(
    "distill.sh",
    "Translate a training set with the verifier and binarise the result as a new data-bin with "
    "the same dictionaries, dev and test sets. Run again, the command goes on where it "
    "stopped.",
    main,
    [
        ("data", None, Path, "data-bin to distil"),
        ("--path", cli.REQUIRED, Path, "checkpoint of the verifier"),
        ("--output", cli.REQUIRED, Path, "data-bin to write"),
        ("--subset", "train", str, "part of the data-bin"),
        ("--beam", 5, _NUMBER, "1 is greedy"),
        ("--lenpen", 1.0, float, "above 1 favours long outputs"),
        ("--max-len-a", 0.0, cli.at_least(0, float), "at most A * source tokens + B target tokens"),
        ("--max-len-b", 200, _NUMBER, "see --max-len-a"),
        ("--max-tokens", 4096, _NUMBER, "source tokens a batch"),
        ("--fp16", False, bool, "half precision, on a GPU"),
        ("--cpu", False, bool, "leave a GPU alone"),
        ("--chunk-size", 2000, _NUMBER, "sentences lost by a stop"),
        ("--num-shards", 1, _NUMBER, "machines at work"),
        ("--shard-id", 0, cli.at_least(0), "from 0"),
        ("--ray", None, str, "share the chunks out on the Ray cluster of this address, or on "
         "'local' processes; what dies is done again (default: no Ray)"),
        ("--ray-workers", 2, _NUMBER, "verifiers on the cluster"),
        ("--until", 0.0, cli.at_least(0, float), "stop behind the chunk of that Unix time with "
         f"exit status {UNFINISHED}; the same command goes on (default: no end)"),
        ("--merge", False, bool, "only put finished chunks together"),
    ],
    environment="beam lenpen max-len-a max-len-b max-tokens until",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(COMMAND.run())
